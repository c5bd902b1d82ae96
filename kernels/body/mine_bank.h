// SPDX-License-Identifier: Apache-2.0
#pragma once
// Mines the patterns of a bank, with one thread block per head. The algorithm is the k-means of
// codecs/mine/bank_miner.cc, and its result has the same bits. Each round has two steps. First, one
// warp per token finds the nearest centre, with one centre per lane. Then one warp per centre
// computes the mean, with one channel per lane. Accepts every shape and dtype.

#include <cstdint>

#include "codecs/backend/reference/token_norm.h"
#include "codecs/numbers/cluster.h"
#include "codecs/numbers/math.h"
#include "kernels/body/encode_tasks.h"
#include "kernels/mine_records.h"

namespace cairn::kernels {

inline constexpr uint16_t kNoCentre = 0xFFFF;   // for a token that is skipped
inline constexpr uint32_t kChannelsOfLane = 4;  // a lane sums this many at once

// A thread block's data about its head. They are in shared memory, because the registers are needed
// for sums.
static_assert(kCentresBeside == kWarpLanes);
struct MineHead {
  PlaneRecord plane;
  uint8_t* source;
  uint8_t* patterns;  // the head's patterns in the bank
  uint8_t* centres;   // [centre / 32][channel, padded][centre mod 32]
  uint8_t* left;      // for each token: whether it is skipped
  uint8_t* nearest;   // for each token: its nearest centre
  uint32_t count;     // number of centres: min(number of patterns, number of points)
  uint32_t channels;

