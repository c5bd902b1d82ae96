// SPDX-License-Identifier: Apache-2.0
#pragma once
// Records of a ledger at random, each one that its writer takes.

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "codecs/recipe/recipe.h"
#include "proto/block_key.h"
#include "proto/frame.h"
#include "service/tier/space_record.h"
#include "service/tier/ssd/record.h"

namespace cairn {

// min to max, both included.
inline uint64_t Between(uint64_t min, uint64_t max, std::mt19937_64& random) {
  return std::uniform_int_distribution<uint64_t>(min, max)(random);
}

template <typename Bytes>
Bytes RandomBytesOf(std::mt19937_64& random) {
  Bytes bytes;
  for (auto& byte : bytes) {
    byte = static_cast<typename Bytes::value_type>(random());
  }
  return bytes;
}

inline codecs::Slice RandomSlice(std::mt19937_64& random) {
  codecs::Slice slice;
  slice.layer_first = static_cast<uint16_t>(Between(0, 1000, random));
  slice.layer_count = static_cast<uint16_t>(Between(1, 65535 - slice.layer_first, random));
  slice.head_first = static_cast<uint16_t>(Between(0, 65534, random));
  slice.head_count = static_cast<uint16_t>(Between(1, 65535 - slice.head_first, random));
  return slice;
}

inline codecs::Recipe RandomRecipe(std::mt19937_64& random) {
  const auto all = codecs::AllRecipes();
  const uint64_t choice = Between(0, all.size() + 1, random);
  codecs::Recipe recipe;
  if (choice < all.size()) {
    return all[choice];
  }
  if (choice == all.size()) {
    (void)codecs::ParseCairnRecipe("cairn:4.3*9", &recipe);
    recipe.multiplier = static_cast<int16_t>(Between(0, 8192, random)) - 4096;
  } else {
    (void)codecs::ParsePatternkvRecipe("patternkv:4:l2", &recipe);
    recipe.patterns = 32;
  }
  return recipe;
}

inline EngineNamesRef SomeNames(uint32_t token_count) {
  const std::vector<std::byte> hash(32, std::byte{5}), parent(8, std::byte{6});
  proto::EngineNames names = {.hash = proto::EngineHash::From(hash, "hash").value(),
                              .parent = proto::EngineHash::From(parent, "parent").value(),
                              .tokens = {}};
  for (uint32_t i = 0; i < token_count; ++i) names.tokens.push_back(128'000 + i);
  return ShareNames(std::move(names));
}

inline ExtentRecord RandomExtent(std::mt19937_64& random) {
  ExtentRecord record;
  record.space = static_cast<uint32_t>(random());
  record.key = RandomBytesOf<proto::BlockKey>(random);
  record.parent = RandomBytesOf<proto::BlockKey>(random);
  record.first_position = Between(0, proto::kPositionMax, random);
  record.tokens = static_cast<uint16_t>(Between(1, codecs::kTokensPerBlockMax, random));
  record.group = static_cast<uint16_t>(Between(0, proto::kGroupsMax - 1, random));
  record.slice = RandomSlice(random);
  record.source_bytes = Between(1, codecs::kImageBytesMax, random);
  record.recipe = RandomRecipe(random);
  record.image_bytes = Between(1, codecs::kImageBytesMax, random);
  record.directory_crc = static_cast<uint32_t>(random());
  if (random() % 2 == 0) {
    record.side_object = RandomBytesOf<codecs::Digest>(random);
  }
  record.created_unix_s = static_cast<int64_t>(random() >> 1);
  record.expires_unix_s = random() % 2 == 0 ? 0 : static_cast<uint32_t>(random());
  return record;
}

inline proto::GroupGeometry RandomGroup(std::mt19937_64& random) {
  proto::GroupGeometry group;
  for (uint32_t layer = 0; layer < 4; ++layer) {
    group.layers.push_back(layer * 7 + static_cast<uint32_t>(Between(0, 6, random)));
  }
  if (random() % 4 == 0) {
    group.kind = proto::GroupGeometry::Kind::kState;
    group.state_bytes = static_cast<uint32_t>(Between(1, 65536, random));
    return group;
  }
  group.kv_heads = static_cast<uint32_t>(Between(1, 8, random));
  group.k_dim = 128;
  group.v_dim = 64;
  group.window_tokens = static_cast<uint32_t>(Between(0, 4096, random));
  if (random() % 2 == 0) {
    group.rope.kind = proto::Rope::Kind::kHalf;
    group.rope.rotary_dims = 8;
    group.rope.base = 10000.5;
    if (random() % 2 == 0) {
      group.rope.inverse_frequencies = {1, 0.5, 0.25, 1e-9};
    }
  }
  return group;
}

inline SpaceRecord RandomSpace(std::mt19937_64& random) {
  SpaceRecord record;
  record.identity.tenant = "tenant-" + std::to_string(random());
  record.identity.model = "model/" + std::to_string(random());
  record.identity.weights_revision = "r" + std::to_string(random());
  record.identity.dtype = codecs::DType::kFp16;
  record.identity.tokens_per_block = static_cast<uint32_t>(Between(16, 1024, random));
  const uint64_t groups = Between(1, 4, random);
  for (uint32_t i = 0; i < groups; ++i) {
    record.identity.groups.push_back(RandomGroup(random));
    if (random() % 2 == 0) {
      record.current.push_back({.group = i,
                                .kind = random() % 2 == 0 ? proto::SideObjectKind::kProfile
                                                          : proto::SideObjectKind::kBank,
                                .id = RandomBytesOf<codecs::Digest>(random),
                                .is_mined = random() % 2 == 0});
    }
  }
  record.fingerprint = proto::FingerprintOf(record.identity);
  record.recipe = random() % 2 == 0 ? "cairn:2.3" : "exact";
  record.cold_recipe = random() % 2 == 0 ? "cairn:2.3*3" : "";
  record.ttl_s = random() % 2 == 0 ? 0 : static_cast<uint32_t>(random());
  return record;
}

// SpaceRecord has no == of its own: a record without its version.
inline bool IsSame(const SpaceRecord& a, const SpaceRecord& b) {
  return a.fingerprint == b.fingerprint && proto::FingerprintOf(a.identity) == a.fingerprint &&
         proto::FingerprintOf(b.identity) == b.fingerprint && a.recipe == b.recipe &&
         a.cold_recipe == b.cold_recipe && a.ttl_s == b.ttl_s && a.current == b.current;
}

}  // namespace cairn
