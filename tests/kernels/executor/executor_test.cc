// SPDX-License-Identifier: Apache-2.0
// The executor runs right kernels right, and says of wrong ones what is wrong.
#include "tests/kernels/executor/executor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <vector>

namespace cairn::kernels {
namespace {

using emulated::Launch;
using emulated::Region;
using testing::HasSubstr;

constexpr uint32_t kThreads = 128;

struct WordArgs {
  const uint32_t* source;
  uint32_t* target;
};

constexpr uint32_t kWords = 1024;
constexpr uint32_t kApart = 256;  // words between those that are the kernel's and others

// Words that kernels load, and words that they store.
class ExecutorTest : public testing::Test {
 protected:
  WordArgs Args() { return {source_.data(), target_.data()}; }

  std::vector<uint32_t> source_ = [] {
    std::vector<uint32_t> words(kWords + kApart);
    for (uint32_t i = 0; i < words.size(); ++i) words[i] = i * 2654435761U;
    return words;
  }();
  std::vector<uint32_t> target_ = std::vector<uint32_t>(kWords + kApart);
  Region source_region_{source_.data(), 4 * kWords, false};
  Region target_region_{target_.data(), 4 * kWords, true};
};

CAIRN_KERNEL Number(WordArgs args) {
  const uint32_t at = BlockIndex() * kThreads + ThreadIndex();
  StoreGlobal(args.target + at, LoadGlobal<uint32_t>(args.source + at) + GridBlocks());
}

TEST_F(ExecutorTest, RunsEachThreadOfEachBlock) {
  EXPECT_EQ(Launch<Number>(8, kThreads, 1, Args()).fault, "");
  for (uint32_t i = 0; i < kWords; ++i) ASSERT_EQ(target_[i], source_[i] + 8) << i;
}

CAIRN_KERNEL UseCollectives(WordArgs args) {
  const uint32_t thread = ThreadIndex(), lane = thread % kWarpLanes;
  const uint32_t value = LoadGlobal<uint32_t>(args.source + thread);
  uint32_t sum = Ballot((value & 1) != 0);
  sum += Shuffle(value, lane + 5) * 3;
  sum += ShuffleXor(value, 8) * 5;
  sum += ReduceOr(value & 0xFF) * 7;
  sum += Uniform(value) * 11;
  // Half of a warp by itself.
  if (lane < 16) sum += Ballot((value & 2) != 0, 0xFFFF) * 13;
  sum += SyncBlockOr(thread == 77) ? 17 : 0;
  sum += SyncBlockOr(false) ? 19 : 0;
  StoreGlobal(args.target + thread, sum);
}

TEST_F(ExecutorTest, GivesCollectivesTheirResults) {
  for (uint64_t seed = 0; seed < 8; ++seed) {
    ASSERT_EQ(Launch<UseCollectives>(1, kThreads, 1, Args(), {.seed = seed}).fault, "");
    for (uint32_t thread = 0; thread < kThreads; ++thread) {
      const uint32_t warp = thread / 32 * 32, lane = thread % 32;
      uint32_t odd = 0, second = 0, all = 0;
      for (uint32_t i = 0; i < 32; ++i) {
        odd |= (source_[warp + i] & 1) << i;
        if (i < 16) second |= (source_[warp + i] >> 1 & 1) << i;
        all |= source_[warp + i] & 0xFF;
      }
      uint32_t want = odd + source_[warp + (lane + 5) % 32] * 3 + source_[warp + (lane ^ 8)] * 5;
      want += all * 7 + source_[warp] * 11 + (lane < 16 ? second * 13 : 0) + 17;
      ASSERT_EQ(target_[thread], want) << thread;
    }
  }
}

CAIRN_KERNEL MultiplyBits(WordArgs args) {
  const uint32_t lane = ThreadIndex();
  uint32_t a[4];
  uint32_t b[2];
  for (uint32_t i = 0; i < 4; ++i) a[i] = LoadGlobal<uint32_t>(args.source + 4 * lane + i);
  for (uint32_t i = 0; i < 2; ++i) b[i] = LoadGlobal<uint32_t>(args.source + 128 + 2 * lane + i);
  int32_t d[4] = {1, 2, 3, 4};
  MmaBits(d, a, b);
  for (uint32_t i = 0; i < 4; ++i) {
    StoreGlobal(args.target + 4 * lane + i, static_cast<uint32_t>(d[i]));
  }
}

TEST_F(ExecutorTest, MultipliesBitsAsPtxSpreadsThem) {
  ASSERT_EQ(Launch<MultiplyBits>(1, 32, 1, Args()).fault, "");
  for (uint32_t row = 0; row < 16; ++row) {
    for (uint32_t column = 0; column < 8; ++column) {
      uint32_t sum = 0;
      for (uint32_t bit = 0; bit < 256; ++bit) {
        const uint32_t word = bit / 32, half = word / 4, part = word % 4;
        const uint32_t a = source_[4 * (row % 8 * 4 + part) + row / 8 + 2 * half];
        const uint32_t b = source_[128 + 2 * (column * 4 + part) + half];
        sum += (a & b) >> bit % 32 & 1;
      }
      const uint32_t slot = row / 8 * 2 + column % 2;
      ASSERT_EQ(target_[4 * (row % 8 * 4 + column / 2) + slot], sum + slot + 1);
    }
  }
}

// Halves of a and b are small whole numbers, a denormal each eighth.
template <bool kIsBf16>
CAIRN_KERNEL MultiplyHalfWords(WordArgs args) {
  const uint32_t lane = ThreadIndex();
  uint32_t a[4], b[2];
  float d[4];
  for (uint32_t i = 0; i < 4; ++i) {
    a[i] = LoadGlobal<uint32_t>(args.source + 4 * lane + i);
    d[i] = static_cast<float>(i);
  }
  for (uint32_t i = 0; i < 2; ++i) b[i] = LoadGlobal<uint32_t>(args.source + 128 + 2 * lane + i);
  if constexpr (kIsBf16) {
    MmaBf16(d, a, b);
  } else {
    MmaHalves(d, a, b);
  }
  for (uint32_t i = 0; i < 4; ++i) {
    StoreGlobal(args.target + 4 * lane + i, codecs::FloatBits(d[i]));
  }
}

// What a product of halves, in 16 bits each, makes of them.
template <auto kToFloat>
void CheckProducts(const uint32_t* source, const uint32_t* target) {
  for (uint32_t row = 0; row < 16; ++row) {
    for (uint32_t column = 0; column < 8; ++column) {
      const uint32_t slot = row / 8 * 2 + column % 2;
      double sum = slot;
      for (uint32_t k = 0; k < 16; ++k) {
        const uint32_t half = k / 8, part = k % 8 / 2;
        const uint32_t a = source[4 * (row % 8 * 4 + part) + row / 8 + 2 * half];
        const uint32_t b = source[128 + 2 * (column * 4 + part) + half];
        sum += double{kToFloat(static_cast<uint16_t>(a >> 16 * (k % 2)))} *
               kToFloat(static_cast<uint16_t>(b >> 16 * (k % 2)));
      }
      ASSERT_EQ(codecs::BitsFloat(target[4 * (row % 8 * 4 + column / 2) + slot]),
                static_cast<float>(sum));
    }
  }
}

TEST_F(ExecutorTest, MultipliesHalvesAsPtxSpreadsThem) {
  for (uint32_t i = 0; i < 192; ++i) {
    const auto half = [&](uint32_t number) -> uint32_t {
      if (number % 8 == 0) return number % 1024;  // times 2^-24
      return codecs::FloatToFp16(static_cast<float>(number % 17), codecs::Fp16Rounding::kUp);
    };
    source_[i] = half(i * 7 + 3) | half(i * 5 + 1) << 16;
  }
  ASSERT_EQ(Launch<MultiplyHalfWords<false>>(1, 32, 1, Args()).fault, "");
  CheckProducts<&codecs::Fp16ToFloat>(source_.data(), target_.data());
  for (uint32_t i = 0; i < 192; ++i) {
    const auto half = [&](uint32_t number) -> uint32_t {
      return codecs::FloatToBf16(static_cast<float>(number % 17));
    };
    source_[i] = half(i * 7 + 3) | half(i * 5 + 1) << 16;
  }
  ASSERT_EQ(Launch<MultiplyHalfWords<true>>(1, 32, 1, Args()).fault, "");
  CheckProducts<&codecs::Bf16ToFloat>(source_.data(), target_.data());
}

struct Words {
  uint32_t of[kThreads];
};

// Each thread reads what its neighbour in the next warp wrote.
template <bool kIsSynced>
CAIRN_KERNEL Rotate(WordArgs args) {
  CAIRN_SHARED(Words, shared);
  const uint32_t thread = ThreadIndex();
  shared.of[thread] = LoadGlobal<uint32_t>(args.source + thread);
  if (kIsSynced) SyncBlock();
  StoreGlobal(args.target + thread, shared.of[(thread + kWarpLanes) % kThreads]);
}

bool IsRotated(const std::vector<uint32_t>& source, const std::vector<uint32_t>& target) {
  for (uint32_t i = 0; i < kThreads; ++i) {
    if (target[i] != source[(i + kWarpLanes) % kThreads]) return false;
  }
  return true;
}

TEST_F(ExecutorTest, ShowsTheLackOfABarrier) {
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    ASSERT_EQ(Launch<Rotate<true>>(1, kThreads, sizeof(Words), Args(), {.seed = seed}).fault, "");
    EXPECT_TRUE(IsRotated(source_, target_));
#if !defined(__SANITIZE_THREAD__)
    ASSERT_EQ(Launch<Rotate<false>>(1, kThreads, sizeof(Words), Args(), {.seed = seed}).fault, "");
    EXPECT_FALSE(IsRotated(source_, target_));
#endif
  }
}

// Lanes of a warp that meet at a ballot are in step, but nothing orders what they stored.
template <bool kIsSynced>
CAIRN_KERNEL Reverse(WordArgs args) {
  CAIRN_SHARED(Words, shared);
  const uint32_t lane = ThreadIndex();
  shared.of[lane] = LoadGlobal<uint32_t>(args.source + lane);
  Ballot(true);
  if (kIsSynced) SyncWarp();
  StoreGlobal(args.target + lane, shared.of[kWarpLanes - 1 - lane]);
}

#if defined(__SANITIZE_THREAD__)
TEST_F(ExecutorTest, OrdersBySyncsAlone) {
  // A program of its own: after a fork of a program with fibers the sanitizer does not see syncs.
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto run = [&](auto launch) {
    launch();
    std::exit(0);
  };
  const auto right = testing::ExitedWithCode(0), wrong = testing::ExitedWithCode(66);
  EXPECT_EXIT(run([&] { Launch<Rotate<true>>(2, kThreads, sizeof(Words), Args()); }), right, "");
  EXPECT_EXIT(run([&] { Launch<Rotate<false>>(2, kThreads, sizeof(Words), Args()); }), wrong,
              "data race");
  EXPECT_EXIT(run([&] { Launch<Reverse<true>>(2, 32, sizeof(Words), Args()); }), right, "");
  EXPECT_EXIT(run([&] { Launch<Reverse<false>>(2, 32, sizeof(Words), Args()); }), wrong,
              "data race");
}
#else
TEST_F(ExecutorTest, KeepsLanesThatMeetInStep) {
  ASSERT_EQ(Launch<Reverse<false>>(1, 32, sizeof(Words), Args()).fault, "");
  for (uint32_t i = 0; i < 32; ++i) ASSERT_EQ(target_[i], source_[31 - i]);
}
#endif

template <bool kIsWaited>
CAIRN_KERNEL CopyLate(WordArgs args) {
  CAIRN_SHARED(Words, shared);
  const uint32_t thread = ThreadIndex();
  if (thread < kWarpLanes) {
    CopyAsync16(shared.of + 4 * thread, args.source + 4 * thread);
    CopyCommit();
    if (kIsWaited) CopyWait<0>();
    SyncWarp();
    for (uint32_t i = 0; i < 4; ++i) {
      StoreGlobal(args.target + 4 * thread + i, shared.of[4 * thread + i]);
    }
    CopyWait<0>();
  }
}

TEST_F(ExecutorTest, BringsCopiesAtTheWait) {
  ASSERT_EQ(Launch<CopyLate<true>>(1, kThreads, sizeof(Words), Args()).fault, "");
  for (uint32_t i = 0; i < kThreads; ++i) ASSERT_EQ(target_[i], source_[i]);
  ASSERT_EQ(Launch<CopyLate<false>>(1, kThreads, sizeof(Words), Args()).fault, "");
  uint32_t equal = 0;
  for (uint32_t i = 0; i < kThreads; ++i) equal += target_[i] == source_[i] ? 1 : 0;
  EXPECT_LT(equal, 4U);
}

CAIRN_KERNEL ReadUnwritten(WordArgs args) {
  CAIRN_SHARED(Words, shared);
  StoreGlobal(args.target + ThreadIndex(), shared.of[ThreadIndex()]);
}

TEST_F(ExecutorTest, FillsSharedMemoryWithNoise) {
  ASSERT_EQ(Launch<ReadUnwritten>(1, kThreads, sizeof(Words), Args()).fault, "");
  uint32_t zeros = 0;
  for (uint32_t i = 0; i < kThreads; ++i) zeros += target_[i] == 0 ? 1 : 0;
  EXPECT_LT(zeros, 4U);
}

// ---- Wrong kernels. Each does what its number says. ----

enum class Wrong : uint8_t {
  kNotInOwnMask,
  kReadsOutsideMask,
  kWaitsForReturned,
  kDiverges,
  kDeadlocks,
  kSameLineOfTwoFiles,
  kTwoBarriers,
  kLoadsPastEnd,
  kStoresPastEnd,
  kStoresToSource,
  kMisaligned,
  kLoadsStored,
  kTooMuchShared,
  kSharedPastEnd,
  kLeavesCopies,
  kMisalignedCopy,
};

CAIRN_DEVICE void DoCollective(Wrong wrong, WordArgs args) {
  const uint32_t lane = ThreadIndex() % kWarpLanes;
  switch (wrong) {
    case Wrong::kNotInOwnMask:
      Ballot(true, 0x7FFFFFFF);
      break;
    case Wrong::kReadsOutsideMask:
      if (lane < 16) Shuffle(lane, 20, 0xFFFF);
      break;
    case Wrong::kWaitsForReturned:
      if (lane != 3) SyncWarp();
      break;
    case Wrong::kDiverges:
      if (lane % 2 == 0) {
        Ballot(true);
      } else {
        Ballot(false);
      }
      break;
    case Wrong::kSameLineOfTwoFiles:
      Ballot(true, kAllLanes, {lane % 2 == 0 ? "one.h" : "other.h", 80});
      break;
    case Wrong::kDeadlocks:
      if (ThreadIndex() == 40) SyncWarp();  // for lanes that wait for it at the barrier
      SyncBlock();
      break;
    default:
      if (ThreadIndex() < kWarpLanes) {
        SyncBlock();
      } else {
        SyncBlock();
      }
  }
  StoreGlobal(args.target + ThreadIndex(), lane);
}

CAIRN_DEVICE void TouchMemory(Wrong wrong, WordArgs args, Words* shared) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(args.source);
  if (wrong == Wrong::kLoadsPastEnd) LoadGlobal<uint32_t>(args.source + 1000 + ThreadIndex());
  if (wrong == Wrong::kStoresPastEnd) StoreGlobal(args.target + 1000 + ThreadIndex(), 1U);
  if (wrong == Wrong::kStoresToSource) StoreGlobal(const_cast<uint32_t*>(args.source), 1U);
  if (wrong == Wrong::kMisaligned) LoadGlobal<uint32_t>(bytes + 2);
  if (wrong == Wrong::kLoadsStored) {
    StoreGlobal(args.target, LoadRecord<uint32_t>(args.target));
    LoadGlobal<uint32_t>(args.target);
  }
  if (wrong == Wrong::kSharedPastEnd)
    LoadShared32(SharedAddressOf(shared) + 4 * (ThreadIndex() + 1));
  if (wrong == Wrong::kMisalignedCopy) CopyAsync16(shared->of + 1, args.source);
  if (wrong == Wrong::kLeavesCopies) {
    CopyAsync16(shared->of, args.source);
    CopyCommit();
  }
}

