// SPDX-License-Identifier: Apache-2.0
#pragma once
// Mines banks (for the recipe patternkv) and profiles (for cairn and cairn-hot) on a device, from
// KV in an engine's paged cache.
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

// The KV of one text in the engine's cache.
struct DeviceText {
  // Full blocks of the engine, in order. The tokens of an entry that is kBlockSkipped are skipped.
  std::span<const int64_t> blocks{};
  uint64_t first_position = 0;  // position of the first block's first token
};

struct DeviceSample {
  uint32_t group = 0;                   // group of the space
  DeviceCache cache{};                  // has the whole group; only read
  std::span<const DeviceText> texts{};  // at most 65535 tokens, including skipped ones
  // Not null. The call reads the cache after all work that is already on the stream. The rules of
  // DeviceRequest say when you may close the stream.
  kernels::Stream stream = nullptr;
  absl::Duration timeout = absl::ZeroDuration();  // zero: the default for a batch
};

struct ProfileOptions {
  // Rates in tenths of a bit, ascending. Empty: 2.3, 3.0, 4.3 and the rate of the space's recipe.
  std::span<const uint16_t> rates{};
  // The mean of q^2 (squared queries) for each channel of K, after RoPE: [layer][head][k_dim].
  // Values are finite and not negative. Empty means unknown.
  std::span<const float> query_squares{};
};

// Thread-safety: Owned by one thread at a time. Space and device must outlive it.
class DeviceMiner {
 public:
  // Allocates nothing.
  static std::unique_ptr<DeviceMiner> Make(Space& space, kernels::Runtime& device);
  // Waits until the device has finished the work of calls that timed out, however long that takes.
  ~DeviceMiner();
  DeviceMiner(const DeviceMiner&) = delete;
  DeviceMiner& operator=(const DeviceMiner&) = delete;

  // Both functions wait until the device has finished. They do not call the daemon: use
  // PutSideObject() to install the result. Errors: InvalidArgument (names the field, or says that
  // no token can be used), ResourceExhausted (host or device has no room), DeadlineExceeded (the
  // device was late; the work on its stream still completes), Unavailable (the device has failed,
  // and stays unavailable).
  //
  // Mines the same bank as codecs::MineBank() from the same tokens (docs/recipes/patternkv.md).
  // Skips blocks that contain one of the first four tokens of a chain. These tokens differ from all
  // others, and patterns for them would make the bank worse.
  absl::StatusOr<std::vector<std::byte>> MineBank(const DeviceSample& sample, uint32_t patterns);
  // Mines the same profile as codecs::ProfileMiner from the same strips (docs/recipes/cairn.md). A
  // strip has 128 tokens, but fewer before a skipped block, at the end of a text, and at the end of
  // each quarter of the sample's blocks. 512 tokens are enough for a usable profile, and a few
  // thousand for a good one.
  absl::StatusOr<std::vector<std::byte>> MineProfile(const DeviceSample& sample,
                                                     const ProfileOptions& options = {});

 private:
  class Impl;
  explicit DeviceMiner(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace cairn
