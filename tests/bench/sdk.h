// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the benchmarks of the SDK share: a space of one group of KV heads in bf16, images of it, and
// results that have to be there.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/status.h"
#include "client/cpp/space.h"
#include "codecs/backend/backends.h"
#include "codecs/image/encode.h"
#include "proto/block_key.h"

namespace cairn::bench {

// The value; CAIRN_CHECKs that there is one.
template <typename T>
T Must(absl::StatusOr<T> value) {
  CAIRN_CHECK_OK(value);
  return *std::move(value);
}

struct KvShape {
  uint32_t layers = 0, heads = 0, dim = 0, tokens = 0;
};

inline proto::SpaceIdentity Identity(const std::string& model, const KvShape& shape) {
  proto::SpaceIdentity identity;
  identity.model = model;
  identity.weights_revision = "r1";
  identity.dtype = codecs::DType::kBf16;
  identity.tokens_per_block = shape.tokens;
  proto::GroupGeometry group;
  group.layers.resize(shape.layers);
  std::iota(group.layers.begin(), group.layers.end(), 0U);
  group.kv_heads = shape.heads;
  group.k_dim = group.v_dim = shape.dim;
  identity.groups = {group};
  return identity;
}

// Random bits, all of them finite values of bf16.
inline std::vector<std::byte> FiniteSource(uint64_t bytes) {
  std::vector<std::byte> source(bytes);
  std::mt19937_64 random(bytes);
  for (size_t i = 0; i < source.size(); i += 8) {
    const uint64_t value = random() & 0xBFFFBFFFBFFFBFFF;
    std::memcpy(&source[i], &value, 8);
  }
  return source;
}

// Writes the `raw` image of the slice of a block; its bytes.
inline uint64_t EncodeRaw(const Space& space, const GroupSlice& slice, const BlockKey& key,
                          std::span<const std::byte> source, std::span<std::byte> target) {
  const codecs::Backend* backend = nullptr;
  CAIRN_CHECK(codecs::ActiveBackend(&backend) == codecs::Error::kOk);
  const codecs::ImageSpec spec = SpecOf(Must(space.Place(slice)), space.fingerprint(), key, 0);
  size_t bytes = 0;
  CAIRN_CHECK(codecs::Encode(*backend, spec, source, target, &bytes) == codecs::Error::kOk);
  return bytes;
}

}  // namespace cairn::bench
