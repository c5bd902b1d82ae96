// SPDX-License-Identifier: Apache-2.0
#include "tests/kernels/executor/warp.h"

#include <algorithm>
#include <bit>
#include <cstdarg>
#include <cstdio>
#include <cstring>

namespace cairn::kernels::emulated {
namespace {

constexpr size_t kGroupsMax = 16;

[[gnu::format(printf, 1, 2)]] std::string Text(const char* format, ...) {
  char text[256];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof(text), format, arguments);
  va_end(arguments);
  return text;
}

uint64_t CombinedOf(const std::array<Thread*, kWarpLanes>& lanes, const Arrival& at) {
  uint64_t all = 0;
  for (uint32_t i = 0; i < kWarpLanes; ++i) {
    if ((at.mask >> i & 1) == 0) continue;
    const uint64_t value = lanes[i]->at.value;
    all |= at.collective == Collective::kBallot ? (value & 1) << i : value;
  }
  return all;
}

using Lanes = std::array<Thread*, kWarpLanes>;

const MmaPart& PartOf(const Lanes& lanes, uint32_t lane) {
  return *reinterpret_cast<const MmaPart*>(lanes[lane]->at.value);
}

// As PTX spreads mma.m16n8k256 and mma.m16n8k16 over lanes: lane 4 g + p has words p and p + 4 of
// rows g and g + 8 of a, words p and p + 4 of column g of b, and columns 2 p and 2 p + 1 of rows g
// and g + 8 of d.
uint32_t WordOfA(const Lanes& lanes, uint32_t row, uint32_t word) {
  return PartOf(lanes, row % 8 * 4 + word % 4).a[row / 8 + word / 4 * 2];
}
uint32_t WordOfB(const Lanes& lanes, uint32_t column, uint32_t word) {
  return PartOf(lanes, column * 4 + word % 4).b[word / 4];
}
template <typename T>
T& ElementOfD(const Lanes& lanes, uint32_t row, uint32_t column) {
  T* d = static_cast<T*>(PartOf(lanes, row % 8 * 4 + column / 2).d);
  return d[row / 8 * 2 + column % 2];
}

void MultiplyBits(const Lanes& lanes) {
  using Words = std::array<uint64_t, 4>;
  std::array<Words, 8> columns;
  for (uint32_t i = 0; i < 32; ++i) {
    const uint32_t low = WordOfB(lanes, i / 4, i % 4 * 2);
    columns[i / 4][i % 4] = uint64_t{WordOfB(lanes, i / 4, i % 4 * 2 + 1)} << 32 | low;
  }
  for (uint32_t row = 0; row < 16; ++row) {
    Words a;
    for (uint32_t i = 0; i < 4; ++i) {
      a[i] = uint64_t{WordOfA(lanes, row, i * 2 + 1)} << 32 | WordOfA(lanes, row, i * 2);
    }
    for (uint32_t column = 0; column < 8; ++column) {
      int32_t sum = 0;
      for (uint32_t i = 0; i < 4; ++i) sum += std::popcount(a[i] & columns[column][i]);
      ElementOfD<int32_t>(lanes, row, column) += sum;
    }
  }
}

struct Halves {
  float of[16];
};

template <auto kToFloat, typename WordAt>
Halves HalvesOf(WordAt word_at) {
  Halves halves;
  for (uint32_t i = 0; i < 16; ++i) {
    halves.of[i] = kToFloat(static_cast<uint16_t>(word_at(i / 2) >> (16 * (i % 2))));
  }
  return halves;
}

// Exact products, whose sum is rounded once: devices round it more often, and towards zero.
template <auto kToFloat>
void MultiplyHalvesOf(const Lanes& lanes) {
  std::array<Halves, 8> columns;
  for (uint32_t i = 0; i < 8; ++i) {
    columns[i] = HalvesOf<kToFloat>([&](uint32_t word) { return WordOfB(lanes, i, word); });
  }
  for (uint32_t row = 0; row < 16; ++row) {
    const Halves a = HalvesOf<kToFloat>([&](uint32_t word) { return WordOfA(lanes, row, word); });
    for (uint32_t column = 0; column < 8; ++column) {
      auto& d = ElementOfD<float>(lanes, row, column);
      double sum = d;
      for (uint32_t i = 0; i < 16; ++i) sum += double{a.of[i]} * columns[column].of[i];
      d = static_cast<float>(sum);
    }
  }
}

}  // namespace

