// SPDX-License-Identifier: Apache-2.0
#pragma once
// Makes bytes of profiles for tests, in the format of docs/internals/formats/profile.md.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <vector>

#include "codecs/numbers/math.h"
#include "codecs/side/profile.h"
#include "codecs/types/bytes.h"

namespace cairn::codecs {

struct ProfileShape {
  uint16_t layers = 1;
  uint16_t heads = 1;
  uint32_t k_dim = 16;
  uint32_t v_dim = 16;  // 0: a profile of latents
  RopeKind rope = RopeKind::kNone;
  uint16_t rotary_first = 0;
  uint16_t rotary_dims = 0;
  bool has_basis = false;
  bool has_own_tables = false;  // each plane and profile has tables and offsets of its own
};

// Returns a shape with this K dimension, and with random V, RoPE and basis.
inline ProfileShape AnyProfileShape(uint32_t dim, std::mt19937_64& random) {
  const auto below = [&](uint64_t bound) { return static_cast<uint32_t>(random() % bound); };
  ProfileShape shape{.heads = 2, .k_dim = dim, .v_dim = 1 + below(140)};
  if (below(5) == 0) shape.v_dim = 0;
  if (below(3) != 0 && dim >= 2) {
    shape.rope = below(2) == 0 ? RopeKind::kHalf : RopeKind::kInterleaved;
    shape.rotary_dims = static_cast<uint16_t>(2 + below(dim / 2) * 2);
    if (below(2) == 0) shape.rotary_dims = static_cast<uint16_t>(dim / 2 * 2);
    shape.rotary_first = static_cast<uint16_t>(below(dim - shape.rotary_dims + 1));
  }
  shape.has_basis = dim <= 140 && below(4) == 0;
  return shape;
}

class ProfileBytes {
 public:
  ProfileBytes(const ProfileShape& shape, std::mt19937_64 random) : shape_(shape), random_(random) {
    Header();
    for (uint32_t i = 0; i < shape.rotary_dims / 2; ++i) Put<uint64_t>(random_() >> (i % 40));
    Align();
    Put<uint16_t>(23);
    Put<int16_t>(0);
    Put<uint16_t>(43);
    Put<int16_t>(-500);
    Align();
    const uint32_t dims[2] = {shape.k_dim, shape.v_dim};
    for (uint32_t plane = 0; plane < Planes(); ++plane) Tables(plane);
    for (uint32_t plane = 0; plane < Planes(); ++plane) Channels(dims[plane]);
    if (shape.has_basis) Basis();
    Store(bytes_.data() + 8, uint64_t{bytes_.size()});
  }

  [[nodiscard]] std::vector<std::byte>& bytes() { return bytes_; }

 private:
  [[nodiscard]] uint32_t Planes() const { return shape_.v_dim == 0 ? 1 : 2; }
  [[nodiscard]] uint64_t HeadCount() const { return uint64_t{shape_.layers} * shape_.heads; }
  [[nodiscard]] float Uniform(float low, float high) {
    return std::uniform_real_distribution<float>(low, high)(random_);
  }

  template <typename Value>
  void Put(Value value) {
    bytes_.resize(bytes_.size() + sizeof(value));
    std::memcpy(bytes_.data() + bytes_.size() - sizeof(value), &value, sizeof(value));
  }
  void Align() { bytes_.resize(AlignSection(bytes_.size())); }

  void Header() {
    Put(kProfileMagic);
    Put(kProfileVersion);
    Put<uint16_t>(64);
    Put<uint64_t>(0);
    Put<uint8_t>(static_cast<uint8_t>(Planes()));
    Put(shape_.rope);
    Put<uint8_t>(shape_.has_basis ? 1 : 0);
    Put<uint8_t>(0);
    Put(shape_.layers);
    Put(shape_.heads);
    Put(shape_.k_dim);
    Put(shape_.v_dim);
    Put(shape_.rotary_first);
    Put(shape_.rotary_dims);
    Put<uint16_t>(2);
    bytes_.resize(kProfileHeaderBytes);
  }

  // Writes tables whose bell curves are wider for each next table.
  void Tables(uint32_t plane) {
    std::mt19937_64 own = random_;  // keeps random_ independent of the tables
    own.discard(plane);
    const bool is_own = shape_.has_own_tables;
    const double wider = is_own ? 1 + static_cast<double>(own() % 64) / 128 : 1;
    const auto offset = static_cast<int32_t>(is_own ? own() % 5 : 0);
    for (uint32_t table = 0; table < kProfileTables; ++table) {
      int32_t left = 255;
      uint8_t frequencies[kCoderSymbols] = {};
      frequencies[kEscapeSymbol] = 1;
      const double width = wider * 0.3 * std::exp2(table / 4.0);
      for (int32_t away = 7; away > 0; --away) {
        const auto share = static_cast<int32_t>(100 / width * std::exp(-away * away / width));
        frequencies[7 - away] = frequencies[7 + away] = static_cast<uint8_t>(share);
        left -= 2 * share;
      }
      frequencies[7] = static_cast<uint8_t>(left);
      for (const uint8_t frequency : frequencies) Put(frequency);
    }
    Align();
    for (int32_t i = 0; i < static_cast<int32_t>(2 * kProfileTables); ++i) {
      Put(static_cast<int8_t>(offset - i));
    }
    Align();
  }

  void Channels(uint32_t dim) {
    for (uint64_t i = 0; i < HeadCount() * dim; ++i) {
      Put(Uniform(-4, 4));
      const auto step = static_cast<int16_t>(Uniform(-512, 256));
      Put(step);
      Put(static_cast<int16_t>(step + Uniform(-900, 1500)));
    }
    Align();
  }

  void Basis() {
    std::vector<float> scales(HeadCount() * shape_.k_dim);
    for (float& scale : scales) Put(scale = Uniform(0.25, 4));
    Align();
    for (const float scale : scales) Put(1 / scale);
    Align();
    for (uint64_t head = 0; head < HeadCount(); ++head) Reflection();
    Align();
  }

  // Writes a random reflection, which is its own inverse.
  void Reflection() {
    std::vector<float> normal(shape_.k_dim);
    float square = 0;
    for (float& x : normal) {
      x = Uniform(-1, 1);
      square += x * x;
    }
    for (uint32_t c = 0; c < shape_.k_dim; ++c) {
      for (uint32_t j = 0; j < shape_.k_dim; ++j) {
        const float one = c == j ? 1.0F : 0.0F;
        Put(FloatToFp16(one - 2 * normal[c] * normal[j] / square, Fp16Rounding::kNearestEven));
      }
    }
  }

  ProfileShape shape_;
  std::mt19937_64 random_;
  std::vector<std::byte> bytes_;
};

}  // namespace cairn::codecs
