// SPDX-License-Identifier: Apache-2.0
#pragma once
// The functions and macros with which kernel bodies are written. With nvcc they are CUDA. With any
// other compiler they call an executor, so that tests run the same source on a CPU
// (kernels/emulated.h).
//
// - CAIRN_KERNEL and CAIRN_BOUNDS(threads, blocks) precede a kernel, CAIRN_DEVICE a function that
//   kernels call, and CAIRN_DEVICE_MEMBER a member function. CAIRN_UNROLL and CAIRN_NO_UNROLL
//   precede a loop.
// - CAIRN_SHARED(Type, name) declares the block's shared memory. The launch provides sizeof(Type)
//   bytes.
// - Kernels access global memory only through LoadGlobal, LoadRecord, StoreGlobal, CopyAsync16 and
//   atomics. Constants of the module (CAIRN_TABLE) are indexed as arrays.
// - Collectives (functions in which lanes exchange data) take a mask of the participating lanes;
//   the default is all 32.
//
// Uses only the integer types of the standard library.

#include <cstdint>

#include "codecs/numbers/math.h"

namespace cairn::kernels {

struct alignas(16) U32x4 {
  uint32_t x, y, z, w;
};
struct alignas(8) U32x2 {
  uint32_t x, y;
};

// An address in shared memory. On a device it has 32 bits.
struct SharedAddress {
#if defined(__CUDACC__)
  uint32_t at;
#else
  const uint8_t* at;
#endif
};

inline constexpr uint32_t kWarpLanes = 32;
inline constexpr uint32_t kAllLanes = 0xFFFFFFFF;

}  // namespace cairn::kernels

#if !defined(__CUDACC__)
#include "kernels/emulated.h"
#else

#define CAIRN_KERNEL __global__ void
#define CAIRN_BOUNDS(threads, blocks) __launch_bounds__(threads, blocks)
#define CAIRN_DEVICE static __device__ __forceinline__
#define CAIRN_DEVICE_MEMBER __device__ __forceinline__
#define CAIRN_UNROLL _Pragma("unroll")
#define CAIRN_NO_UNROLL _Pragma("unroll 1")
#define CAIRN_SHARED(Type, name)                                       \
  extern __shared__ __align__(128) unsigned char cairn_shared_bytes[]; \
  Type& name = *reinterpret_cast<Type*>(cairn_shared_bytes)

