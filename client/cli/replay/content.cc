// SPDX-License-Identifier: Apache-2.0
#include "client/cli/replay/content.h"

#include <array>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/status.h"
#include "client/cli/replay/mix.h"
#include "client/cpp/transfer.h"
#include "codecs/mine/profile_miner.h"
#include "codecs/numbers/math.h"
#include "codecs/types/bytes.h"

namespace cairn::replay {
namespace {

constexpr uint32_t kPlanes = 2;
// The sum of four numbers from 0 to 65535 has this mean, and this inverse spread.
constexpr int32_t kSumMean = 2 * 65535;
constexpr float kSumInverse = 1.0F / 37837.2F;
constexpr uint32_t kSampleBlocks = 16;

float Normal(uint64_t counter) {
  const uint64_t bits = Mix(counter);
  const auto sum = static_cast<int32_t>((bits & 0xffff) + (bits >> 16 & 0xffff) +
                                        (bits >> 32 & 0xffff) + (bits >> 48));
  return static_cast<float>(sum - kSumMean) * kSumInverse;
}

}  // namespace

Content::Content(uint32_t dim) : dim_(dim) {
  CAIRN_CHECK(dim >= kContentDimMin && dim <= kContentDimMax);
  for (uint32_t channel = 0; channel < dim; ++channel) {
    spreads_.push_back(std::exp2(static_cast<float>(channel * 5 % 16) / 4 - 2));
  }
  for (uint32_t channel = 0; channel < dim; ++channel) {
    spreads_.push_back(std::exp2(static_cast<float>(channel * 3 % 8) / 8 - 2));
  }
}

proto::SpaceIdentity Content::Identity(const std::string& tenant, const std::string& name) const {
  proto::SpaceIdentity identity;
  identity.tenant = tenant;
  identity.model = "cairn-replay";
  identity.weights_revision = name;
  identity.dtype = codecs::DType::kBf16;
  identity.tokens_per_block = kContentTokens;
  proto::GroupGeometry group;
  group.layers = {0};
  group.kv_heads = 1;
  group.k_dim = group.v_dim = dim_;
  identity.groups = {group};
  return identity;
}

proto::BlockKey Content::KeyOf(const proto::Fingerprint& space, const proto::BlockKey& parent,
                               uint64_t hash_id) {
  std::array<uint32_t, kContentTokens> tokens{};
  tokens[0] = static_cast<uint32_t>(hash_id);
  tokens[1] = static_cast<uint32_t>(hash_id >> 32);
  return proto::DeriveKey(space, parent, tokens);
}

void Content::Fill(const proto::BlockKey& key, std::span<std::byte> block) const {
  CAIRN_CHECK(block.size() == block_bytes());
  // Keys are hashes, so eight bytes distinguish blocks.
  uint64_t counter = codecs::Load<uint64_t>(key.data());
  std::byte* at = block.data();
  for (uint32_t plane = 0; plane < kPlanes; ++plane) {
    const float* spreads = spreads_.data() + size_t{plane} * dim_;
    for (uint32_t token = 0; token < kContentTokens; ++token) {
      for (uint32_t channel = 0; channel < dim_; ++channel, at += 2) {
        codecs::Store(at, codecs::FloatToBf16(Normal(++counter) * spreads[channel]));
      }
    }
  }
}

uint64_t Content::WrongBytes(const proto::BlockKey& key, bool is_lossless,
                             std::span<const std::byte> got, std::span<std::byte> expected) const {
  Fill(key, expected);
  if (std::memcmp(got.data(), expected.data(), got.size()) == 0) {
    return 0;
  }
  uint64_t wrong = 0;
  if (is_lossless) {
    for (size_t i = 0; i < got.size(); ++i) {
      wrong += got[i] != expected[i] ? 1 : 0;
    }
    return wrong;
  }
  const uint64_t plane_bytes = got.size() / kPlanes;
  for (uint32_t plane = 0; plane < kPlanes; ++plane) {
    double squares = 0;
    for (uint64_t i = 0; i < plane_bytes / 2; ++i) {
      const uint64_t at = plane * plane_bytes + 2 * i;
      const float error = codecs::Bf16ToFloat(codecs::Load<uint16_t>(got.data() + at)) -
                          codecs::Bf16ToFloat(codecs::Load<uint16_t>(expected.data() + at));
      const float steps = error / spreads_[size_t{plane} * dim_ + i % dim_];
      squares += double{steps} * steps;
    }
    // False also for a NaN.
    const bool is_near = squares / static_cast<double>(plane_bytes / 2) <= kContentErrorMax;
    wrong += is_near ? 0 : plane_bytes;
  }
  return wrong;
}

absl::StatusOr<std::vector<std::byte>> Content::MineProfile(const codecs::Recipe& recipe) const {
  codecs::MineRequest request;
  request.group.tile = {codecs::GroupKind::kKv, codecs::DType::kBf16, dim_, dim_};
  request.group.layers = request.group.heads = 1;
  request.group.tokens_per_block = kContentTokens;
  request.rates = {recipe.bits};
  CAIRN_RETURN_IF_ERROR(FromCodec(codecs::Validate(request), "a profile of the content"));
  codecs::ProfileMiner miner(std::move(request));
  std::vector<std::byte> block(block_bytes());
  const std::span<const std::byte> source(block);
  while (miner.NeedsPass()) {
    for (uint32_t i = 0; i < kSampleBlocks; ++i) {
      proto::BlockKey key{};
      codecs::Store(key.data(), Mix(i));
      Fill(key, block);
      for (uint32_t plane = 0; plane < kPlanes; ++plane) {
        miner.Add(
            {.at = {0, 0},
             .plane = plane,
             .part = i % codecs::kSampleParts,
             .first_position = uint64_t{i} * kContentTokens,
             .tokens = kContentTokens,
             .source = source.subspan(plane * block.size() / kPlanes, block.size() / kPlanes)});
      }
    }
    miner.EndPass();
  }
  std::vector<std::byte> profile;
  CAIRN_RETURN_IF_ERROR(FromCodec(miner.Write(&profile), "a profile of the content"));
  return profile;
}

}  // namespace cairn::replay
