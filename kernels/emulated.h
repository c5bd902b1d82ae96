// SPDX-License-Identifier: Apache-2.0
#pragma once
// The definitions of kernels/device.h for a compiler other than nvcc. They call an executor, which
// runs the threads of a block and checks their accesses. The product has no executor. The tests
// have one in tests/kernels/executor/. Include this file only through kernels/device.h.
//
// Thread-safety: callable only from the threads of a running kernel.

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "codecs/numbers/math.h"

#define CAIRN_KERNEL [[maybe_unused]] static void
#define CAIRN_BOUNDS(threads, blocks)
#define CAIRN_DEVICE [[maybe_unused]] static inline
#define CAIRN_DEVICE_MEMBER
#define CAIRN_UNROLL
#define CAIRN_NO_UNROLL
#define CAIRN_SHARED(Type, name) \
  Type& name = *static_cast<Type*>(cairn::kernels::emulated::SharedMemory(sizeof(Type)))

namespace cairn::kernels::emulated {

enum class Collective : uint8_t {
  kBallot,
  kShuffle,
  kShuffleXor,
  kOr,
  kSync,
  kMmaBits,
  kMmaHalves,
  kMmaBf16
};
enum class Access : uint8_t {
  kLoadUnstored,  // REQUIRES: this launch has not stored to the memory
  kLoad,
  kStore
};

// A source line of a kernel. As a default argument, Here() returns the line of the call.
struct CodeLine {
  const char* file;
  int number;

  static constexpr CodeLine Here(const char* file = __builtin_FILE(),
                                 int number = __builtin_LINE()) {
    return {file, number};
  }
};

// The indices of the running thread and its block, and the number of blocks.
uint32_t ThreadIndex();
uint32_t BlockIndex();
uint32_t GridBlocks();

// Exchanges the thread's value with the lanes of `mask`. All these lanes must call the same
// collective at the same line. Returns the result of the collective.
uint64_t Meet(Collective collective, uint32_t mask, uint64_t value, uint32_t argument,
              CodeLine line);
bool Barrier(bool value, CodeLine line);
void* SharedMemory(size_t bytes);
// Ends the thread if the kernel may not access these bytes of global or shared memory.
void CheckGlobal(const void* at, size_t bytes, Access access, CodeLine line);
void CheckShared(const void* at, size_t bytes, CodeLine line);
void CopyAsync(void* shared, const void* global, size_t bytes, CodeLine line);
void CopyCommit();
void CopyWait(uint32_t pending);
// d: 4 int32_t for kMmaBits, 4 floats for kMmaHalves and kMmaBf16.
void Mma(Collective collective, void* d, const uint32_t* a, const uint32_t* b, CodeLine line);

}  // namespace cairn::kernels::emulated

