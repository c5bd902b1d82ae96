// SPDX-License-Identifier: Apache-2.0
#include "codecs/mine/bank_miner.h"

#include <algorithm>
#include <utility>

#include "codecs/backend/reference/token_norm.h"
#include "codecs/numbers/cluster.h"
#include "codecs/numbers/float_guard.h"
#include "codecs/pack/elements.h"
#include "codecs/types/bytes.h"
#include "codecs/types/shape.h"

namespace cairn::codecs {
namespace {

constexpr uint32_t kTokensEnd = 1U << 24;

// The tokens of a head that can be coded, and their cluster centres.
class Cluster {
 public:
  Cluster(DType dtype, uint32_t dim, uint32_t tokens, const uint8_t* source) : dim_(dim) {
    std::vector<float> row(dim);
    for (uint64_t token = 0; token < tokens; ++token) {
      for (uint32_t c = 0; c < dim; ++c) row[c] = LoadElement(dtype, source, token * dim + c);
      if (std::ranges::any_of(row, [](float value) { return IsRowValue(value); })) continue;
      points_.insert(points_.end(), row.begin(), row.end());
      ++count_;
    }
    nearest_.resize(count_);
    left_.resize(count_);
  }

  [[nodiscard]] uint32_t count() const { return count_; }

  // REQUIRES: there are at least as many points as centres.
  void Find(uint32_t centres) {
    centres_.resize(size_t{centres} * dim_);
    for (uint32_t i = 0; i < centres; ++i) {
      std::ranges::copy(Point(SeedOf(i, centres, count_)), Centre(i).begin());
    }
    for (uint32_t round = 0; round < kClusterRoundsMax; ++round) {
      Assign(centres);
      if (!Move(centres)) return;
    }
  }

  [[nodiscard]] std::span<float> Centre(uint32_t index) {
    return std::span(centres_).subspan(size_t{index} * dim_, dim_);
  }

 private:
  [[nodiscard]] std::span<const float> Point(uint32_t index) const {
    return std::span(points_).subspan(size_t{index} * dim_, dim_);
  }

  [[nodiscard]] float Distance(uint32_t point, uint32_t centre) {
    const std::span<const float> of = Point(point);
    const std::span<const float> from = Centre(centre);
    float sums[kNormSums] = {};
    for (uint32_t c = 0; c < dim_; ++c) {
      const float left = Add(of[c], -from[c]);
      sums[c % kNormSums] = Add(sums[c % kNormSums], Multiply(left, left));
    }
    return JoinSums(sums);
  }

  // Assigns each point to its nearest centre, the first of equals.
  void Assign(uint32_t centres) {
    for (uint32_t point = 0; point < count_; ++point) {
      nearest_[point] = 0;
      left_[point] = Distance(point, 0);
      for (uint32_t i = 1; i < centres; ++i) {
        const float distance = Distance(point, i);
        if (!(distance < left_[point])) continue;
        nearest_[point] = i;
        left_[point] = distance;
      }
    }
  }

  // Moves centres to the means of their points. A centre without points moves to the point farthest
  // from its own centre, one after another. Returns false if no centre has moved.
  bool Move(uint32_t centres) {
    std::vector<int64_t> sums(size_t{centres} * dim_);
    std::vector<uint32_t> members(centres);
    for (uint32_t point = 0; point < count_; ++point) {
      ++members[nearest_[point]];
      for (uint32_t c = 0; c < dim_; ++c) {
        sums[size_t{nearest_[point]} * dim_ + c] += ClusterUnits(Point(point)[c]);
      }
    }
    bool has_moved = false;
    std::vector<float> to(dim_);
    for (uint32_t i = 0; i < centres; ++i) {
      if (members[i] == 0) {
        const auto farthest = std::ranges::max_element(left_);  // the first
        std::ranges::copy(Point(static_cast<uint32_t>(farthest - left_.begin())), to.begin());
        *farthest = 0;
      } else {
        for (uint32_t c = 0; c < dim_; ++c) {
          to[c] = ClusterMean(sums[size_t{i} * dim_ + c], members[i]);
        }
      }
      const std::span<float> centre = Centre(i);
      for (uint32_t c = 0; c < dim_; ++c) has_moved |= HasMoved(centre[c], to[c]);
      std::ranges::copy(to, centre.begin());
    }
    return has_moved;
  }

  uint32_t dim_;
  uint32_t count_ = 0;
  std::vector<float> points_;
  std::vector<uint32_t> nearest_;
  std::vector<float> left_;  // squared distance of each point from its centre
  std::vector<float> centres_;
};

Error MineHead(Cluster cluster, uint32_t patterns, std::byte* to) {
  if (cluster.count() == 0) return Error::kIncomplete;
  const uint32_t centres = std::min(patterns, cluster.count());
  cluster.Find(centres);
  for (uint32_t i = 0; i < patterns; ++i) {
    for (const float value : cluster.Centre(std::min(i, centres - 1))) {
      Store(to, FloatToFp16(value, Fp16Rounding::kNearestEven));
      to += sizeof(uint16_t);
    }
  }
  return Error::kOk;
}

}  // namespace

Error MineBank(const BankShape& shape, DType dtype, uint32_t tokens,
               std::span<const std::byte> source, std::vector<std::byte>* bank) {
  if (Validate(shape) != Error::kOk || dtype == DType::kBytes || tokens == 0 ||
      tokens >= kTokensEnd) {
    return Error::kInvalidShape;
  }
  const uint64_t heads = uint64_t{shape.layers} * shape.heads;
  const uint64_t token_bytes = (uint64_t{shape.k_dim} + shape.v_dim) * ElementBytes(dtype) * heads;
  if (source.size() != token_bytes * tokens) return Error::kSourceSize;
  const FloatGuard guard;
  std::vector<std::byte> made(BankBytes(shape));
  WriteBankFrame(shape, made);
  const uint8_t* from = U8(source.data());
  for (uint64_t head = 0; head < heads; ++head) {
    for (uint32_t plane = 0; plane < BankPlanes(shape); ++plane) {
      const uint32_t dim = BankDim(shape, plane);
      std::byte* to = made.data() + PatternsAt(shape, plane, head);
      const Error error = MineHead(Cluster(dtype, dim, tokens, from), shape.patterns, to);
      if (error != Error::kOk) return error;
      from += uint64_t{tokens} * dim * ElementBytes(dtype);
    }
  }
  *bank = std::move(made);
  return Error::kOk;
}

}  // namespace cairn::codecs
