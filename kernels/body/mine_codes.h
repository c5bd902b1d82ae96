// SPDX-License-Identifier: Apache-2.0
#pragma once
// The mining passes that count codes. They count how often each symbol occurs in each table, for
// the steps of each column. They also measure how much rounding shrinks values. Each lane counts
// one symbol, by ballots of the warp. A block counts in shared memory, and then adds its counts to
// global memory.

#include <cstddef>
#include <cstdint>

#include "kernels/body/mine_moments.h"
#include "kernels/body/mine_pass.h"

namespace cairn::kernels {

inline constexpr uint32_t kCountedSymbols = codecs::kProfileTables * codecs::kCoderSymbols;
inline constexpr uint32_t kShrinkSums = codecs::kProfileTables * codecs::kShrunkCodes;
struct CodesShared {
  PassShared pass;
  ColumnRange range;
  uint64_t shrink_rest[kShrinkSums];
  uint32_t shrink_count[kShrinkSums];
  uint32_t symbols[kColumnsOfRangeMax][kCountedSymbols];
  uint32_t low_bits[kColumnsOfRangeMax];
};

// A channel whose codes are to be counted, with its mean over the other parts of the sample.
struct CodedChannel {
  codecs::ProfileChannel profile;
  float unseen_mean;
};

CAIRN_DEVICE CodedChannel LoadCoded(const MinePassArgs& args, const PassShared& shared,
                                    uint32_t channel) {
  const uint8_t* at = args.plan + shared.task.channel_at + channel * sizeof(codecs::MinedChannel);
  const auto profile = LoadGlobal<U32x2>(at);
  const auto unseen = LoadGlobal<uint32_t>(at + offsetof(codecs::MinedChannel, unseen_means) +
                                           sizeof(float) * shared.strip.part);
  return {{codecs::BitsFloat(profile.x), static_cast<int16_t>(profile.y & 0xFFFF),
           static_cast<int16_t>(profile.y >> 16)},
          codecs::BitsFloat(unseen)};
}

// The code of a value in a column.
struct Coded {
  codecs::StepShape shape;
  float position;
  int32_t code;
};

CAIRN_DEVICE Coded CodeOf(const CodedChannel& channel, const codecs::CodeColumn& column,
                          float value) {
  const codecs::CodeRate rate = codecs::RateOf(channel.profile, column.multiplier);
  const float mean = column.is_unseen ? channel.unseen_mean : channel.profile.mean;
  const float position = codecs::PositionOf(value, mean, rate.inverse);
  return {rate.shape, position, codecs::CodeAt(position)};
}

// Adds codecs::ShrinkUnits() of a channel's codes to the block's sums, with one warp.
CAIRN_DEVICE void AddShrink(CodesShared* shared, const Coded& coded, bool is_kept) {
  if (coded.shape.low_bits != 0) return;
  const auto join = [](int64_t* sum, int64_t other) { *sum += other; };
  const auto size = static_cast<uint32_t>(coded.code < 0 ? -coded.code : coded.code);
  CAIRN_NO_UNROLL
  for (uint32_t magnitude = 1; magnitude <= codecs::kShrunkCodes; ++magnitude) {
    const bool is_shrunk = is_kept && size == magnitude;
    const uint32_t shrunk = Ballot(is_shrunk);
    if (shrunk == 0) continue;
    const int64_t rest =
        SumOfWarp(is_shrunk ? codecs::ShrinkUnits(coded.position, magnitude) : int64_t{0}, join);
    if (ThreadIndex() % kWarpLanes != 0) continue;
    const uint32_t index = coded.shape.table * codecs::kShrunkCodes + magnitude - 1;
    AtomicAddShared(&shared->shrink_rest[index], static_cast<uint64_t>(rest));
    AtomicAddShared(&shared->shrink_count[index], CountBits(shrunk));
  }
}

// Counts the symbols of two channels in a column. The first half of the lanes counts the symbols of
// the first channel, one symbol per lane. The second half does so for the second channel.
//   kept  for each channel, the lanes that have a token
CAIRN_DEVICE void AddSymbols(CodesShared* shared, uint32_t column, const Coded& first,
                             const Coded& second, uint32_t kept_first, uint32_t kept_second) {
  const uint32_t lane = ThreadIndex() % kWarpLanes;
  const bool is_first = lane < codecs::kCoderSymbols;
  const codecs::StepShape shape = is_first ? first.shape : second.shape;
  const uint32_t kept = is_first ? kept_first : kept_second;
  const uint32_t symbol_first = codecs::CountedSymbol(first.shape, first.code);
  const uint32_t symbol_second = codecs::CountedSymbol(second.shape, second.code);
  uint32_t with_symbol = kept;
  CAIRN_UNROLL
  for (uint32_t bit = 0; bit < 4; ++bit) {
    const uint32_t of_first = Ballot((symbol_first >> bit & 1) != 0);
    const uint32_t of_second = Ballot((symbol_second >> bit & 1) != 0);
    const uint32_t ones = is_first ? of_first : of_second;
    with_symbol &= (lane >> bit & 1) != 0 ? ones : ~ones;
  }
  const uint32_t symbol = lane % codecs::kCoderSymbols;
  if (with_symbol != 0) {
    AtomicAddShared(&shared->symbols[column][shape.table * codecs::kCoderSymbols + symbol],
                    CountBits(with_symbol));
  }
  if (symbol == 0 && shape.low_bits != 0 && kept != 0) {
    AtomicAddShared(&shared->low_bits[column], shape.low_bits * CountBits(kept));
  }
}

// Counts the codes of two channels in each column of the range.
CAIRN_DEVICE void CountChannels(const MinePassArgs& args, const uint8_t* columns,
                                CodesShared* shared, uint32_t index) {
  const PassShared& pass = shared->pass;
  const uint32_t lane = ThreadIndex() % kWarpLanes;
  const ChannelsOfWarp at = ChannelsAt(pass.plane, index);
  const CodedChannel first = LoadCoded(args, pass, at.first);
  const CodedChannel second = LoadCoded(args, pass, at.second);
  // If the range is strided, each examined token of the strip has its own lane.
  const bool is_strided = shared->range.is_strided;
  const uint32_t stride = is_strided ? codecs::kFindStride : 1;
  const auto lead = static_cast<uint32_t>(-pass.strip.first_position % stride);
  const uint32_t end = is_strided ? 1 : pass.strip.tokens;
  CAIRN_NO_UNROLL
  for (uint32_t group = 0; group < end; group += kWarpLanes) {
    const uint32_t token = lead + stride * (group + lane);
    const bool is_kept = pass.IsKept(token);
    const uint32_t kept = Ballot(is_kept);
    if (kept == 0) continue;
    codecs::Pair values{};
    if (is_kept) values = LoadChannels(pass, at, token);
    CAIRN_NO_UNROLL
    for (uint32_t i = 0; i < shared->range.count; ++i) {
      const auto column = LoadGlobal<codecs::CodeColumn>(columns + i * sizeof(codecs::CodeColumn));
      const Coded of_first = CodeOf(first, column, values.first);
      const Coded of_second = CodeOf(second, column, values.second);
      AddSymbols(shared, i, of_first, of_second, kept, at.has_second ? kept : 0);
      if (!column.has_shrink) continue;
      AddShrink(shared, of_first, is_kept);
      AddShrink(shared, of_second, is_kept && at.has_second);
    }
  }
}

// Clears the counts, with the whole block.
CAIRN_DEVICE void ClearCounts(CodesShared* shared) {
  for (uint32_t i = ThreadIndex(); i < kColumnsOfRangeMax * kCountedSymbols; i += kBlockThreads) {
    shared->symbols[i / kCountedSymbols][i % kCountedSymbols] = 0;
  }
  for (uint32_t i = ThreadIndex(); i < kShrinkSums; i += kBlockThreads) {
    shared->shrink_rest[i] = 0;
    shared->shrink_count[i] = 0;
  }
  if (ThreadIndex() < kColumnsOfRangeMax) shared->low_bits[ThreadIndex()] = 0;
}

CAIRN_DEVICE void AddCount(uint8_t* at, uint64_t count) {
  if (count != 0) AtomicAdd(reinterpret_cast<uint64_t*>(at), count);
}

// Adds the block's counts to the sums.
CAIRN_DEVICE void AddCounts(const CodesShared& shared, uint8_t* codes, uint8_t* shrink) {
  for (uint32_t i = ThreadIndex(); i < shared.range.count * kCountedSymbols; i += kBlockThreads) {
    const uint32_t column = i / kCountedSymbols, symbol = i % kCountedSymbols;
    AddCount(codes + (shared.range.first + column) * sizeof(codecs::CodeCounts) + 8 * symbol,
             shared.symbols[column][symbol]);
  }
  if (ThreadIndex() < shared.range.count) {
    AddCount(codes + (shared.range.first + ThreadIndex()) * sizeof(codecs::CodeCounts) +
                 offsetof(codecs::CodeCounts, low_bits),
             shared.low_bits[ThreadIndex()]);
  }
  if (!shared.range.has_shrink) return;
  for (uint32_t i = ThreadIndex(); i < kShrinkSums; i += kBlockThreads) {
    AddCount(shrink + 8 * i, shared.shrink_rest[i]);
    AddCount(shrink + offsetof(codecs::ShrinkSums, count) + 8 * i, shared.shrink_count[i]);
  }
}

CAIRN_KERNEL CAIRN_BOUNDS(kBlockThreads, 3) CountCodes(MinePassArgs args) {
  CAIRN_SHARED(CodesShared, shared);
  const auto header = LoadRecord<MinePassHeader>(args.plan);
  const TaskList list = header.lists[static_cast<uint32_t>(PassList::kCodes)];
  for (uint32_t index = BlockIndex(); index < list.count; index += GridBlocks()) {
    const uint32_t head = (list.first + index) / header.range_count;
    const uint32_t range = (list.first + index) % header.range_count;
    if (ThreadIndex() == 0) {
      OpenTask(args, header, head, &shared.pass);
      shared.range =
          LoadGlobal<ColumnRange>(args.plan + header.ranges_at + range * sizeof(ColumnRange));
    }
    ClearCounts(&shared);
    SyncBlock();
    const PassPlane sums = shared.pass.task.plane == 1 ? header.sums[1] : header.sums[0];
    const uint8_t* columns =
        args.plan + header.columns_at + shared.range.first * sizeof(codecs::CodeColumn);
    const Fault fault = ForEachStrip(args, header, &shared.pass, shared.range.is_strided, [&] {
      CAIRN_NO_UNROLL
      for (uint32_t i = WarpOfBlock(); 2 * i < shared.pass.plane.dim; i += kBlockWarps) {
        CountChannels(args, columns, &shared, i);
      }
    });
    AddCounts(shared, args.sums + sums.codes_at, args.sums + sums.shrink_at);
    ReportFault(fault, shared.pass.plane, args.status);
    SyncBlock();  // shared memory is reused for the next task
  }
}

// Calls launch.Kernel<kernel>(shape) for each kernel. Each kernel takes MinePassArgs.
template <typename Launch>
void ForEachPassKernel(Launch&& launch) {
  launch.template Kernel<&SumMoments>(
      KernelShape{static_cast<uint32_t>(PassList::kMoments), sizeof(MomentsShared)});
  launch.template Kernel<&CountCodes>(
      KernelShape{static_cast<uint32_t>(PassList::kCodes), sizeof(CodesShared)});
}

}  // namespace cairn::kernels
