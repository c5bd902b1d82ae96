// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tiles to try a backend's steps on, in buffers that end where the tile does.

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <random>
#include <span>

#include "codecs/backend/backend.h"
#include "codecs/numbers/math.h"
#include "codecs/types/shape.h"
#include "tests/support/elements.h"

namespace cairn::codecs {

// An address without memory, for what is only prefetched.
inline const auto* const kNoMemory = reinterpret_cast<const uint8_t*>(uintptr_t{4096});

// Bytes at a chosen distance from alignment, between guards that show a stray write (and, in an
// ASan build, a stray read, since the block ends with the bytes but for the guard behind them).
class GuardedBytes {
 public:
  GuardedBytes(size_t count, size_t misalignment, uint8_t fill = 0xA5)
      : misalignment_(misalignment),
        count_(count),
        block_(static_cast<uint8_t*>(
            ::operator new (kGuard + misalignment + count, std::align_val_t{kGuard}))) {
    std::memset(block_.get(), kPattern, kGuard + misalignment);
    std::memset(data(), fill, count);
  }

  [[nodiscard]] uint8_t* data() { return block_.get() + kGuard + misalignment_; }
  [[nodiscard]] const uint8_t* data() const { return block_.get() + kGuard + misalignment_; }
  [[nodiscard]] size_t size() const { return count_; }
  [[nodiscard]] bool IsIntact() const {
    for (size_t i = 0; i < kGuard + misalignment_; ++i) {
      if (block_[i] != kPattern) return false;
    }
    return true;
  }
  [[nodiscard]] bool Equals(const GuardedBytes& other) const {
    return count_ == other.count_ && std::memcmp(data(), other.data(), count_) == 0;
  }

 private:
  static constexpr size_t kGuard = 64;  // and the alignment
  static constexpr uint8_t kPattern = 0xE7;
  size_t misalignment_;
  size_t count_;
  struct Delete {
    void operator()(uint8_t* block) const { ::operator delete (block, std::align_val_t{kGuard}); }
  };
  std::unique_ptr<uint8_t[], Delete> block_;
};

enum class Content : uint8_t {
  kBell,       // what KV looks like
  kOffset,     // small ranges far from zero
  kTails,      // a few large values
  kTies,       // positions that fall on half steps
  kMirrored,   // ranges with zero in their middle, and values next to it
  kTiny,       // around the denormals of fp16 and of the dtype
  kConstants,  // groups without a range, exact and not
  kAnyBits,    // every pattern of bits, so NaN and infinities
  kFewRows,    // bell, with some tokens that cannot be coded
  kCount,
};

class TileMaker {
 public:
  explicit TileMaker(std::mt19937_64& random) : random_(random) {}

  void Fill(const AffineTile& tile, Content content, uint8_t* target) {
    for (uint32_t token = 0; token < tile.tokens; ++token) {
      for (uint32_t channel = 0; channel < tile.dim; ++channel) {
        const uint64_t index = uint64_t{token} * tile.dim + channel;
        if (content == Content::kAnyBits || (content == Content::kFewRows && random_() % 97 == 0)) {
          StoreBits(tile.dtype, target, index, static_cast<uint32_t>(random_()));
        } else {
          StoreValue(tile.dtype, target, index, Value(content, token, channel));
        }
      }
    }
  }

  [[nodiscard]] size_t Misalignment() { return random_() % 4 == 0 ? 0 : random_() % 64; }

 private:
  float Value(Content content, uint32_t token, uint32_t channel) {
    const float bell = bell_(random_);
    switch (content) {
      case Content::kOffset:
        return static_cast<float>(static_cast<int>(channel % 7) * 300 - 900) + bell / 32.0F;
      case Content::kTails:
        return bell * bell * bell * bell * bell;
      case Content::kTies:
        return static_cast<float>(static_cast<int>(random_() % 511)) * 0.5F - 64.0F;
      case Content::kMirrored:
        if (random_() % 4 == 0) return bell * 0x1p-26F;
        return static_cast<float>(static_cast<int>(random_() % 13) - 6) *
               static_cast<float>(1 + channel % 3 * 40);
      case Content::kTiny:
        return bell * (random_() % 2 == 0 ? 0x1p-23F : 0x1p-130F);
      case Content::kConstants:
        if (channel % 3 == 0) return 0.75F;
        if (channel % 64 < 3 || random_() % 4096 == 0) return bell;
        return token % 5 == 0 ? 0.1F : (token % 5 == 1 ? -0.0F : 0.5F);
      default:
        return bell;
    }
  }

  static void StoreBits(DType dtype, uint8_t* target, uint64_t index, uint32_t bits) {
    const size_t bytes = ElementBytes(dtype);
    std::memcpy(target + index * bytes, &bits, bytes);
  }

  static void StoreValue(DType dtype, uint8_t* target, uint64_t index, float value) {
    StoreBits(dtype, target, index, BitsOfValue(dtype, value));
  }

  std::mt19937_64& random_;
  std::normal_distribution<float> bell_{0.0F, 1.0F};
};

}  // namespace cairn::codecs