namespace cairn::kernels {

using emulated::CodeLine;

CAIRN_DEVICE uint32_t ThreadIndex() { return emulated::ThreadIndex(); }
CAIRN_DEVICE uint32_t BlockIndex() { return emulated::BlockIndex(); }
CAIRN_DEVICE uint32_t GridBlocks() { return emulated::GridBlocks(); }

CAIRN_DEVICE void SyncBlock(CodeLine line = CodeLine::Here()) { emulated::Barrier(false, line); }
CAIRN_DEVICE bool SyncBlockOr(bool value, CodeLine line = CodeLine::Here()) {
  return emulated::Barrier(value, line);
}
CAIRN_DEVICE void SyncWarp(uint32_t mask = kAllLanes, CodeLine line = CodeLine::Here()) {
  emulated::Meet(emulated::Collective::kSync, mask, 0, 0, line);
}
CAIRN_DEVICE uint32_t Ballot(bool value, uint32_t mask = kAllLanes,
                             CodeLine line = CodeLine::Here()) {
  const uint64_t bit = value ? 1 : 0;
  return static_cast<uint32_t>(Meet(emulated::Collective::kBallot, mask, bit, 0, line));
}
CAIRN_DEVICE bool Any(bool value, uint32_t mask = kAllLanes, CodeLine line = CodeLine::Here()) {
  return Ballot(value, mask, line) != 0;
}
CAIRN_DEVICE uint32_t Shuffle(uint32_t value, uint32_t lane, uint32_t mask = kAllLanes,
                              CodeLine line = CodeLine::Here()) {
  return static_cast<uint32_t>(Meet(emulated::Collective::kShuffle, mask, value, lane, line));
}
CAIRN_DEVICE uint32_t ShuffleXor(uint32_t value, uint32_t lanes, uint32_t mask = kAllLanes,
                                 CodeLine line = CodeLine::Here()) {
  return static_cast<uint32_t>(Meet(emulated::Collective::kShuffleXor, mask, value, lanes, line));
}
CAIRN_DEVICE uint32_t ReduceOr(uint32_t value, uint32_t mask = kAllLanes,
                               CodeLine line = CodeLine::Here()) {
  return static_cast<uint32_t>(Meet(emulated::Collective::kOr, mask, value, 0, line));
}
CAIRN_DEVICE uint32_t Uniform(uint32_t value, CodeLine line = CodeLine::Here()) {
  return Shuffle(value, 0, kAllLanes, line);
}

CAIRN_DEVICE uint32_t CountBits(uint32_t value) {
  return static_cast<uint32_t>(__builtin_popcount(value));
}
CAIRN_DEVICE uint32_t LowestBit(uint32_t value) {
  return static_cast<uint32_t>(__builtin_ctz(value));
}
CAIRN_DEVICE uint32_t PermuteBytes(uint32_t a, uint32_t b, uint32_t selector) {
  const uint64_t both = static_cast<uint64_t>(b) << 32 | a;
  uint32_t result = 0;
  for (uint32_t i = 0; i < 4; ++i) {
    const uint32_t from = selector >> (4 * i) & 7;
    result |= static_cast<uint32_t>(both >> (8 * from) & 255) << (8 * i);
  }
  return result;
}
CAIRN_DEVICE uint32_t DotBytes(uint32_t a, uint32_t b, uint32_t c) {
  for (uint32_t i = 0; i < 32; i += 8) c += (a >> i & 255) * (b >> i & 255);
  return c;
}
CAIRN_DEVICE uint32_t Choose(uint32_t mask, uint32_t a, uint32_t b) {
  return (a & mask) | (b & ~mask);
}
CAIRN_DEVICE float FusedMultiplyAdd(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
CAIRN_DEVICE float Larger(float a, float b) { return __builtin_fmaxf(a, b); }

CAIRN_DEVICE uint32_t PackBf16(float low, float high) {
  return codecs::FloatToBf16(low) | static_cast<uint32_t>(codecs::FloatToBf16(high)) << 16;
}
CAIRN_DEVICE uint32_t PackFp16(float low, float high) {
  const auto half = [](float value) -> uint32_t {
    return codecs::FloatToFp16(value, codecs::Fp16Rounding::kNearestEven);
  };
  return half(low) | half(high) << 16;
}
CAIRN_DEVICE float HalfToFloat(uint32_t bits) {
  return codecs::Fp16ToFloat(static_cast<uint16_t>(bits));
}
CAIRN_DEVICE uint32_t HalfBelow(float value) { return codecs::Fp16RoundDown(value); }
CAIRN_DEVICE uint32_t HalfAbove(float value) { return codecs::Fp16RoundUp(value); }
// -0 is below +0, as on a device.
template <typename ToFloat>
uint32_t ChooseHalves(uint32_t a, uint32_t b, bool is_least, ToFloat to_float) {
  const auto choose = [&](uint32_t shift) -> uint32_t {
    const auto x = static_cast<uint16_t>(a >> shift), y = static_cast<uint16_t>(b >> shift);
    const float of_x = to_float(x), of_y = to_float(y);
    if (of_x != of_x || of_y != of_y) return 0x7FFF;
    if (of_x == of_y) return is_least ? x | y : x & y;
    return (of_x < of_y) == is_least ? x : y;
  };
  return choose(0) | choose(16) << 16;
}
CAIRN_DEVICE uint32_t LeastBf16(uint32_t a, uint32_t b) {
  return ChooseHalves(a, b, true, codecs::Bf16ToFloat);
}
CAIRN_DEVICE uint32_t LargestBf16(uint32_t a, uint32_t b) {
  return ChooseHalves(a, b, false, codecs::Bf16ToFloat);
}
CAIRN_DEVICE uint32_t LeastFp16(uint32_t a, uint32_t b) {
  return ChooseHalves(a, b, true, codecs::Fp16ToFloat);
}
CAIRN_DEVICE uint32_t LargestFp16(uint32_t a, uint32_t b) {
  return ChooseHalves(a, b, false, codecs::Fp16ToFloat);
}
CAIRN_DEVICE uint32_t MultiplyHalves(uint32_t a, uint32_t b) {
  const auto product = [&](uint32_t shift) {
    return codecs::Fp16ToFloat(static_cast<uint16_t>(a >> shift)) *
           codecs::Fp16ToFloat(static_cast<uint16_t>(b >> shift));
  };
  return PackFp16(product(0), product(16));
}
CAIRN_DEVICE float Exp2Near(float x) { return x < -126.0F ? 0.0F : __builtin_exp2f(x); }

template <typename T>
T LoadGlobal(const void* from, CodeLine line = CodeLine::Here()) {
  emulated::CheckGlobal(from, sizeof(T), emulated::Access::kLoadUnstored, line);
  return *static_cast<const T*>(from);
}
template <typename T>
T LoadRecord(const void* from, CodeLine line = CodeLine::Here()) {
  for (size_t at = 0; at < sizeof(T); at += alignof(T)) {
    emulated::CheckGlobal(static_cast<const uint8_t*>(from) + at, alignof(T),
                          emulated::Access::kLoad, line);
  }
  return *static_cast<const T*>(from);
}
template <typename T>
void StoreGlobal(void* to, T value, CodeLine line = CodeLine::Here()) {
  emulated::CheckGlobal(to, sizeof(T), emulated::Access::kStore, line);
  *static_cast<T*>(to) = value;
}
CAIRN_DEVICE void AtomicMax(uint32_t* at, uint32_t value, CodeLine line = CodeLine::Here()) {
  emulated::CheckGlobal(at, sizeof(*at), emulated::Access::kStore, line);
  uint32_t seen = __atomic_load_n(at, __ATOMIC_RELAXED);
  while (seen < value && !__atomic_compare_exchange_n(at, &seen, value, false, __ATOMIC_RELAXED,
                                                      __ATOMIC_RELAXED)) {
  }
}
CAIRN_DEVICE void AtomicAdd(uint64_t* at, uint64_t value, CodeLine line = CodeLine::Here()) {
  emulated::CheckGlobal(at, sizeof(*at), emulated::Access::kStore, line);
  __atomic_fetch_add(at, value, __ATOMIC_RELAXED);
}
template <typename T>
void AtomicAddShared(T* at, T value, CodeLine line = CodeLine::Here()) {
  emulated::CheckShared(at, sizeof(*at), line);
  __atomic_fetch_add(at, value, __ATOMIC_RELAXED);
}
CAIRN_DEVICE uint32_t AtomicOrShared(uint32_t* at, uint32_t value,
                                     CodeLine line = CodeLine::Here()) {
  emulated::CheckShared(at, sizeof(*at), line);
  return __atomic_fetch_or(at, value, __ATOMIC_RELAXED);
}

CAIRN_DEVICE SharedAddress SharedAddressOf(const void* place) {
  return {static_cast<const uint8_t*>(place)};
}
// Modulo 2^32, as on a device.
CAIRN_DEVICE SharedAddress operator+(SharedAddress place, uint32_t bytes) {
  return {place.at + static_cast<int32_t>(bytes)};
}
CAIRN_DEVICE bool operator<(SharedAddress a, SharedAddress b) { return a.at < b.at; }
CAIRN_DEVICE uint32_t BytesBetween(SharedAddress from, SharedAddress to) {
  return static_cast<uint32_t>(to.at - from.at);
}
CAIRN_DEVICE SharedAddress EntryOf(SharedAddress table, uint32_t index) {
  return {table.at + 4 * (index & 255)};
}
template <typename T>
T LoadShared(SharedAddress place, CodeLine line) {
  emulated::CheckShared(place.at, sizeof(T), line);
  return *reinterpret_cast<const T*>(place.at);
}
CAIRN_DEVICE uint32_t LoadShared32(SharedAddress place, CodeLine line = CodeLine::Here()) {
  return LoadShared<uint32_t>(place, line);
}
CAIRN_DEVICE uint32_t LoadShared8(SharedAddress place, CodeLine line = CodeLine::Here()) {
  return LoadShared<uint8_t>(place, line);
}
CAIRN_DEVICE U32x4 LoadShared128(SharedAddress place, CodeLine line = CodeLine::Here()) {
  return LoadShared<U32x4>(place, line);
}

CAIRN_DEVICE void CopyAsync16(void* shared, const void* global, CodeLine line = CodeLine::Here()) {
  emulated::CopyAsync(shared, global, 16, line);
}
CAIRN_DEVICE void CopyCommit() { emulated::CopyCommit(); }
template <int kPending>
void CopyWait() {
  emulated::CopyWait(kPending);
}

CAIRN_DEVICE void MmaBits(int32_t (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                          CodeLine line = CodeLine::Here()) {
  emulated::Mma(emulated::Collective::kMmaBits, d, a, b, line);
}
CAIRN_DEVICE void MmaHalves(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                            CodeLine line = CodeLine::Here()) {
  emulated::Mma(emulated::Collective::kMmaHalves, d, a, b, line);
}
CAIRN_DEVICE void MmaBf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                          CodeLine line = CodeLine::Here()) {
  emulated::Mma(emulated::Collective::kMmaBf16, d, a, b, line);
}

}  // namespace cairn::kernels
