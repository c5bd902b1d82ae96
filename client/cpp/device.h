// SPDX-License-Identifier: Apache-2.0
#pragma once
// Moves blocks between the store and an engine's paged cache on a device. The device encodes and
// decodes, so only encoded images cross the wire.
//
//   const auto device = kernels::OpenCudaRuntime(0);
//   const auto mover = DeviceMover::Make(space, *device, {.group = 0});
//   const auto got = (*mover)->Get({.keys = keys, .lease = lease, .cache = cache, .table = blocks,
//                                   .stream = stream});
//
// A get verifies every image when it arrives, and again on the device, because the copy to the
// device could damage it. While the device works on one batch of images, a get receives the next
// batch, and a put sends the previous one. On the host, images pass through the region of a data
// connection if the region has room for two batches. A batch takes kBatchImages times
// Space::ImageBytesMax() of the slice, and movers use at most half of ConnectOptions::region_bytes.
// If there is no room, images pass through host memory of the device driver. This costs one more
// copy on a `unix:` connection.

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

// An engine's paged cache on a device. Borrows everything. Addresses are device addresses.
struct DeviceCache {
  // Number of tokens in one of the engine's blocks. The space's block size is a multiple of it.
  uint32_t tokens_per_block = 0;
  int64_t block_count = 0;  // number of blocks in the engine: at most 2^31 - 1
  // Planes of the slice to move. A page is a block. Kinds with one plane use only `k`.
  kernels::PagedPlane k, v;
};

// Consecutive blocks of one chain.
struct DeviceRequest {
  std::span<const BlockKey> keys{};
  LeaseToken lease{};  // for a get; all zero: none
  DeviceCache cache{};
  // The engine's blocks: all blocks of the first key, then all blocks of the second, and so on. In
  // a get, kBlockSkipped skips the tokens of that block.
  std::span<const int64_t> table{};
  // Not null. The call's work runs after all work that is already on the stream, and before all
  // later work. You may close the stream once the call has returned. If the call has timed out,
  // close the stream only after the next call has returned OK, or after the mover is destroyed.
  kernels::Stream stream = nullptr;
  // For a put:
  BlockKey parent{};            // parent of the first key
  uint64_t first_position = 0;  // position of the first key
  bool is_derived = false;
  bool is_durable = false;
  std::span<const BlockNames> names{};            // one entry per key; empty: none
  absl::Duration timeout = absl::ZeroDuration();  // zero: the default for a batch
};

// Thread-safety: Owned by one thread at a time. Space and device must outlive it.
class DeviceMover {
 public:
  // The number of images in each of the two batches on the device.
  static constexpr uint32_t kBatchImages = 8;

  // Makes a mover for a slice of blocks and allocates its memory. The first puts and gets allocate
  // the rest: memory for side objects, for staging images and for encoding. Errors:
  // ResourceExhausted (host or device has no room), InvalidArgument (no such slice, or a group that
  // is neither KV nor latent).
  static absl::StatusOr<std::unique_ptr<DeviceMover>> Make(Space& space, kernels::Runtime& device,
                                                           const GroupSlice& slice);
  // Waits until the device has finished the work of calls that timed out, however long that takes.
  ~DeviceMover();
  DeviceMover(const DeviceMover&) = delete;
  DeviceMover& operator=(const DeviceMover&) = delete;

  // Both functions wait until the move is complete. After a get, the blocks are in the cache. After
  // a put, the store has them, and the cache may be used again. They return a status for each key,
  // as Space::GetBatch() and PutBatch() do. If a get of a key fails, its blocks in the cache are
  // unspecified. Errors: InvalidArgument, for all keys (the message names the field of the
  // request), DeadlineExceeded (the daemon or the device was late; the work on the stream still
  // completes, before later work), Unavailable (the device has failed; then all later calls of this
  // mover return Unavailable, but the store and other movers continue).
  //
  // In a put, the device encodes the blocks with the space's recipe if there are kernels for that
  // recipe (kernels/encode_plan.h). Otherwise the blocks travel in source form, and the daemon
  // encodes them.
  std::vector<absl::StatusOr<GetResult>> Get(const DeviceRequest& request);
  std::vector<absl::StatusOr<PutResult>> Put(const DeviceRequest& request);

  bool is_lost() const;

 private:
  class Impl;
  explicit DeviceMover(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace cairn
