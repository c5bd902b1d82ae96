// SPDX-License-Identifier: Apache-2.0
#pragma once
// Code that the attention kernels share: the work items of a plan, and the places of their results.
// Scores are logarithms to base 2, so that a weight is a power of two.

#include <cstddef>
#include <cstdint>

#include "codecs/numbers/attention.h"
#include "kernels/attend_records.h"
#include "kernels/body/tasks.h"

namespace cairn::kernels {

inline constexpr float kLog2E = 1.44269504F;
inline constexpr float kLn2 = 0.693147181F;
inline constexpr float kNoScore = -1e30F;  // below all scores; differences stay finite
inline constexpr uint32_t kMinusInfinityBits = 0xFF800000;

// Reads a plan. It reads a value from memory each time, because the registers are needed for sums.
struct AttendReader {
  const uint8_t* plan;
  uint32_t list;

  CAIRN_DEVICE_MEMBER AttendReader(const uint8_t* from, uint32_t of) : plan(from), list(of) {}
  CAIRN_DEVICE_MEMBER uint32_t Number(uint32_t at) const { return LoadRecord<uint32_t>(plan + at); }
  CAIRN_DEVICE_MEMBER uint32_t WorkCount() const {
    return Number(list * sizeof(TaskList) + offsetof(TaskList, count));
  }
  CAIRN_DEVICE_MEMBER uint32_t SlotFloats() const {
    return Number(offsetof(AttendHeader, slot_floats));
  }
  CAIRN_DEVICE_MEMBER AttendWork Work(uint32_t index) const {
    const uint32_t first = Number(list * sizeof(TaskList) + offsetof(TaskList, first));
    const uint8_t* works = plan + Number(offsetof(AttendHeader, works_at));
    return LoadRecord<AttendWork>(works + (first + index) * sizeof(AttendWork));
  }
  CAIRN_DEVICE_MEMBER AttendQueries Queries(uint32_t index) const {
    const uint8_t* queries = plan + Number(offsetof(AttendHeader, queries_at));
    return LoadRecord<AttendQueries>(queries + index * sizeof(AttendQueries));
  }
  CAIRN_DEVICE_MEMBER PlaneRecord Plane(uint32_t index) const {
    const uint8_t* planes = plan + Number(offsetof(AttendHeader, planes_at));
    return LoadRecord<PlaneRecord>(planes + index * sizeof(PlaneRecord));
  }
  // Returns element `index` of the list.
  template <typename T>
  CAIRN_DEVICE_MEMBER T Part(uint32_t index) const {
    const uint8_t* parts = plan + Number(offsetof(AttendHeader, parts_at) + 4 * list);
    return LoadRecord<T>(parts + static_cast<uint64_t>(index) * sizeof(T));
  }
};

// Returns the number of query rows of a work item.
CAIRN_DEVICE uint32_t RowCount(const AttendQueries& queries, const AttendWork& work) {
  const uint32_t left = queries.rows - work.row_first;
  return left < kAttendRows ? left : kAttendRows;
}

// Returns the index of a query row among all query heads of all query tokens.
CAIRN_DEVICE uint32_t QueryOf(const AttendQueries& queries, const AttendWork& work, uint32_t row) {
  const uint32_t of_head = work.row_first + row;
  return of_head / queries.rows_of_token * queries.query_heads + work.head * queries.rows_of_token +
         of_head % queries.rows_of_token;
}

CAIRN_DEVICE float LoadQuery(const AttendQueries& queries, uint32_t query, uint32_t channel) {
  const uint64_t at = static_cast<uint64_t>(query) * queries.k_dim + channel;
  if (queries.dtype == codecs::DType::kFp32) {
    return codecs::BitsFloat(LoadGlobal<uint32_t>(queries.queries + 4 * at));
  }
  const uint32_t bits = LoadGlobal<uint16_t>(queries.queries + 2 * at);
  return queries.dtype == codecs::DType::kFp16 ? HalfToFloat(bits) : codecs::BitsFloat(bits << 16);
}

CAIRN_DEVICE float ShuffleFloat(float value, uint32_t lane) {
  return codecs::BitsFloat(Shuffle(codecs::FloatBits(value), lane));
}

// Returns the larger of two values: this lane's, and that of the lane whose number differs in the
// bit `lanes`.
CAIRN_DEVICE float LargerAcross(float value, uint32_t lanes) {
  return Larger(value, codecs::BitsFloat(ShuffleXor(codecs::FloatBits(value), lanes)));
}

// Returns the logarithm of a sum of weights that are relative to 2^largest. Returns minus infinity
// if there are no weights.
CAIRN_DEVICE float LogSumOf(float largest, float sum) {
  if (sum == 0.0F) return codecs::BitsFloat(kMinusInfinityBits);
  return codecs::Add(codecs::Multiply(largest, kLn2), codecs::AttentionLog(sum));
}

// Returns where a work item stores its outputs, followed by its log sums.
CAIRN_DEVICE float* SlotOf(const AttendArgs& args, uint32_t slot_floats, uint32_t slot) {
  return args.scratch + static_cast<uint64_t>(slot) * slot_floats;
}
CAIRN_DEVICE float* LogSumsOf(uint32_t slot_floats, float* slot) {
  return slot + (slot_floats - kAttendRows);
}

}  // namespace cairn::kernels
