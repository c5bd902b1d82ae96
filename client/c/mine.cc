// SPDX-License-Identifier: Apache-2.0
// The C ABI: mining banks and profiles from a cache on a device.
#include "client/cpp/mine.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status.h"
#include "client/c/cairn.h"
#include "client/c/convert.h"
#include "client/c/device_movers.h"
#include "client/c/device_plane.h"
#include "client/c/guard.h"
#include "client/c/handles.h"
#include "client/cpp/options.h"

struct cairn_mined {
  std::vector<std::byte> bytes;
};

namespace cairn::c {
namespace {

using Mined = absl::StatusOr<std::vector<std::byte>>;

// Calls `mine` with the sample.
absl::Status Mine(cairn_space* space, const cairn_sample* given,
                  absl::FunctionRef<Mined(DeviceMiner& miner, const DeviceSample& sample)> mine,
                  cairn_mined** mined) {
  CAIRN_RETURN_IF_ERROR(CheckPointer("space", space));
  CAIRN_RETURN_IF_ERROR(CheckStruct("sample", given));
  CAIRN_RETURN_IF_ERROR(CheckPointer("mined", mined));
  const cairn_sample known = ReadStruct(given);
  CAIRN_RETURN_IF_ERROR(CheckStruct("sample.cache", known.cache));
  CAIRN_RETURN_IF_ERROR(CheckPointer("sample.texts", known.texts, known.text_count));
  const cairn_paged_cache cache = ReadStruct(known.cache);
  if (cache.device != CAIRN_DEVICE_CUDA) {
    return absl::InvalidArgumentError(
        absl::StrCat("sample.cache.device is ", cache.device, ", expected 1: a CUDA device"));
  }
  CAIRN_ASSIGN_OR_RETURN(const PlacedSlice placed, space->space->Place({.group = known.group}));
  const uint64_t element_bytes = codecs::ElementBytes(placed.tile.dtype);
  std::vector<std::byte*> k_layers(placed.slice.layer_count), v_layers(placed.slice.layer_count);
  DeviceSample sample{.group = known.group, .stream = cache.stream};
  sample.cache.tokens_per_block = cache.tokens_per_block;
  sample.cache.block_count = cache.block_count;
  CAIRN_ASSIGN_OR_RETURN(sample.cache.k, OnDevice("cache.k", cache.k, element_bytes, k_layers));
  if (codecs::PlaneCount(placed.tile.kind) > 1) {
    CAIRN_ASSIGN_OR_RETURN(sample.cache.v, OnDevice("cache.v", cache.v, element_bytes, v_layers));
  }
  std::vector<DeviceText> texts(known.text_count);
  for (size_t i = 0; i < texts.size(); ++i) {
    const cairn_sample_text& text = known.texts[i];
    CAIRN_RETURN_IF_ERROR(CheckPointer("text.blocks", text.blocks, text.block_count));
    texts[i] = {.blocks = {text.blocks, text.block_count}, .first_position = text.first_position};
  }
  sample.texts = texts;
  const DeviceMovers::Call call{
      .device = cache.device_number,
      .work = Work::kMine,
      .slice = {},
      .stream = cache.stream,
      .deadline = MonotonicNow() +
                  (known.timeout_ms == 0 ? kDataTimeoutDefault : Timeout(known.timeout_ms))};
  return space->movers.WithMiner(*space->space, call, [&](DeviceMiner& miner) -> absl::Status {
    // Above zero, which would select the default.
    sample.timeout = std::max(call.deadline - MonotonicNow(), absl::Milliseconds(1));
    auto made = std::make_unique<cairn_mined>();
    CAIRN_ASSIGN_OR_RETURN(made->bytes, mine(miner, sample));
    *mined = made.release();
    return absl::OkStatus();
  });
}

absl::Status MineBank(cairn_space* space, const cairn_sample* sample, uint32_t patterns,
                      cairn_mined** mined) {
  return Mine(
      space, sample,
      [&](DeviceMiner& miner, const DeviceSample& known) {
        return miner.MineBank(known, patterns);
      },
      mined);
}

absl::Status MineProfile(cairn_space* space, const cairn_sample* sample,
                         const ProfileOptions& options, cairn_mined** mined) {
  CAIRN_RETURN_IF_ERROR(CheckPointer("rates", options.rates.data(), options.rates.size()));
  CAIRN_RETURN_IF_ERROR(
      CheckPointer("query_squares", options.query_squares.data(), options.query_squares.size()));
  return Mine(
      space, sample,
      [&](DeviceMiner& miner, const DeviceSample& known) {
        return miner.MineProfile(known, options);
      },
      mined);
}

}  // namespace
}  // namespace cairn::c

// Outside all namespaces: C functions.
int cairn_mine_bank(cairn_space* space, const cairn_sample* sample, uint32_t patterns,
                    cairn_mined** mined) {
  return cairn::c::Guard([&] { return cairn::c::MineBank(space, sample, patterns, mined); });
}

int cairn_mine_profile(cairn_space* space, const cairn_sample* sample, const uint16_t* rates,
                       size_t rate_count, const float* query_squares, size_t query_square_count,
                       cairn_mined** mined) {
  return cairn::c::Guard([&] {
    return cairn::c::MineProfile(
        space, sample,
        {.rates = {rates, rate_count}, .query_squares = {query_squares, query_square_count}},
        mined);
  });
}

const void* cairn_mined_data(const cairn_mined* mined) {
  return mined == nullptr ? nullptr : mined->bytes.data();
}

size_t cairn_mined_bytes(const cairn_mined* mined) {
  return mined == nullptr ? 0 : mined->bytes.size();
}

void cairn_mined_free(cairn_mined* mined) { delete mined; }