namespace cairn::kernels {

CAIRN_DEVICE uint32_t ThreadIndex() { return threadIdx.x; }
CAIRN_DEVICE uint32_t BlockIndex() { return blockIdx.x; }
CAIRN_DEVICE uint32_t GridBlocks() { return gridDim.x; }

CAIRN_DEVICE void SyncBlock() { __syncthreads(); }
// Waits like SyncBlock(). Returns true if any thread of the block passed true.
CAIRN_DEVICE bool SyncBlockOr(bool value) { return __syncthreads_or(value ? 1 : 0) != 0; }
CAIRN_DEVICE void SyncWarp(uint32_t mask = kAllLanes) { __syncwarp(mask); }
CAIRN_DEVICE uint32_t Ballot(bool value, uint32_t mask = kAllLanes) {
  return __ballot_sync(mask, value);
}
CAIRN_DEVICE bool Any(bool value, uint32_t mask = kAllLanes) {
  return __any_sync(mask, value) != 0;
}
CAIRN_DEVICE uint32_t Shuffle(uint32_t value, uint32_t lane, uint32_t mask = kAllLanes) {
  return __shfl_sync(mask, value, static_cast<int>(lane));
}
CAIRN_DEVICE uint32_t ShuffleXor(uint32_t value, uint32_t lanes, uint32_t mask = kAllLanes) {
  return __shfl_xor_sync(mask, value, static_cast<int>(lanes));
}
CAIRN_DEVICE uint32_t ReduceOr(uint32_t value, uint32_t mask = kAllLanes) {
  return __reduce_or_sync(mask, value);
}
// Returns the value of lane 0 in all lanes. The compiler then knows that all lanes have the same
// value.
CAIRN_DEVICE uint32_t Uniform(uint32_t value) { return __shfl_sync(kAllLanes, value, 0); }

CAIRN_DEVICE uint32_t CountBits(uint32_t value) { return static_cast<uint32_t>(__popc(value)); }
// REQUIRES: value is not 0.
CAIRN_DEVICE uint32_t LowestBit(uint32_t value) { return static_cast<uint32_t>(__ffs(value)) - 1; }
// Returns a word in which byte i is byte (selector >> 4 i & 7) of the 8 bytes of a and b.
CAIRN_DEVICE uint32_t PermuteBytes(uint32_t a, uint32_t b, uint32_t selector) {
  return __byte_perm(a, b, selector);
}
// Returns c plus the sum of the products of the bytes of a and b.
CAIRN_DEVICE uint32_t DotBytes(uint32_t a, uint32_t b, uint32_t c) { return __dp4a(a, b, c); }
// Returns the bits of a where the bits of mask are 1, else the bits of b.
CAIRN_DEVICE uint32_t Choose(uint32_t mask, uint32_t a, uint32_t b) {
  uint32_t chosen;
  asm("lop3.b32 %0, %1, %2, %3, 0xCA;" : "=r"(chosen) : "r"(mask), "r"(a), "r"(b));
  return chosen;
}
// Returns a * b + c, rounded once.
CAIRN_DEVICE float FusedMultiplyAdd(float a, float b, float c) { return __fmaf_rn(a, b, c); }

// Returns the larger of two numbers.
CAIRN_DEVICE float Larger(float a, float b) { return fmaxf(a, b); }

// Pack two finite values, rounded as in codecs/numbers/math.h, with `low` in the lower half.
CAIRN_DEVICE uint32_t PackBf16(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}
CAIRN_DEVICE uint32_t PackFp16(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}
CAIRN_DEVICE float HalfToFloat(uint32_t bits) {
  float value;
  asm("{ .reg .b16 low, high; mov.b32 {low, high}, %1; cvt.f32.f16 %0, low; }"
      : "=f"(value)
      : "r"(bits));
  return value;
}
// Round a value to fp16, down or up. REQUIRES: it is in the range of fp16.
CAIRN_DEVICE uint32_t HalfBelow(float value) {
  uint16_t bits;
  asm("cvt.rm.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
}
CAIRN_DEVICE uint32_t HalfAbove(float value) {
  uint16_t bits;
  asm("cvt.rp.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
}

// Return the smaller (or larger) value for each half of a word. The result is a NaN if one of the
// two values is.
CAIRN_DEVICE uint32_t LeastBf16(uint32_t a, uint32_t b) {
  uint32_t least;
  asm("min.NaN.bf16x2 %0, %1, %2;" : "=r"(least) : "r"(a), "r"(b));
  return least;
}
CAIRN_DEVICE uint32_t LargestBf16(uint32_t a, uint32_t b) {
  uint32_t largest;
  asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(largest) : "r"(a), "r"(b));
  return largest;
}
CAIRN_DEVICE uint32_t LeastFp16(uint32_t a, uint32_t b) {
  uint32_t least;
  asm("min.NaN.f16x2 %0, %1, %2;" : "=r"(least) : "r"(a), "r"(b));
  return least;
}
CAIRN_DEVICE uint32_t LargestFp16(uint32_t a, uint32_t b) {
  uint32_t largest;
  asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(largest) : "r"(a), "r"(b));
  return largest;
}

// Multiplies the two fp16 of each word, each product rounded to fp16.
CAIRN_DEVICE uint32_t MultiplyHalves(uint32_t a, uint32_t b) {
  uint32_t products;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(products) : "r"(a), "r"(b));
  return products;
}
// Returns 2^x within a few units in the last place, or 0 if the result would be a denormal. Only
// for kernels whose results are approximate.
CAIRN_DEVICE float Exp2Near(float x) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
}

