// SPDX-License-Identifier: Apache-2.0
#pragma once
// Every maximum of the daemon, in one place, with how they relate. Going over one is an answer
// (ResourceExhausted, InvalidArgument or a shorter result), never growth. Limits of the format are
// in codecs/types/shape.h, of the transports in transport/transport.h.
//
// A maximum that is called "shared" is of all tenants together, and each may hold the share of it
// that index/tenant_shares.h says: half while it is alone.

#include <cstddef>
#include <cstdint>

#include "base/units.h"
#include "codecs/types/shape.h"
#include "proto/block_key.h"
#include "proto/frame.h"
#include "proto/side_object.h"

namespace cairn::limits {

// --- Spaces and sessions
// -----------------------------------------------------------------------------
inline constexpr size_t kSpacesMax = 1024;         // shared
inline constexpr uint32_t kSpaceIdleMs = 600'000;  // without sessions, calls and blocks
inline constexpr size_t kGroupsPerSpaceMax = proto::kGroupsMax;
inline constexpr size_t kTenantBytesMax = proto::kTenantBytesMax;
inline constexpr size_t kClientNameBytesMax = 128;
inline constexpr size_t kSessionsMax = 1024;                 // shared, as connections are
inline constexpr size_t kPeersPerSessionMax = 32;            // data-plane connections
inline constexpr size_t kPutsPerSessionMax = 64;             // admitted, not yet over
inline constexpr uint64_t kPutBytesPerSessionMax = 256_MiB;  // their staging

// --- Side objects, in memory beside the arena
inline constexpr uint64_t kSideObjectBytesMax = proto::kSideObjectBytesMax;  // one
inline constexpr uint64_t kSideObjectsBytesMax = 256_MiB;                    // shared
inline constexpr size_t kSideObjectsMax = 8192;                              // shared
inline constexpr size_t kSideObjectPartBytesMax = 2_MiB;  // of one part of a put, of one get
inline constexpr uint64_t kUploadBytesMax = 64_MiB;       // parts of puts not yet over, all
inline constexpr uint64_t kUploadBytesPerTenantMax = 32_MiB;
inline constexpr uint64_t kQuerySquaresBytesMax = 64_MiB;  // sums of squared queries; shared
// Channels of K and V of a group that upkeep mines a profile of, which takes 80 MiB while it does.
inline constexpr uint64_t kMinedChannelsMax = uint64_t{1} << 20;

// --- Calls of the control plane
// A message. 65,536 keys take 2.3 MB, a part of a side object 2 MiB.
inline constexpr int kControlMessageBytesMax = 3'000'000;
inline constexpr size_t kSpecBytesMax = 256_KiB;  // of an OpenSpace; of others 64 KiB beside a list
// What arriving requests and leaving replies may hold. A request counts as the largest until it is
// there. Past it the calls that have held longest go, once they have held kCallGraceMs.
inline constexpr uint64_t kControlBytesMax = 192_MiB;
inline constexpr uint32_t kCallGraceMs = 250;
inline constexpr size_t kCallsMax = 4096;  // that hold something
inline constexpr int kCallsPerConnectionMax = 128;
// Connections that have sent nothing, and those without a session, beside those that have one: for
// a newer one the oldest goes, of the user or host that has most. Those of the data plane without a
// hello are bounded by transport/local/greeter.h.
inline constexpr size_t kSilentConnectionsMax = 256;
inline constexpr size_t kSessionlessConnectionsMax = 256;
inline constexpr size_t kAdminConnectionsMax = 64;  // of either, at a listener of their own
inline constexpr int kReflectionThreadsMax = 8;     // each serves one stream of reflection

// --- Match, leases, waiters
// --------------------------------------------------------------------------
inline constexpr size_t kKeysPerCallMax = 65536;
// Looks at keys, groups and images of one Match; past it the answer is a shorter prefix.
inline constexpr size_t kMatchWorkMax = size_t{1} << 20;
// Of those, and of images pinned, leased or given back, while the index is held once: a call that
// has more to do lets go of the index in between.
inline constexpr size_t kVisitsPerHoldMax = 1024;
// Of one eviction, once every leaf is pinned: holds in which their ancestors are looked at.
inline constexpr int kEvictionSearchesMax = 16;
// Of one look for an image that the lasting tier lacks: holds in which those that wait for the
// block before are passed over.
inline constexpr int kUncopiedSearchesMax = 16;
// Plans of one Match, of which each but the last met blocks that went or leases that came
// meanwhile.
inline constexpr int kMatchPlansMax = 16;
inline constexpr size_t kLeasesMax = 16384;  // shared
inline constexpr size_t kLeasesPerSessionMax = 1024;
inline constexpr size_t kLeasedImagesMax = size_t{1} << 21;  // shared; bounds leases' memory
inline constexpr uint32_t kLeaseMs = 60'000;                 // until renewed by the owner's stream
inline constexpr uint32_t kLeaseMsMax = 600'000;             // since it was taken
inline constexpr uint64_t kPinnedPercentMax = 50;            // of a tier, by leases; shared
inline constexpr size_t kWaitersMax = 2048;                  // Match calls that wait; shared
inline constexpr size_t kWaitersPerSessionMax = 64;
inline constexpr size_t kWaitedKeysMax = 524'288;  // shared; bounds waiters' memory
inline constexpr uint32_t kWaitMsMax = 60'000;
inline constexpr size_t kWatchersMax = 64;         // WatchEvents calls, shared
inline constexpr size_t kEventsMax = 65'536;       // kept for them: 6 MiB
inline constexpr int64_t kEventsKeptMs = 300'000;  // once nobody watches
inline constexpr size_t kEventsPerBatchMax = 1024;
inline constexpr size_t kListBlocksMax = 10'000;  // of one page of ListBlocks
inline constexpr size_t kListBlocksDefault = 1000;

// --- Deadlines
// ---------------------------------------------------------------------------------------
inline constexpr uint32_t kDataDeadlineMs = 2'000;  // of a data-plane request that names none
inline constexpr uint32_t kDeadlineMsMax = proto::kDeadlineMsMax;

// --- Index
// ------------------------------------------------------------------------------------------- At
// most one block a kBytesPerBlockMin of the host tier, so that tiny blocks cannot make the index
// larger than what it indexes; past it the least recently used block goes.
inline constexpr uint64_t kBytesPerBlockMin = 16_KiB;
inline constexpr uint64_t kBlocksMin = 1024;
inline constexpr uint64_t kBlocksMax = uint64_t{1} << 22;
inline constexpr uint64_t BlocksMax(uint64_t host_bytes) {
  const uint64_t blocks = host_bytes / kBytesPerBlockMin;
  return blocks < kBlocksMin ? kBlocksMin : blocks > kBlocksMax ? kBlocksMax : blocks;
}

// Images, which a block may have up to codecs::kImagesPerBlockMax of: past it, likewise.
constexpr uint64_t kImagesPerBlockMean = 4;
inline constexpr uint64_t ImagesMax(uint64_t blocks_max) {
  return blocks_max * kImagesPerBlockMean;
}

// Its memory: at most so much of a block that is on a drive only, with one image, the drive's own
// map included (docs/adr/0019-blocks-at-rest.md), and of one that is in memory
// too, with four images.
inline constexpr uint64_t kIndexBytesAtRest = 128;
inline constexpr uint64_t kIndexBytesAwake = 2_KiB;
inline constexpr uint64_t kIndexBytesMin = 16_MiB;
inline constexpr uint64_t kIndexBytesMax = kTiB;
// Of a budget, what blocks that are not at rest may take: half at most. Eviction begins at seven
// eighths of that, so that leases can wake some.
inline constexpr uint64_t AwakeBytesMax(uint64_t host_bytes, uint64_t index_bytes) {
  const uint64_t bytes = BlocksMax(host_bytes) * kIndexBytesAwake;
  return bytes < index_bytes / 2 ? bytes : index_bytes / 2;
}
inline constexpr uint64_t kAwakePercentBusy = 87;

// --- Host memory
// -------------------------------------------------------------------------------------
inline constexpr uint64_t kHostBytesMin = 16_MiB;
inline constexpr uint64_t kHostBytesMax = 4 * kTiB;
inline constexpr uint64_t kTransferBytesMax = codecs::kImageBytesMax;
// Staging is beside the host tier's bytes, in the same arena: payloads of puts in flight, images
// being written, answers being made. Room for a put and its image, and a get's answer, of the
// largest size.
inline constexpr uint64_t kStagingBytesMin = 3 * kTransferBytesMax;
inline constexpr uint64_t kStagingBytesMax = 1_GiB;
inline constexpr uint64_t StagingBytes(uint64_t host_bytes) {
  const uint64_t bytes = host_bytes / 8;
  return bytes < kStagingBytesMin   ? kStagingBytesMin
         : bytes > kStagingBytesMax ? kStagingBytesMax
                                    : bytes;
}
// Of the staging bytes, that payloads of puts are admitted up to.
inline constexpr uint64_t kPutStagingPercentMax = 60;
// Upkeep evicts from the high watermark down to the low one, so that a put seldom has to.
inline constexpr uint64_t kHighWatermarkPercent = 97;
inline constexpr uint64_t kLowWatermarkPercent = 95;

// --- Loans: images that clients on this host read where they lie
// (docs/adr/0030-one-host-one-memory.md). A loan pins what it lends, as a lease does; past these
// the answer is a copy.
inline constexpr uint32_t kLoanMsMax = 10'000;   // or until the get's own deadline
inline constexpr uint64_t kLentPercentMax = 25;  // of the host tier, by all loans
inline constexpr uint64_t kLentPercentPerSessionMax = 12;
inline constexpr size_t kLoansPerSessionMax = 256;
// Of header and directory of an image that a lane answers with: what it parses in between of
// others' transfers.
inline constexpr uint64_t kPrefixBytesAtOnce = 64_KiB;

// --- Path pool
// ---------------------------------------------------------------------------------------
inline constexpr int kPathThreadsMax = 64;
inline constexpr size_t kPathPutsMax = 256;  // that wait for a thread
// Likewise; each is a request of a peer's window, and its deadline bounds the wait.
inline constexpr size_t kPathGetsMax = 8192;
// That are taken in a row while a put waits.
inline constexpr size_t kGetsPerPut = 16;
// With more jobs waiting than this, puts keep their block raw and upkeep encodes it later.
inline constexpr size_t kPathQueueBusy = 64;

// --- Reads of colder tiers
// Gets that wait for one; each is a request of a peer's window.
inline constexpr size_t kWaitingGetsMax = 8192;
// Those under way take at most this part of the host tier's bytes, one in eight.
inline constexpr uint64_t kPromotedShareOfHost = 8;
// Slices of images that are read alone (service/get/slice_reads.h): of images of at least so
// many bytes. A smaller one is read whole in less time than a second read takes.
inline constexpr uint64_t kSlicedImageBytesMin = 256_KiB;
inline constexpr uint64_t kSlicePageBytes = 4_KiB;     // what a read is a multiple of
inline constexpr uint64_t kSliceGapBytesMax = 16_KiB;  // what is read rather than two parts
inline constexpr size_t kSlicePartsMax = 16;           // of one image, that are read at a time
inline constexpr size_t kSlicedCopiesMax = 4096;       // remembered, of 16 bytes
// Reads ahead of gets: those under way take at most so many bytes, one image at least, and begin
// only while all reads together take at most half of that part.
inline constexpr uint64_t kPrefetchBytesMax = 8_MiB;
inline constexpr size_t kPrefetchesMax = 2 * kKeysPerCallMax;  // slices that wait; shared
// What a get of a leased block reads ahead: at most so many of the blocks that follow, one at
// least.
inline constexpr uint64_t kReadAheadBytesMax = 16_MiB;
inline constexpr uint64_t kReadAheadBlocksMax = 16;

// --- SSD tier. Of each device:

inline constexpr size_t kSsdDevicesMax = 16;
// Deletions that are kept for devices that are away, of 80 bytes on each device and some 130 of
// memory. A device that missed more of them starts empty.
inline constexpr size_t kDeletionsMax = 65536;
// At the end of the process: writing down waits so long for a device that does nothing, and the
// process so long in all.
inline constexpr uint32_t kDrainStallMs = 2'000;
inline constexpr uint32_t kStopMs = 3'000;
inline constexpr uint64_t kSsdBytesMin = 256_MiB;
inline constexpr uint64_t kSsdBytesMax = 256 * kTiB;
// Its ledger has room for no more images than one for each so many bytes.
inline constexpr uint64_t kSsdBytesPerImageMin = 16_KiB;
// Images of a device where nobody says: small drives are filled with small images too; of large
// ones the index would be too large.
inline constexpr uint64_t SsdImagesAuto(uint64_t budget_bytes) {
  const uint64_t small = budget_bytes / 32_KiB, large = budget_bytes / 512_KiB;
  const uint64_t bounded = small < (uint64_t{1} << 19) ? small : uint64_t{1} << 19;
  return large < bounded ? bounded : large;
}
// A write buffer of its ledger, of which there are two.
inline constexpr uint64_t SsdWriteBufferBytes(uint64_t budget_bytes) {
  const uint64_t bytes = budget_bytes / 1024;
  return bytes < 3_MiB ? 3_MiB : bytes > 48_MiB ? 48_MiB : bytes;
}
// A segment is the budget by that many, within these bounds: large ones are reclaimed in larger
// steps, small ones take smaller images.
inline constexpr uint64_t kSsdSegmentsMin = 64;
inline constexpr uint64_t kSsdSegmentBytesMin = 16_MiB;
inline constexpr uint64_t kSsdSegmentBytesMax = 256_MiB;

// --- Transfers of a drive
// A read takes 0.3 ms, and 0.15 ms more for each MiB of writes in flight; 4 MiB in flight are all
// that a drive needs to be busy.
inline constexpr uint64_t kIoPieceBytes = 4_MiB;  // the kernel would cut larger ones itself
inline constexpr uint64_t kIoReadInflightBytes = 8_MiB;
inline constexpr uint64_t kIoWriteInflightBytes = 8_MiB;
inline constexpr uint64_t kIoInflightBesideReadsBytes = 2_MiB;
// Reads count as there for that long after the last.
inline constexpr uint32_t kIoReadsLingerMs = 5;
inline constexpr size_t kIoQueueMax = 4096;      // transfers that are not over
inline constexpr int kIoInterruptionsMax = 100;  // of one piece, by signals
inline constexpr int kIoReadThreads = 4;         // where io_uring is refused
inline constexpr int kIoWriteThreads = 2;

// --- GPU
inline constexpr uint64_t kGpuBytesMin = 64_MiB;
inline constexpr uint64_t kGpuBytesMax = kTiB;
inline constexpr uint64_t kGpuDeviceMax = 63;  // by number, as CUDA counts them
inline constexpr size_t kGpuQueueMax = 4096;   // transfers that wait, each way
inline constexpr size_t kGpuBatchMax = 16;     // that are on a stream at a time
// A device that needs longer for them, or for a step of a batch that is coded, is out.
inline constexpr uint32_t kGpuLateMs = 5'000;
// Of its memory, what its codec has: an eighth, within these bounds, in two batches. One of 1 GiB
// has room for 15 whole blocks of an 8B model, 17 MiB each: source, slots and image of each.
inline constexpr uint64_t kGpuCodecShare = 8;
inline constexpr uint64_t kGpuCodecBytesMin = 32_MiB;
inline constexpr uint64_t kGpuCodecBytesMax = 2 * kGiB;
inline constexpr uint64_t GpuCodecBytes(uint64_t gpu_bytes) {
  const uint64_t bytes = gpu_bytes / kGpuCodecShare;
  return bytes < kGpuCodecBytesMin   ? kGpuCodecBytesMin
         : bytes > kGpuCodecBytesMax ? kGpuCodecBytesMax
                                     : bytes;
}
// Of source: less takes a core no longer than launches and copies take, some 50 us (an estimate).
inline constexpr uint64_t kGpuCodedBytesMin = 128_KiB;
inline constexpr size_t kGpuCodecQueueMax = 256;  // images that wait, as the path pool's jobs
// With those of two batches: what it may hand to the path pool at once.
inline constexpr size_t kGpuCodecJobsMax = kGpuCodecQueueMax + 2 * size_t{64};
// What the device has not coded by then, or by half of what its owner has left, a core does.
inline constexpr uint32_t kGpuCodecPatienceMs = 500;
// Blocks that gets read: how many are remembered, of 16 bytes; after how many reads one is copied
// to the device, of which one that had to come from a drive counts as so many; and how many wait.
inline constexpr size_t kReadBlocksMax = 16'384;
inline constexpr uint32_t kReadsPerDeviceCopy = 2;
inline constexpr size_t kDeviceCopiesWaitingMax = 4096;
// On their way to the device, whose host copies cannot go meanwhile: as of the way down.
inline constexpr uint64_t kDeviceCopyBytesMax = 32_MiB;
inline constexpr uint64_t kDeviceCopyShareOfHost = 8;

// --- The way down
// Images being written to the lasting tier, whose host copies cannot go meanwhile: at most so many
// bytes, and at most this part of the host tier's, one in eight; one image at least.
inline constexpr uint64_t kWriteDownBytesMax = 32_MiB;
inline constexpr uint64_t kWriteDownShareOfHost = 8;
// Puts that wait until they are durable; each is a request of a peer's window.
inline constexpr size_t kDurableWaitsMax = 8192;

// --- The scrubber
// Without a rate of its own it reads the tier once in that many days, at these bytes a second at
// least and at most.
inline constexpr uint64_t kScrubPassDays = 10;
inline constexpr uint64_t kScrubRateBytesMin = 64_KiB;
inline constexpr uint64_t kScrubRateBytesMax = 16_MiB;
inline constexpr uint64_t kScrubRateBytesCeiling = uint64_t{1} << 30;  // that an operator may set
// From the beginning of one pass to that of the next, at least.
inline constexpr uint32_t kScrubPassMsMin = 86'400'000;
// Of an Admin.Verify, which reads all that there is.
inline constexpr uint32_t kVerifyMsMax = 86'400'000;

// --- The write budget
// Of a day's bytes, that a process begins with: one in so many.
inline constexpr uint64_t kWriteBudgetStartShare = 8;
inline constexpr uint64_t kWriteBudgetSeenMax = uint64_t{1} << 22;  // blocks remembered, 4 B each

static_assert(kKeysPerCallMax <= kLeasedImagesMax / 2, "a tenant alone can lease one Match");
static_assert(kKeysPerCallMax <= kPrefetchesMax / 2, "a tenant alone can name one call's blocks");
static_assert(kKeysPerCallMax <= kWaitedKeysMax / 2, "a tenant alone can let one Match wait");
static_assert(kLeasesPerSessionMax <= kLeasesMax / 2 && kWaitersPerSessionMax <= kWaitersMax / 2,
              "a session alone is held up by its own limits only");
static_assert(kMatchWorkMax >= 16 * kKeysPerCallMax, "every key, eight slices, one group");
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
static_assert(kKeysPerCallMax * 34 + 64_KiB <= kControlMessageBytesMax, "one Match fits");
static_assert(kWaitersPerSessionMax < kCallsPerConnectionMax, "a client whose calls wait can ask");
static_assert(kDataDeadlineMs <= kDeadlineMsMax);
static_assert(kGpuCodecBytesMin < kGpuBytesMin);
static_assert(2 * kGpuCodecPatienceMs < kDataDeadlineMs && kGpuCodecPatienceMs < kGpuLateMs);
static_assert(kIoPieceBytes <= kIoReadInflightBytes && kIoPieceBytes <= kIoWriteInflightBytes);

}  // namespace cairn::limits
