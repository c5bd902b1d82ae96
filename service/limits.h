// SPDX-License-Identifier: Apache-2.0
#pragma once
// All limits of the daemon, and how they depend on each other. A call that exceeds a limit gets an
// error (ResourceExhausted, InvalidArgument) or a shorter result. Memory never grows. The format's
// limits are in codecs/types/shape.h, the transports' limits in transport/transport.h.
//
// A "shared" limit is for all tenants together. index/tenant_shares.h gives each tenant its share,
// which is half of the limit while no other tenant uses any of it.

#include <cstddef>
#include <cstdint>

#include "base/units.h"
#include "codecs/types/shape.h"
#include "proto/block_key.h"
#include "proto/frame.h"
#include "proto/side_object.h"

namespace cairn::limits {

// --- Spaces and sessions
inline constexpr size_t kSpacesMax = 1024;         // shared
inline constexpr uint32_t kSpaceIdleMs = 600'000;  // after this, an idle space is retired
inline constexpr size_t kGroupsPerSpaceMax = proto::kGroupsMax;
inline constexpr size_t kTenantBytesMax = proto::kTenantBytesMax;
inline constexpr size_t kClientNameBytesMax = 128;
inline constexpr size_t kSessionsMax = 1024;       // shared; also the limit for connections
inline constexpr size_t kPeersPerSessionMax = 32;  // data-plane connections
inline constexpr size_t kPutsPerSessionMax = 64;   // admitted and not answered yet
inline constexpr uint64_t kPutBytesPerSessionMax = 256_MiB;  // bytes of these puts in staging

// --- Side objects: in memory outside the arena
inline constexpr uint64_t kSideObjectBytesMax = proto::kSideObjectBytesMax;  // for each
inline constexpr uint64_t kSideObjectsBytesMax = 256_MiB;                    // shared
inline constexpr size_t kSideObjectsMax = 8192;                              // shared
inline constexpr size_t kSideObjectPartBytesMax = 2_MiB;  // one part of an upload or a download
inline constexpr uint64_t kUploadBytesMax = 64_MiB;       // incomplete uploads of all sessions
inline constexpr uint64_t kUploadBytesPerTenantMax = 32_MiB;
inline constexpr uint64_t kQuerySquaresBytesMax = 64_MiB;  // sums of squared queries; shared
// Upkeep mines profiles only for groups with at most this many channels of K and V. Mining then
// uses 80 MiB.
inline constexpr uint64_t kMinedChannelsMax = uint64_t{1} << 20;

// --- Calls of the control plane

// Limit for one message. 65,536 keys take 2.3 MB. A part of a side object takes 2 MiB.
inline constexpr int kControlMessageBytesMax = 3'000'000;
// Limit for an OpenSpace. Other calls may have 64 KiB in addition to their list of keys.
inline constexpr size_t kSpecBytesMax = 256_KiB;
// Limit for the memory of incoming requests and outgoing replies. A request counts with its largest
// possible size until it is complete. Above the limit, the oldest calls that are at least
// kCallGraceMs old are cancelled.
inline constexpr uint64_t kControlBytesMax = 192_MiB;
inline constexpr uint32_t kCallGraceMs = 250;
inline constexpr size_t kCallsMax = 4096;  // calls that hold memory
inline constexpr int kCallsPerConnectionMax = 128;
// Limits for connections that have sent nothing, and for connections without a session. Above a
// limit, the oldest connection of the user or host with the most connections is closed.
// transport/local/greeter.h limits data-plane connections that have not sent their hello.
inline constexpr size_t kSilentConnectionsMax = 256;
inline constexpr size_t kSessionlessConnectionsMax = 256;
// The same two limits for the administrative listener.
inline constexpr size_t kAdminConnectionsMax = 64;
inline constexpr int kReflectionThreadsMax = 8;  // each serves one reflection stream

// --- Match, leases, waiters
inline constexpr size_t kKeysPerCallMax = 65536;
// The limit for the keys, groups and images that one Match examines. A Match that reaches it
// returns a shorter prefix.
inline constexpr size_t kMatchWorkMax = size_t{1} << 20;
// The limit for the keys, groups and images that are examined, pinned, leased or released in one
// hold of the index's lock. A longer call releases the lock in between.
inline constexpr size_t kVisitsPerHoldMax = 1024;
// If every leaf is held, one eviction examines ancestors in at most this many holds of the lock.
inline constexpr int kEvictionSearchesMax = 16;
// A search for an image to write back skips images that wait for their previous block. It may skip
// during at most this many holds of the lock.
inline constexpr int kWriteBackSearchesMax = 16;
// A plan of a Match fails if a block disappears or a lease is taken meanwhile. One Match makes at
// most this many plans.
inline constexpr int kMatchPlansMax = 16;
inline constexpr size_t kLeasesMax = 16384;  // shared
inline constexpr size_t kLeasesPerSessionMax = 1024;
inline constexpr size_t kLeasedImagesMax = size_t{1} << 21;  // shared; limits the memory of leases
inline constexpr uint32_t kLeaseMs = 60'000;                 // counted from its start or renewal
inline constexpr uint32_t kLeaseMsMax = 600'000;             // counted from its start
inline constexpr uint64_t kPinnedPercentMax = 50;  // the part of a tier that leases may pin; shared
inline constexpr size_t kWaitersMax = 2048;        // waiting Match calls; shared
inline constexpr size_t kWaitersPerSessionMax = 64;
inline constexpr size_t kWaitedKeysMax = 524'288;  // shared; limits the memory of waiters
inline constexpr uint32_t kWaitMsMax = 60'000;
inline constexpr size_t kWatchersMax = 64;               // WatchEvents calls, shared
inline constexpr size_t kEventsMax = 65'536;             // kept for watchers: 7 MiB
inline constexpr uint64_t kEventNamesBytesMax = 32_MiB;  // engines' names and tokens in events
inline constexpr int64_t kEventsKeptMs = 300'000;        // after the last watcher has left
inline constexpr size_t kEventsPerBatchMax = 1024;
inline constexpr uint64_t kEventNamesPerBatchMax = 1_MiB;  // bytes of engines' names and tokens
// One page of a snapshot takes at most this many holds of the index's lock.
inline constexpr int kSnapshotHoldsMax = 64;
// Blocks that came or went, kept until they are announced to other members: 4 MiB.
inline constexpr size_t kAnnouncementsMax = 65'536;
// The run of a block is looked up in at most this many blocks before it.
inline constexpr size_t kRunClimbMax = 256;
// Where: the members that one call asks, the calls that run, and the time for the members' answers.
inline constexpr size_t kWhereMembersMax = 16;
inline constexpr size_t kWheresMax = 8;
inline constexpr uint32_t kWhereMs = 2'000;
// Generations: the spaces whose deletion members remember, and those of one tenant. An entry of the
// list has a fingerprint, a generation, and the tenant with its number of bytes: 1.7 MB in all.
inline constexpr size_t kGenerationsMax = 16'384;
inline constexpr size_t kGenerationsPerTenantMax = 1024;
inline constexpr size_t kGenerationListBytesMax =
    1 + kGenerationsMax * (32 + 8 + 1 + kTenantBytesMax);
// Policies that members tell: of spaces in all, of those of one tenant, and the name of a recipe.
// An entry has a fingerprint, an epoch, a time, the tenant and two recipes: 1 MB in all.
inline constexpr size_t kPoliciesMax = 4096;
inline constexpr size_t kPoliciesPerTenantMax = 256;
inline constexpr size_t kToldRecipeBytesMax = 64;
inline constexpr size_t kPolicyListBytesMax =
    1 + kPoliciesMax * (32 + 8 + 4 + 3 + kTenantBytesMax + 2 * kToldRecipeBytesMax);
// A generation and the epoch of a policy are times. Members' clocks may differ by this much.
inline constexpr int64_t kGenerationAheadUsMax = int64_t{86'400} * 1'000'000;
inline constexpr size_t kListBlocksMax = 10'000;  // one page of ListBlocks
inline constexpr size_t kListBlocksDefault = 1000;

// --- Offers of a member that drains, to others

// Only blocks that were used lately are offered; of these, the last used.
inline constexpr uint32_t kOfferedUsedSeconds = 600;
inline constexpr size_t kOfferedBlocksMax = 65'536;
// One offer, and how long the member that offers waits for its answer.
inline constexpr size_t kOfferKeysMax = 256;
inline constexpr uint64_t kOfferBytesMax = 64_MiB;
// What one block of an offer may have, if it is alone in it.
inline constexpr uint64_t kOfferBlockBytesMax = codecs::kImageBytesMax * codecs::kImagesPerBlockMax;
inline constexpr uint32_t kOfferMs = 5'000;
inline constexpr size_t kOfferCallsMax = 16;  // to different members at once
// Towards a member that offers: the offers that wait, the images that are read at once, and the
// bytes that are read per second.
inline constexpr size_t kOffersWaitingMax = 32;
inline constexpr size_t kOfferedReadsMax = 32;
inline constexpr uint64_t kOfferedRateBytes = 512_MiB;
// The part of the host tier that may be evicted for offered blocks in kOfferedUsedSeconds.
inline constexpr uint64_t kOfferedPercentMax = 10;

// --- Requests of the data plane

// Requests in one message, for clients that ask for many blocks at once. Each counts in the peer's
// window.
inline constexpr uint16_t kBatchMax = 32;
static_assert(kBatchMax <= proto::kBatchMax);

// --- Deadlines
inline constexpr uint32_t kDataDeadlineMs = 2'000;  // used if a data-plane request has no deadline
inline constexpr uint32_t kDeadlineMsMax = proto::kDeadlineMsMax;

// --- Index

// The host tier's size divided by this number limits the number of blocks in the index, so that
// small blocks cannot make the index larger than the tier. Above the limit, the least recently used
// block is evicted.
inline constexpr uint64_t kBytesPerBlockMin = 16_KiB;
inline constexpr uint64_t kBlocksMin = 1024;
inline constexpr uint64_t kBlocksMax = uint64_t{1} << 22;
inline constexpr uint64_t BlocksMax(uint64_t host_bytes) {
  const uint64_t blocks = host_bytes / kBytesPerBlockMin;
  return blocks < kBlocksMin ? kBlocksMin : blocks > kBlocksMax ? kBlocksMax : blocks;
}

// The limit for images allows this many images per block on average. Above it, blocks are evicted.
// A single block may have up to codecs::kImagesPerBlockMax.
constexpr uint64_t kImagesPerBlockMean = 4;
inline constexpr uint64_t ImagesMax(uint64_t blocks_max) {
  return blocks_max * kImagesPerBlockMean;
}

// The most index memory that a block takes. At rest: for a block with one image that is only on a
// drive, including the drive's own map of images (docs/internals/adr/0019-blocks-at-rest.md).
// Awake: for a block with four images that is also in memory.
inline constexpr uint64_t kIndexBytesAtRest = 128;
inline constexpr uint64_t kIndexBytesAwake = 2_KiB;
inline constexpr uint64_t kIndexBytesMin = 16_MiB;
inline constexpr uint64_t kIndexBytesMax = kTiB;
// Returns the part of an index budget that is for awake blocks, which is at most half. Eviction
// begins when seven eighths of this part are used, so that leases can still wake some blocks.
inline constexpr uint64_t AwakeBytesMax(uint64_t host_bytes, uint64_t index_bytes) {
  const uint64_t bytes = BlocksMax(host_bytes) * kIndexBytesAwake;
  return bytes < index_bytes / 2 ? bytes : index_bytes / 2;
}
inline constexpr uint64_t kAwakePercentBusy = 87;

// Limits the removals that Explain can give a reason for. They use a sixteenth of the memory of
// awake blocks, at most 20 MiB.
inline constexpr uint64_t kRemovalBytes = 20;
inline constexpr uint64_t kRemovalsMax = uint64_t{1} << 20;
inline constexpr uint64_t RemovalsMax(uint64_t awake_bytes) {
  const uint64_t removals = awake_bytes / 16 / kRemovalBytes;
  return removals < 1 ? 1 : removals > kRemovalsMax ? kRemovalsMax : removals;
}

// Limits the hints from clients on how long blocks are worth keeping; shared. They use a sixteenth
// of the memory of awake blocks, at most 12 MiB.
inline constexpr uint64_t kHintBytes = 192;
inline constexpr uint64_t kHintsMax = 65'536;
inline constexpr uint64_t HintsMax(uint64_t awake_bytes) {
  const uint64_t hints = awake_bytes / 16 / kHintBytes;
  return hints < 1 ? 1 : hints > kHintsMax ? kHintsMax : hints;
}
inline constexpr uint32_t kHintSecondsMax = 604'800;  // the longest duration of a hint: a week
inline constexpr uint32_t kRetainPriorityMax = 5;
// The time between saves of changed hints to a tier that survives restarts.
inline constexpr uint32_t kHintsSavedMs = 10'000;

// --- Host memory
inline constexpr uint64_t kHostBytesMin = 16_MiB;
inline constexpr uint64_t kHostBytesMax = 4 * kTiB;
inline constexpr uint64_t kTransferBytesMax = codecs::kImageBytesMax;
// Staging is in the same arena as the host tier, but has its own budget. It holds the payloads of
// running puts, images that are being written, and answers that are being made. It must have room
// for a put, its image and a get's answer, each of the largest size.
inline constexpr uint64_t kStagingBytesMin = 3 * kTransferBytesMax;
inline constexpr uint64_t kStagingBytesMax = 1_GiB;
inline constexpr uint64_t StagingBytes(uint64_t host_bytes) {
  const uint64_t bytes = host_bytes / 8;
  return bytes < kStagingBytesMin   ? kStagingBytesMin
         : bytes > kStagingBytesMax ? kStagingBytesMax
                                    : bytes;
}
// Puts are admitted until their payloads use this part of staging.
inline constexpr uint64_t kPutStagingPercentMax = 60;
// When the host tier is filled above the high watermark, upkeep evicts down to the low one, so that
// puts seldom have to evict.
inline constexpr uint64_t kHighWatermarkPercent = 97;
inline constexpr uint64_t kLowWatermarkPercent = 95;

// --- Loans: clients on this host read images in place, in the arena
// (docs/internals/adr/0030-one-host-one-memory.md). A loan pins the image, as a lease does. Above
// these limits the client gets a copy.
inline constexpr uint32_t kLoanMsMax = 10'000;   // or the get's deadline, if earlier
inline constexpr uint64_t kLentPercentMax = 25;  // the part of the host tier that may be lent
inline constexpr uint64_t kLentPercentPerSessionMax = 12;
inline constexpr size_t kLoansPerSessionMax = 256;
// Images that were read into staging are lent only from the part of it above its minimum, and for a
// shorter time, because running puts and gets need staging.
inline constexpr uint32_t kStagingLoanMsMax = 1'000;
inline constexpr uint64_t kLentStagingPercentMax = 10;
inline constexpr uint64_t LentStagingBytesMax(uint64_t staging_bytes) {
  const uint64_t above = staging_bytes < kStagingBytesMin ? 0 : staging_bytes - kStagingBytesMin;
  const uint64_t share = staging_bytes / 100 * kLentStagingPercentMax;
  return share < above ? share : above;
}
// The places of one loan. A slice has one place per layer and image, or fewer.
inline constexpr size_t kLentPlacesMax = 256;
static_assert(kLentPlacesMax <= proto::kLentPlacesMax);
// A lane answers with an image only if the image's header and directory have at most this size. It
// parses them itself, and other transfers wait meanwhile.
inline constexpr uint64_t kPrefixBytesAtOnce = 64_KiB;

// Payloads up to these sizes are finished by the lane itself, without the path pool. The first
// limit is for a payload in source form whose image is made in place, the second for all others.
// Either takes about as long as copying a piece of a transfer (transport/local/lane.h).
inline constexpr uint64_t kRawPutBytesAtOnce = 1_MiB;
inline constexpr uint64_t kPutBytesAtOnce = 64_KiB;

// --- Path pool
inline constexpr int kPathThreadsMax = 64;
inline constexpr size_t kPathPutsMax = 256;  // puts that wait for a thread
// Gets that wait for a thread. Each is a request in a peer's window and has a deadline.
inline constexpr size_t kPathGetsMax = 8192;
// A waiting put runs after this many gets in a row.
inline constexpr size_t kGetsPerPut = 16;
// The number of gets, and of puts, for which memory is allocated at start.
inline constexpr size_t kOpsAtStart = 64;
// If more jobs than this are queued, puts store their blocks raw, and upkeep encodes them later.
inline constexpr size_t kPathQueueBusy = 64;

// --- Reads of colder tiers

// Gets that wait for a read. Each is a request in a peer's window.
inline constexpr size_t kWaitingGetsMax = 8192;
// Running reads use at most this part of the host tier: an eighth.
inline constexpr uint64_t kPromotedShareOfHost = 8;
// A slice is read without the rest of its image only if the image has at least this size
// (SliceReads in service/get/promotions.h). A smaller image is read completely in less time than a
// second read takes.
inline constexpr uint64_t kSlicedImageBytesMin = 256_KiB;
inline constexpr uint64_t kSlicePageBytes = 4_KiB;  // reads begin and end at multiples of it
// Two parts are read together if the gap between them is smaller.
inline constexpr uint64_t kSliceGapBytesMax = 16_KiB;
inline constexpr size_t kSlicePartsMax = 16;      // parts of one image that are read at once
inline constexpr size_t kSlicedCopiesMax = 4096;  // with remembered slices, 16 bytes each
// Limit for the bytes of running read-aheads, but one image may always be read. A read-ahead begins
// only while all reads together use at most half of their limit.
inline constexpr uint64_t kPrefetchBytesMax = 8_MiB;
inline constexpr size_t kPrefetchesMax = 2 * kKeysPerCallMax;  // slices in the queue; shared
// A get of a leased block starts read-aheads of this many bytes of the following blocks, but of at
// least one block.
inline constexpr uint64_t kReadAheadBytesMax = 16_MiB;
inline constexpr uint64_t kReadAheadBlocksMax = 16;

// --- SSD tier: limits of each device

inline constexpr size_t kSsdDevicesMax = 16;
inline constexpr size_t kDoorsMax = 64;  // folders that --door names
// Deletions that are kept for absent devices. Each takes 80 bytes on each device and about 130
// bytes of memory. A device that missed more deletions starts empty.
inline constexpr size_t kDeletionsMax = 65536;
// At shutdown, the longest wait for a device that makes no progress, and the longest duration of
// the whole shutdown.
inline constexpr uint32_t kDrainStallMs = 2'000;
inline constexpr uint32_t kStopMs = 3'000;
inline constexpr uint64_t kSsdBytesMin = 256_MiB;
inline constexpr uint64_t kSsdBytesMax = 256 * kTiB;
// The ledger has room for one image per this many bytes of the budget.
inline constexpr uint64_t kSsdBytesPerImageMin = 16_KiB;
// Returns the default number of images of a device. On a small drive, all images may be small. On a
// large drive, many small images would make the index too large.
inline constexpr uint64_t SsdImagesAuto(uint64_t budget_bytes) {
  const uint64_t small = budget_bytes / 32_KiB, large = budget_bytes / 512_KiB;
  const uint64_t bounded = small < (uint64_t{1} << 19) ? small : uint64_t{1} << 19;
  return large < bounded ? bounded : large;
}
// Returns the size of one of the ledger's two write buffers.
inline constexpr uint64_t SsdWriteBufferBytes(uint64_t budget_bytes) {
  const uint64_t bytes = budget_bytes / 1024;
  return bytes < 3_MiB ? 3_MiB : bytes > 48_MiB ? 48_MiB : bytes;
}
// The size of a segment is the budget divided by this number, within the bounds below. Large
// segments are reclaimed in larger units; small segments limit the size of images.
inline constexpr uint64_t kSsdSegmentsMin = 64;
inline constexpr uint64_t kSsdSegmentBytesMin = 16_MiB;
inline constexpr uint64_t kSsdSegmentBytesMax = 256_MiB;

// --- Transfers of a drive

// A read takes 0.3 ms, plus 0.15 ms for each MiB of running writes. Running transfers of 4 MiB in
// total keep a drive busy.
inline constexpr uint64_t kIoPieceBytes = 4_MiB;  // the kernel would split larger ones
inline constexpr uint64_t kIoReadInflightBytes = 8_MiB;
inline constexpr uint64_t kIoWriteInflightBytes = 8_MiB;
inline constexpr uint64_t kIoInflightBesideReadsBytes = 2_MiB;
// The limit for transfers that run beside reads still holds for this time after the last read.
inline constexpr uint32_t kIoReadsLingerMs = 5;
inline constexpr size_t kIoQueueMax = 4096;      // unfinished transfers
inline constexpr int kIoInterruptionsMax = 100;  // signals that may interrupt one piece
inline constexpr int kIoReadThreads = 4;         // if io_uring is refused
inline constexpr int kIoWriteThreads = 2;

// --- GPU
inline constexpr uint64_t kGpuBytesMin = 64_MiB;
inline constexpr uint64_t kGpuBytesMax = kTiB;
inline constexpr uint64_t kGpuDeviceMax = 63;  // CUDA's device number
inline constexpr size_t kGpuQueueMax = 4096;   // waiting transfers, in each direction
inline constexpr size_t kGpuBatchMax = 16;     // transfers on a stream at once
// A device counts as failed if one batch of transfers, or one phase of a batch of coding, takes
// longer.
inline constexpr uint32_t kGpuLateMs = 5'000;
// The codec's part of the device's memory is an eighth, within these bounds. It is used for two
// batches. 1 GiB has room for the sources, slots and images of 15 whole blocks of an 8B model, of
// 17 MiB each.
inline constexpr uint64_t kGpuCodecShare = 8;
inline constexpr uint64_t kGpuCodecBytesMin = 32_MiB;
inline constexpr uint64_t kGpuCodecBytesMax = 2 * kGiB;
inline constexpr uint64_t GpuCodecBytes(uint64_t gpu_bytes) {
  const uint64_t bytes = gpu_bytes / kGpuCodecShare;
  return bytes < kGpuCodecBytesMin   ? kGpuCodecBytesMin
         : bytes > kGpuCodecBytesMax ? kGpuCodecBytesMax
                                     : bytes;
}
// The smallest source that the device codes. A CPU core codes a smaller one while launches and
// copies run: about 50 us (an estimate).
inline constexpr uint64_t kGpuCodedBytesMin = 128_KiB;
inline constexpr size_t kGpuCodecQueueMax = 256;  // waiting images, like the path pool's jobs
// Limit for the codec's continuations in the path pool: the waiting images plus the images of two
// batches.
inline constexpr size_t kGpuCodecJobsMax = kGpuCodecQueueMax + 2 * size_t{64};
// If the device has not coded an image after this time, the CPU codes it. The CPU also codes it
// after half of the time that the image's owner has left.
inline constexpr uint32_t kGpuCodecPatienceMs = 500;
// For copies to the device:
// - the number of blocks whose reads are remembered, 16 bytes each
// - the number of reads after which a block is copied; a read from a drive counts as several reads
// - the number of blocks that may wait to be copied
inline constexpr size_t kReadBlocksMax = 16'384;
inline constexpr uint32_t kReadsPerDeviceCopy = 2;
inline constexpr size_t kDeviceCopiesWaitingMax = 4096;
// Limit for copies in transit to the device, with the same values as for write-back. The host
// copies of these blocks cannot be evicted meanwhile.
inline constexpr uint64_t kDeviceCopyBytesMax = 32_MiB;
inline constexpr uint64_t kDeviceCopyShareOfHost = 8;

// --- Write-back to the SSD tier

// Limit for the images that are being written: this number of bytes, but at most an eighth of the
// host tier, and always at least one image. Their host copies cannot be evicted meanwhile.
inline constexpr uint64_t kWriteDownBytesMax = 32_MiB;
inline constexpr uint64_t kWriteDownShareOfHost = 8;
// Puts that wait to be durable. Each is a request in a peer's window.
inline constexpr size_t kDurableWaitsMax = 8192;

// --- The scrubber

// Without a configured rate, the scrubber reads the whole tier in this many days. The rate stays
// within these limits in bytes per second.
inline constexpr uint64_t kScrubPassDays = 10;
inline constexpr uint64_t kScrubRateBytesMin = 64_KiB;
inline constexpr uint64_t kScrubRateBytesMax = 16_MiB;
// Limit for the configured rate.
inline constexpr uint64_t kScrubRateBytesCeiling = uint64_t{1} << 30;
// Minimum time from the start of one pass to the start of the next.
inline constexpr uint32_t kScrubPassMsMin = 86'400'000;
// Limit for an Admin.Verify, which reads all copies.
inline constexpr uint32_t kVerifyMsMax = 86'400'000;

// --- The write budget

// At its start, the daemon may use at once one day's budget divided by this number.
inline constexpr uint64_t kWriteBudgetStartShare = 8;
// The number of recently seen blocks that are remembered, 4 bytes each.
inline constexpr uint64_t kWriteBudgetSeenMax = uint64_t{1} << 22;

static_assert(kKeysPerCallMax <= kLeasedImagesMax / 2, "a tenant alone can lease one Match");
static_assert(kKeysPerCallMax <= kPrefetchesMax / 2, "a tenant alone can name one call's blocks");
static_assert(kKeysPerCallMax <= kWaitedKeysMax / 2, "a tenant alone can let one Match wait");
static_assert(kLeasesPerSessionMax <= kLeasesMax / 2 && kWaitersPerSessionMax <= kWaitersMax / 2,
              "a session alone is held up by its own limits only");
static_assert(kMatchWorkMax >= 16 * kKeysPerCallMax, "every key, eight slices, one group");
static_assert(kRunClimbMax < kVisitsPerHoldMax, "a search for a run fits a hold");
static_assert(codecs::kImagesPerBlockMax < kVisitsPerHoldMax, "a block fits a hold");
static_assert(kLeaseMs <= kLeaseMsMax);
static_assert(kLowWatermarkPercent < kHighWatermarkPercent && kHighWatermarkPercent < 100);
static_assert(kPinnedPercentMax < kLowWatermarkPercent, "upkeep can reach the low watermark");
static_assert(kPinnedPercentMax + kLentPercentMax < kLowWatermarkPercent,
              "leases and loans leave "
              "what upkeep evicts");
static_assert(kPathQueueBusy < kPathPutsMax);
static_assert(kPutBytesPerSessionMax >= 2 * kTransferBytesMax);
static_assert(kStagingBytesMin <= kStagingBytesMax);
static_assert(kStagingBytesMin / 100 * kPutStagingPercentMax > kTransferBytesMax,
              "the largest payload can be admitted");
static_assert(kSideObjectBytesMax <= kSideObjectsBytesMax / 2, "a tenant alone can have one");
static_assert(kSideObjectBytesMax <= kUploadBytesPerTenantMax);
static_assert(kSideObjectPartBytesMax + 4_KiB <= kControlMessageBytesMax);
static_assert(kGenerationListBytesMax + 4_KiB <= kControlMessageBytesMax, "one Hello fits");
static_assert(kPolicyListBytesMax + 8_KiB <= kControlMessageBytesMax, "one TellPolicies fits");
static_assert(kKeysPerCallMax * 34 + 64_KiB <= kControlMessageBytesMax, "one Match fits");
static_assert(kWaitersPerSessionMax < kCallsPerConnectionMax, "a client whose calls wait can ask");
static_assert(kDataDeadlineMs <= kDeadlineMsMax);
static_assert(kGpuCodecBytesMin < kGpuBytesMin);
static_assert(2 * kGpuCodecPatienceMs < kDataDeadlineMs && kGpuCodecPatienceMs < kGpuLateMs);
static_assert(kIoPieceBytes <= kIoReadInflightBytes && kIoPieceBytes <= kIoWriteInflightBytes);

}  // namespace cairn::limits