// Loads through the read-only cache, which may have old content. So this launch must not store to
// that memory. REQUIRES: `from` is aligned to the loaded size.
template <typename T>
CAIRN_DEVICE T LoadGlobal(const void* from) {
  if constexpr (sizeof(T) == 16) {
    const uint4 v = __ldg(static_cast<const uint4*>(from));
    return __builtin_bit_cast(T, v);
  } else if constexpr (sizeof(T) == 8) {
    const uint2 v = __ldg(static_cast<const uint2*>(from));
    return __builtin_bit_cast(T, v);
  } else {
    return __ldg(static_cast<const T*>(from));
  }
}
// Loads from any memory, including memory to which this launch stores: stores of other lanes or
// threads of the block are visible after SyncWarp() or SyncBlock(). REQUIRES: `from` is aligned to
// the loaded size.
template <typename T>
CAIRN_DEVICE T LoadRecord(const void* from) {
  return *static_cast<const T*>(from);
}
// Stores that bypass the caches, for data that is not read soon.
template <typename T>
CAIRN_DEVICE void StoreGlobal(void* to, T value) {
  if constexpr (sizeof(T) == 16) {
    __stcs(static_cast<uint4*>(to), __builtin_bit_cast(uint4, value));
  } else if constexpr (sizeof(T) == 8) {
    __stcs(static_cast<uint2*>(to), __builtin_bit_cast(uint2, value));
  } else {
    *static_cast<T*>(to) = value;
  }
}
CAIRN_DEVICE void AtomicMax(uint32_t* at, uint32_t value) { atomicMax(at, value); }
CAIRN_DEVICE void AtomicAdd(uint64_t* at, uint64_t value) {
  atomicAdd(reinterpret_cast<unsigned long long*>(at), static_cast<unsigned long long>(value));
}
CAIRN_DEVICE void AtomicAddShared(uint32_t* at, uint32_t value) { atomicAdd(at, value); }
CAIRN_DEVICE void AtomicAddShared(uint64_t* at, uint64_t value) { AtomicAdd(at, value); }
// Returns the previous value of the word.
CAIRN_DEVICE uint32_t AtomicOrShared(uint32_t* at, uint32_t value) { return atomicOr(at, value); }

CAIRN_DEVICE SharedAddress SharedAddressOf(const void* place) {
  return {static_cast<uint32_t>(__cvta_generic_to_shared(place))};
}
CAIRN_DEVICE SharedAddress operator+(SharedAddress place, uint32_t bytes) {
  return {place.at + bytes};
}
CAIRN_DEVICE bool operator<(SharedAddress a, SharedAddress b) { return a.at < b.at; }
CAIRN_DEVICE uint32_t BytesBetween(SharedAddress from, SharedAddress to) { return to.at - from.at; }
// Returns table + 4 * (index mod 256), in one instruction.
CAIRN_DEVICE SharedAddress EntryOf(SharedAddress table, uint32_t index) {
  return {__dp4a(index, 4U, table.at)};
}
CAIRN_DEVICE uint32_t LoadShared32(SharedAddress place) {
  uint32_t value;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(value) : "r"(place.at));
  return value;
}
CAIRN_DEVICE uint32_t LoadShared8(SharedAddress place) {
  uint32_t value;
  asm volatile("ld.shared.u8 %0, [%1];" : "=r"(value) : "r"(place.at));
  return value;
}
CAIRN_DEVICE U32x4 LoadShared128(SharedAddress place) {
  U32x4 v;
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(place.at));
  return v;
}

// Copies 16 bytes from global to shared memory. The copy completes before CopyWait() for its group
// returns.
CAIRN_DEVICE void CopyAsync16(void* shared, const void* global) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(SharedAddressOf(shared).at),
               "l"(global)
               : "memory");
}
CAIRN_DEVICE void CopyCommit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most kPending of this thread's own groups of copies are incomplete.
template <int kPending>
CAIRN_DEVICE void CopyWait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// d[16 x 8] += popcount(a[16 x 256 bits] & b[256 bits x 8]), distributed to lanes as in
// mma.m16n8k256.
CAIRN_DEVICE void MmaBits(int32_t (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k256.row.col.s32.b1.b1.s32.and.popc "
      "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
// d[16 x 8] += a[16 x 16] * b[16 x 8], fp16 in fp32, distributed to lanes as in mma.m16n8k16.
// Denormals are kept.
CAIRN_DEVICE void MmaHalves(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
// The same instruction for bf16.
CAIRN_DEVICE void MmaBf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

}  // namespace cairn::kernels
#endif