  CAIRN_DEVICE_MEMBER uint8_t* Centre(uint32_t centre, uint32_t channel) const {
    const uint32_t row = centre / kCentresBeside * channels + channel;
    return centres + sizeof(float) * (row * kCentresBeside + centre % kCentresBeside);
  }
  CAIRN_DEVICE_MEMBER uint32_t Nearest(uint32_t token) const {
    return token < plane.tokens ? LoadRecord<uint16_t>(nearest + 2 * token) : kNoCentre;
  }
  // REQUIRES: the token is not skipped.
  CAIRN_DEVICE_MEMBER const uint8_t* Row(uint32_t token) const {
    Fault fault = Fault::kNone;
    return PlaceOf(plane, source, token, &fault);
  }
};

struct MineShared {
  MineHead head;
  float tokens[kBlockWarps][kMineDimMax];  // the tokens that the warps process
  uint32_t members[kMinePatternsMax];      // number of points of each centre
  uint32_t points[kBlockWarps];            // number of points that each warp found
  uint64_t farthest[kBlockWarps];          // for each warp: squared distance, and ~token
};

// Marks the tokens that are skipped. The other tokens are points. Returns how many points the warp
// found among its tokens.
CAIRN_DEVICE uint32_t MarkPoints(const MineHead& head, Fault* fault) {
  const uint32_t lane = ThreadIndex() % kWarpLanes;
  uint32_t points = 0;
  CAIRN_NO_UNROLL
  for (uint32_t token = WarpOfBlock(); token < head.plane.tokens; token += kBlockWarps) {
    const uint8_t* row = PlaceOf(head.plane, head.source, token, fault);
    bool is_left_out = row == nullptr;
    CAIRN_NO_UNROLL
    for (uint32_t c = lane; row != nullptr && c < head.plane.dim; c += kWarpLanes) {
      is_left_out |= codecs::IsRowValue(LoadValue(head.plane.dtype, row, c));
    }
    const bool is_point = !Any(is_left_out);
    if (lane == 0) StoreGlobal(head.nearest + 2 * token, is_point ? uint16_t{0} : kNoCentre);
    points += is_point ? 1 : 0;
  }
  return points;
}

// Returns the token of the point with that index. Uses one warp.
CAIRN_DEVICE uint32_t TokenOfPoint(const MineHead& head, uint32_t point) {
  uint32_t before = 0;
  CAIRN_NO_UNROLL
  for (uint32_t first = 0;; first += kWarpLanes) {
    uint32_t marks = Ballot(head.Nearest(first + ThreadIndex() % kWarpLanes) != kNoCentre);
    const uint32_t count = CountBits(marks);
    if (point < before + count) {
      CAIRN_NO_UNROLL
      for (; before < point; ++before) marks &= marks - 1;
      return first + LowestBit(marks);
    }
    before += count;
  }
}

// Stores a channel of a centre. Returns whether the centre has moved.
CAIRN_DEVICE bool MoveTo(const MineHead& head, uint32_t centre, uint32_t channel, float to) {
  uint8_t* at = head.Centre(centre, channel);
  const bool has_moved = codecs::HasMoved(LoadRecord<float>(at), to);
  StoreGlobal(at, to);
  return has_moved;
}

// Moves a centre to a point, with one warp. Returns whether the move changed a channel of this
// lane.
CAIRN_DEVICE bool MoveToToken(const MineHead& head, uint32_t centre, uint32_t token) {
  const uint8_t* row = head.Row(token);
  bool has_moved = false;
  CAIRN_NO_UNROLL
  for (uint32_t c = ThreadIndex() % kWarpLanes; c < head.plane.dim; c += kWarpLanes) {
    has_moved |= MoveTo(head, centre, c, LoadValue(head.plane.dtype, row, c));
  }
  return has_moved;
}

// Places the centres for the first round, and sets unused channels to zero. Synchronizes the block
// before it reads the number of centres.
CAIRN_DEVICE void PlaceCentres(const MineHead& head, uint32_t points) {
  const uint32_t groups = (head.plane.patterns + kCentresBeside - 1) / kCentresBeside;
  CAIRN_NO_UNROLL
  for (uint32_t i = ThreadIndex(); i < groups * head.channels * kCentresBeside;
       i += kBlockThreads) {
    StoreGlobal(head.centres + sizeof(float) * i, 0.0F);
  }
  SyncBlock();
  CAIRN_NO_UNROLL
  for (uint32_t centre = WarpOfBlock(); centre < head.count; centre += kBlockWarps) {
    const uint32_t point = codecs::SeedOf(centre, head.count, points);
    MoveToToken(head, centre, TokenOfPoint(head, point));
  }
}

// Returns the squared distance from a token in shared memory to a centre.
CAIRN_DEVICE float DistanceOf(const MineHead& head, const float* token, uint32_t centre) {
  constexpr uint32_t kStep = kCentresBeside * sizeof(float);
  float sums[codecs::kNormSums] = {};
  const uint8_t* at = head.Centre(centre, 0);
  CAIRN_NO_UNROLL
  for (uint32_t first = 0; first < head.channels; first += codecs::kNormSums) {
    CAIRN_UNROLL
    for (uint32_t i = 0; i < codecs::kNormSums; ++i) {
      const float left = codecs::Add(token[first + i], -LoadRecord<float>(at + i * kStep));
      sums[i] = codecs::Add(sums[i], codecs::Multiply(left, left));
    }
    at += codecs::kNormSums * kStep;
  }
  return codecs::JoinSums(sums);
}

// Finds the nearest centre of each point, with one warp per token. Of several nearest centres it
// takes the first.
//   row  shared memory for the warp
CAIRN_DEVICE void AssignPoints(const MineHead& head, float* row) {
  const uint32_t lane = ThreadIndex() % kWarpLanes;
  CAIRN_NO_UNROLL
  for (uint32_t token = WarpOfBlock(); token < head.plane.tokens; token += kBlockWarps) {
    if (head.Nearest(token) == kNoCentre) continue;
    SyncWarp();
    const uint8_t* source = head.Row(token);
    CAIRN_NO_UNROLL
    for (uint32_t c = lane; c < head.channels; c += kWarpLanes) {
      row[c] = c < head.plane.dim ? LoadValue(head.plane.dtype, source, c) : 0.0F;
    }
    SyncWarp();
    uint32_t best = 0;
    float distance = 0.0F;
    CAIRN_NO_UNROLL
    for (uint32_t first = 0; first < head.count; first += kWarpLanes) {
      // A lane whose centre does not exist uses the last centre.
      const uint32_t centre = first + lane < head.count ? first + lane : head.count - 1;
      const float of = DistanceOf(head, row, centre);
      if (first != 0 && !(of < distance)) continue;
      best = centre;
      distance = of;
    }
    for (uint32_t lanes = kWarpLanes / 2; lanes > 0; lanes /= 2) {
      const uint32_t other = ShuffleXor(best, lanes);
      const float of = codecs::BitsFloat(ShuffleXor(codecs::FloatBits(distance), lanes));
      if (!(of < distance || (of == distance && other < best))) continue;
      best = other;
      distance = of;
    }
    if (lane != 0) continue;
    StoreGlobal(head.nearest + 2 * token, static_cast<uint16_t>(best));
    StoreGlobal(head.left + sizeof(float) * token, distance);
  }
}

// Moves some channels of a centre to the mean of its points, with one warp. Returns the number of
// points.
CAIRN_DEVICE uint32_t MoveToMean(const MineHead& head, uint32_t centre, uint32_t channel_first,
                                 bool* has_moved) {
  const PlaneRecord& plane = head.plane;
  const uint32_t lane = ThreadIndex() % kWarpLanes;
  int64_t sums[kChannelsOfLane] = {};
  uint32_t members = 0;
  CAIRN_NO_UNROLL
  for (uint32_t first = 0; first < plane.tokens; first += kWarpLanes) {
    uint32_t marks = Ballot(head.Nearest(first + lane) == centre);
    members += CountBits(marks);
    CAIRN_NO_UNROLL
    for (; marks != 0; marks &= marks - 1) {
      const uint8_t* row = head.Row(first + LowestBit(marks));
      CAIRN_UNROLL
      for (uint32_t i = 0; i < kChannelsOfLane; ++i) {
        const uint32_t c = channel_first + i * kWarpLanes + lane;
        if (c < plane.dim) sums[i] += codecs::ClusterUnits(LoadValue(plane.dtype, row, c));
      }
    }
  }
  CAIRN_UNROLL
  for (uint32_t i = 0; i < kChannelsOfLane; ++i) {
    const uint32_t c = channel_first + i * kWarpLanes + lane;
    if (members == 0 || c >= plane.dim) break;
    *has_moved |= MoveTo(head, centre, c, codecs::ClusterMean(sums[i], members));
  }
  return members;
}

CAIRN_DEVICE uint64_t Farther(uint64_t a, uint64_t b) { return a > b ? a : b; }

// Returns the point that is farthest from its centre, and the first of them if there are several.
// Uses the whole block.
CAIRN_DEVICE uint32_t FarthestToken(const MineHead& head, uint64_t* of_warps) {
  uint64_t farthest = 0;
  CAIRN_NO_UNROLL
  for (uint32_t token = ThreadIndex(); token < head.plane.tokens; token += kBlockThreads) {
    if (head.Nearest(token) == kNoCentre) continue;
    const uint32_t left = LoadRecord<uint32_t>(head.left + sizeof(float) * token);
    farthest = Farther(farthest, static_cast<uint64_t>(left) << 32 | ~token);
  }
  for (uint32_t lanes = kWarpLanes / 2; lanes > 0; lanes /= 2) {
    const uint32_t high = ShuffleXor(static_cast<uint32_t>(farthest >> 32), lanes);
    const uint32_t low = ShuffleXor(static_cast<uint32_t>(farthest), lanes);
    farthest = Farther(farthest, static_cast<uint64_t>(high) << 32 | low);
  }
  if (ThreadIndex() % kWarpLanes == 0) of_warps[ThreadIndex() / kWarpLanes] = farthest;
  SyncBlock();
  for (uint32_t warp = 0; warp < kBlockWarps; ++warp) farthest = Farther(farthest, of_warps[warp]);
  return ~static_cast<uint32_t>(farthest);
}

// Returns whether a centre of this thread has moved. Synchronizes the block. REQUIRES: SyncBlock()
// before.
CAIRN_DEVICE bool MoveCentres(const MineHead& head, MineShared* shared) {
  bool has_moved = false;
  CAIRN_NO_UNROLL
  for (uint32_t centre = WarpOfBlock(); centre < head.count; centre += kBlockWarps) {
    uint32_t members = 0;
    CAIRN_NO_UNROLL
    for (uint32_t c = 0; c < head.plane.dim; c += kChannelsOfLane * kWarpLanes) {
      members = MoveToMean(head, centre, c, &has_moved);
    }
    if (ThreadIndex() % kWarpLanes == 0) shared->members[centre] = members;
  }
  SyncBlock();
  CAIRN_NO_UNROLL
  for (uint32_t centre = 0; centre < head.count; ++centre) {
    if (shared->members[centre] != 0) continue;
    const uint32_t token = FarthestToken(head, shared->farthest);
    if (ThreadIndex() < kWarpLanes) {
      has_moved |= MoveToToken(head, centre, token);
      if (ThreadIndex() == 0) StoreGlobal(head.left + sizeof(float) * token, 0.0F);
    }
    SyncBlock();
  }
  return has_moved;
}

// Stores the patterns. If there are fewer centres than patterns, the last centre is repeated.
CAIRN_DEVICE void StorePatternsOf(const MineHead& head) {
  CAIRN_NO_UNROLL
  for (uint32_t i = ThreadIndex(); i < head.plane.patterns * head.plane.dim; i += kBlockThreads) {
    const uint32_t pattern = i / head.plane.dim, channel = i % head.plane.dim;
    const uint32_t centre = pattern < head.count ? pattern : head.count - 1;
    const float value = LoadRecord<float>(head.Centre(centre, channel));
    StoreGlobal(head.patterns + 2 * i,
                codecs::FloatToFp16(value, codecs::Fp16Rounding::kNearestEven));
  }
}

// Returns a MineHead for a task. Its number of centres is not set.
CAIRN_DEVICE MineHead HeadOf(const MineArgs& args, uint32_t index) {
  const auto header = LoadRecord<MineHeader>(args.plan);
  const auto task = LoadRecord<MineTask>(args.plan + header.tasks_at + index * sizeof(MineTask));
  MineHead head{};
  head.plane =
      LoadRecord<PlaneRecord>(args.plan + header.planes_at + task.plane * sizeof(PlaneRecord));
  head.source = task.source;
  head.patterns = task.patterns;
  head.centres = args.scratch + task.centres_at;
  head.left = args.scratch + task.left_at;
  head.nearest = args.scratch + task.nearest_at;
  head.channels = (head.plane.dim + codecs::kNormSums - 1) / codecs::kNormSums * codecs::kNormSums;
  return head;
}

// Mines one head. REQUIRES: SyncBlock() before.
CAIRN_DEVICE Fault MineHeadOf(MineShared* shared) {
  MineHead& head = shared->head;
  Fault fault = Fault::kNone;
  const uint32_t found = MarkPoints(head, &fault);
  if (ThreadIndex() % kWarpLanes == 0) shared->points[ThreadIndex() / kWarpLanes] = found;
  if (SyncBlockOr(fault != Fault::kNone)) return fault;
  uint32_t points = 0;
  for (uint32_t warp = 0; warp < kBlockWarps; ++warp) points += shared->points[warp];
  if (points == 0) return Fault::kIncomplete;
  if (ThreadIndex() == 0) {
    head.count = points < head.plane.patterns ? points : head.plane.patterns;
  }
  PlaceCentres(head, points);
  SyncBlock();
  CAIRN_NO_UNROLL
  for (uint32_t round = 0; round < codecs::kClusterRoundsMax; ++round) {
    AssignPoints(head, shared->tokens[WarpOfBlock()]);
    SyncBlock();
    if (!SyncBlockOr(MoveCentres(head, shared))) break;
  }
  StorePatternsOf(head);
  return Fault::kNone;
}

CAIRN_KERNEL CAIRN_BOUNDS(kBlockThreads, 3) MinePatterns(MineArgs args) {
  CAIRN_SHARED(MineShared, shared);
  const auto list = LoadRecord<TaskList>(args.plan + args.list * sizeof(TaskList));
  for (uint32_t index = BlockIndex(); index < list.count; index += GridBlocks()) {
    if (ThreadIndex() == 0) shared.head = HeadOf(args, list.first + index);
    SyncBlock();
    ReportFault(MineHeadOf(&shared), shared.head.plane, args.status);
    SyncBlock();  // shared memory is reused for the next head
  }
}

// Calls launch.Kernel<kernel>(shape) for each kernel. Each takes MineArgs.
template <typename Launch>
void ForEachMineKernel(Launch&& launch) {
  launch.template Kernel<&MinePatterns>(
      KernelShape{static_cast<uint32_t>(MineList::kPatterns), sizeof(MineShared)});
}

}  // namespace cairn::kernels