// A file has one name or several equal ones, as many as there are objects with its lines.
bool IsSame(CodeLine a, CodeLine b) {
  return a.number == b.number && (a.file == b.file || std::strcmp(a.file, b.file) == 0);
}

const char* FileOf(CodeLine line) {
  const char* slash = std::strrchr(line.file, '/');
  return slash == nullptr ? line.file : slash + 1;
}

bool Copies::Commit() {
  groups_.emplace_back();
  return groups_.size() <= kGroupsMax;
}

void Copies::Wait(uint32_t pending) {
  while (groups_.size() > size_t{pending} + 1) {
    for (const Copy& copy : groups_.front()) {
      NoteWrite(copy.to, copy.bytes);
      std::memcpy(copy.to, copy.from, copy.bytes);
    }
    groups_.erase(groups_.begin());
  }
}

bool Copies::IsAny() const {
  return std::ranges::any_of(groups_, [](const auto& group) { return !group.empty(); });
}

bool Warp::AreAllThere(const Thread& last, std::string* fault) const {
  const Arrival& at = last.at;
  if ((at.mask >> last.Lane() & 1) == 0) {
    *fault = Text("%s:%d: lane %u is not in its own mask %08x", FileOf(at.line), at.line.number,
                  last.Lane(), at.mask);
    return false;
  }
  if ((waiting & at.mask) != at.mask && (returned & at.mask) == 0) return false;
  for (uint32_t i = 0; i < kWarpLanes; ++i) {
    if ((at.mask >> i & 1) == 0) continue;
    const Thread* lane = lanes[i];
    if (lane == nullptr || lane->state == State::kOver) {
      *fault = Text("%s:%d: thread %u waits for lane %u, which has returned", FileOf(at.line),
                    at.line.number, last.index, i);
      return false;
    }
    if (lane->state != State::kAtCollective) return false;
    if (!IsSame(lane->at.line, at.line) || lane->at.mask != at.mask ||
        lane->at.collective != at.collective) {
      *fault = Text(
          "lanes of a warp meet at different places: lane %u at %s:%d with mask %08x, "
          "lane %u at %s:%d with mask %08x",
          last.Lane(), FileOf(at.line), at.line.number, at.mask, i, FileOf(lane->at.line),
          lane->at.line.number, lane->at.mask);
      return false;
    }
  }
  return true;
}

bool Warp::GiveResults(const Arrival& at, std::string* fault) {
  const bool is_shuffle =
      at.collective == Collective::kShuffle || at.collective == Collective::kShuffleXor;
  const uint64_t all = is_shuffle ? 0 : CombinedOf(lanes, at);
  for (uint32_t i = 0; i < kWarpLanes; ++i) {
    if ((at.mask >> i & 1) == 0) continue;
    Thread& lane = *lanes[i];
    uint32_t from = i;
    if (at.collective == Collective::kShuffle) from = lane.at.argument % kWarpLanes;
    if (at.collective == Collective::kShuffleXor) from = (i ^ lane.at.argument) % kWarpLanes;
    if ((at.mask >> from & 1) == 0) {
      *fault = Text("%s:%d: lane %u reads lane %u, which is not in the mask %08x", FileOf(at.line),
                    at.line.number, i, from, at.mask);
      return false;
    }
    lane.result = is_shuffle ? lanes[from]->at.value : all;
  }
  return true;
}

bool Warp::Complete(const Thread& last, std::string* fault) {
  if (!AreAllThere(last, fault) || !GiveResults(last.at, fault)) return false;
  if (last.at.collective == Collective::kMmaBits) MultiplyBits(lanes);
  if (last.at.collective == Collective::kMmaHalves) MultiplyHalvesOf<&codecs::Fp16ToFloat>(lanes);
  if (last.at.collective == Collective::kMmaBf16) MultiplyHalvesOf<&codecs::Bf16ToFloat>(lanes);
  if (last.at.collective == Collective::kSync) ++syncs;
  return true;
}

}  // namespace cairn::kernels::emulated