struct WrongArgs {
  Wrong wrong;
  WordArgs words;
};

CAIRN_KERNEL DoWrong(WrongArgs args) {
  CAIRN_SHARED(Words, shared);
  if (args.wrong <= Wrong::kTwoBarriers) return DoCollective(args.wrong, args.words);
  TouchMemory(args.wrong, args.words, &shared);
}

TEST_F(ExecutorTest, SaysWhatIsWrong) {
  struct Case {
    Wrong wrong;
    const char* fault;
  };
  constexpr Case kCases[] = {
      {Wrong::kNotInOwnMask, "lane 31 is not in its own mask 7fffffff"},
      {Wrong::kReadsOutsideMask, "reads lane 20, which is not in the mask 0000ffff"},
      {Wrong::kWaitsForReturned, "waits for lane 3, which has returned"},
      {Wrong::kDiverges, "at executor_test.cc:"},
      {Wrong::kSameLineOfTwoFiles, "lanes of a warp meet at different places"},
      {Wrong::kDeadlocks, "deadlock: thread"},
      {Wrong::kTwoBarriers, "meet at different barriers"},
      {Wrong::kLoadsPastEnd, "touches 4 bytes of global memory that are not the kernel's"},
      {Wrong::kStoresPastEnd, "touches 4 bytes of global memory that are not the kernel's"},
      {Wrong::kStoresToSource, "touches 4 bytes of global memory to store where only loads may go"},
      {Wrong::kMisaligned, "touches 4 bytes of global memory that are misaligned"},
      {Wrong::kLoadsStored, "4 bytes of global memory by LoadGlobal() that the launch has stored"},
      {Wrong::kTooMuchShared, "512 bytes of shared memory are used, 511 were launched with"},
      {Wrong::kSharedPastEnd, "4 bytes outside shared memory, at offset 512"},
      {Wrong::kLeavesCopies, "returns with copies under way"},
      {Wrong::kMisalignedCopy, "misaligned: 16 bytes of shared memory at offset 4"},
  };
  for (const Case& one : kCases) {
    const size_t shared_bytes = sizeof(Words) - (one.wrong == Wrong::kTooMuchShared ? 1 : 0);
    const WrongArgs args{one.wrong, Args()};
    const emulated::Report report = Launch<DoWrong>(1, kThreads, shared_bytes, args);
    EXPECT_THAT(report.fault, HasSubstr(one.fault));
    // The next launch knows nothing of it.
    EXPECT_EQ(Launch<Number>(8, kThreads, 1, Args()).fault, "");
  }
}

}  // namespace
}  // namespace cairn::kernels
