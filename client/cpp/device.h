// SPDX-License-Identifier: Apache-2.0
#pragma once
// Blocks between the store and an engine's paged cache on a device: images travel as they are and
// are decoded, and encoded, where the KV lies.
//
//   const auto device = kernels::OpenCudaRuntime(0);
//   const auto mover = DeviceMover::Make(space, *device, {.group = 0});
//   const auto got = (*mover)->Get({.keys = keys, .lease = lease, .cache = cache, .table = blocks,
//                                   .stream = stream});
//
// A get has every image verified when it arrives, and once more on the device, where a copy may
// have damaged it. While a batch of images is on the device the next one is on its way from the
// daemon; of a put, the one before is on its way to it. On the host images pass through memory of a
// data connection, where its region has room for two batches, each of kBatchImages times
// Space::ImageBytesMax() of the slice: at most half of ConnectOptions::region_bytes is given to
// movers. Else through memory of the driver, one copy more on a `unix:` connection.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/cpp/block_io.h"
#include "client/cpp/space.h"
#include "kernels/runtime.h"
#include "kernels/target.h"

namespace cairn {

// An engine's paged cache on a device. Borrows everything; addresses are the device's.
struct DeviceCache {
  uint32_t tokens_per_block = 0;  // of the engine's blocks: 1 and more, divides the space's
  int64_t block_count = 0;        // that the engine has: at most 2^31 - 1
  // Of the slice that is moved; page is block. Of kinds with one plane, `k` alone.
  kernels::PagedPlane k, v;
};

// Consecutive blocks of one chain.
struct DeviceRequest {
  std::span<const BlockKey> keys{};
  LeaseToken lease{};  // of a get; all zero: none
  DeviceCache cache{};
  // The engine's blocks: those of the first key, then those of the second, and so on. In a get
  // kBlockSkipped leaves the tokens of that one out.
  std::span<const int64_t> table{};
  // Not null. Work that is on it already is over before the cache is touched; what is put on it
  // after the call comes after all of the call's. It may be closed once the call has returned, but
  // after one that was late only once the next has been OK, or the mover is gone.
  kernels::Stream stream = nullptr;
  // Of a put:
  BlockKey parent{};            // of the first key
  uint64_t first_position = 0;  // likewise
  bool is_derived = false;
  bool is_durable = false;
  absl::Duration timeout = absl::ZeroDuration();  // zero: the default of a batch
};

// Thread-safety: Owned by one thread at a time. Space and device must outlive it.
class DeviceMover {
 public:
  // Images that are on the device at once, in each of two batches.
  static constexpr uint32_t kBatchImages = 8;

  // Moves that slice of blocks. Allocates all memory that it will need, but for that of side
  // objects, what images pass through and what encoding works in, which the first puts and gets do.
  // ResourceExhausted: host or device has no room for it. InvalidArgument: no such slice, or a
  // group that is no KV and no latent.
  static absl::StatusOr<std::unique_ptr<DeviceMover>> Make(Space& space, kernels::Runtime& device,
                                                           const GroupSlice& slice);
  // Waits for what a late call has left on its stream, however long that takes.
  ~DeviceMover();
  DeviceMover(const DeviceMover&) = delete;
  DeviceMover& operator=(const DeviceMover&) = delete;

  // Both wait: when they return, the blocks are in the cache, or the store has taken them and the
  // cache may be used anew. A status for each key, as of Space::GetBatch() and PutBatch(); of those
  // that are not OK, a get left the engine's blocks in any state. InvalidArgument, for all keys:
  // the field of the request that is wrong. DeadlineExceeded: also where the device was late; what
  // is on the stream then still comes to its end there, before what is put on it later.
  // Unavailable: the device failed. It is lost then, and all later calls say so; the store and
  // other movers go on.
  //
  // A put is encoded on the device with the recipe of the space, where there are kernels for it
  // (kernels/encode_plan.h), else it travels in source form and the daemon encodes it.
  std::vector<absl::StatusOr<GetResult>> Get(const DeviceRequest& request);
  std::vector<absl::StatusOr<PutResult>> Put(const DeviceRequest& request);

  bool is_lost() const;

 private:
  class Impl;
  explicit DeviceMover(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace cairn
