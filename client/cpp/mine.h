// SPDX-License-Identifier: Apache-2.0
#pragma once
// Banks and profiles, which the recipes patternkv, and cairn and cairn-hot, code with, mined from
// KV that lies in an engine's paged cache on a device, where it lies.
//
//   const auto miner = DeviceMiner::Make(space, *device);
//   const DeviceText texts[] = {{.blocks = blocks}};
//   const auto bank = miner->MineBank({.cache = cache, .texts = texts, .stream = stream}, 32);
//   space.PutSideObject(0, SideObjectKind::kBank, *bank);

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/cpp/device.h"
#include "client/cpp/space.h"
#include "kernels/runtime.h"

namespace cairn {

// KV of a text.
struct DeviceText {
  // The engine's, in order, and full. kBlockSkipped leaves the tokens of that one out.
  std::span<const int64_t> blocks{};
  uint64_t first_position = 0;  // of the first token of the first
};

struct DeviceSample {
  uint32_t group = 0;                   // of the space
  DeviceCache cache{};                  // of the whole group; only read. Any tokens_per_block does
  std::span<const DeviceText> texts{};  // at most 65535 tokens, those of skipped blocks too
  // Not null. Work that is on it already is over before the cache is read. It may be closed as that
  // of a DeviceRequest.
  kernels::Stream stream = nullptr;
  absl::Duration timeout = absl::ZeroDuration();  // zero: the default of a batch
};

struct ProfileOptions {
  // In tenths of a bit, ascending. Empty: 2.3, 3.0, 4.3 and that of the space's recipe.
  std::span<const uint16_t> rates{};
  // Mean q^2 of each channel of K as it is read, after RoPE: [layer][head][k_dim], finite and not
  // negative; empty: not known.
  std::span<const float> query_squares{};
};

// Thread-safety: Owned by one thread at a time. Space and device must outlive it.
class DeviceMiner {
 public:
  // Allocates nothing.
  static std::unique_ptr<DeviceMiner> Make(Space& space, kernels::Runtime& device);
  // Waits for what a late call has left on its stream, however long that takes.
  ~DeviceMiner();
  DeviceMiner(const DeviceMiner&) = delete;
  DeviceMiner& operator=(const DeviceMiner&) = delete;

  // Both wait, and call no daemon: PutSideObject() installs what they make. InvalidArgument: the
  // field that is wrong, or that no token has a code. ResourceExhausted: host or device has no
  // room. DeadlineExceeded: the device was late; what is on the stream comes to its end there.
  // Unavailable: the device failed, and then for good.
  //
  // The bank that codecs::MineBank() makes of the same tokens (docs/recipes/patternkv.md). Blocks
  // with one of the first four tokens of a chain are left out, too: what follows those does harm.
  absl::StatusOr<std::vector<std::byte>> MineBank(const DeviceSample& sample, uint32_t patterns);
  // The profile that codecs::ProfileMiner makes of the same strips (docs/recipes/cairn.md): 128
  // tokens each, and what is left before a skipped block, the end of a text or a quarter of the
  // sample's blocks. A few thousand tokens do, 512 are usable.
  absl::StatusOr<std::vector<std::byte>> MineProfile(const DeviceSample& sample,
                                                     const ProfileOptions& options = {});

 private:
  class Impl;
  explicit DeviceMiner(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace cairn
