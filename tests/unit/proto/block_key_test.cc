// SPDX-License-Identifier: Apache-2.0
// The limits of a space's identity, and that no two inputs share a key. The exact bytes are held by
// tests/golden/keys.
#include "proto/block_key.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <set>
#include <string>
#include <vector>

namespace cairn::proto {
namespace {

using testing::HasSubstr;
using Kind = GroupGeometry::Kind;

SpaceIdentity Plain() {
  SpaceIdentity identity;
  identity.tenant = "default";
  identity.model = "model";
  identity.weights_revision = "revision";
  GroupGeometry group;
  group.layers = {0, 1, 2};
  group.kv_heads = 8;
  group.k_dim = 128;
  group.v_dim = 128;
  group.rope = {Rope::Kind::kHalf, 128, 10000, {}};
  identity.groups = {group};
  return identity;
}

SpaceIdentity Changed(const std::function<void(SpaceIdentity&)>& change) {
  SpaceIdentity identity = Plain();
  change(identity);
  return identity;
}

std::string ErrorOf(const std::function<void(SpaceIdentity&)>& change) {
  const absl::Status status = Validate(Changed(change));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  return std::string(status.message());
}

TEST(SpaceIdentity, TakesEveryKindOfGroup) {
  EXPECT_EQ(Validate(Plain()), absl::OkStatus());
  GroupGeometry latent;
  latent.kind = Kind::kLatent;
  latent.layers = {0};
  latent.kv_heads = 1;
  latent.k_dim = 576;
  GroupGeometry state;
  state.kind = Kind::kState;
  state.layers = {7};
  state.state_bytes = 1 << 20;
  GroupGeometry rows;
  rows.kind = Kind::kOpaqueRows;
  rows.layers = {0, 65535};
  rows.row_bytes = 132;
  EXPECT_EQ(Validate(Changed([&](SpaceIdentity& s) {
              s.groups = {latent, state, rows};
            })),
            absl::OkStatus());
}

TEST(SpaceIdentity, ErrorsNameTheFieldAndTheLimit) {
  using S = SpaceIdentity;
  EXPECT_THAT(ErrorOf([](S& s) { s.tenant = ""; }), HasSubstr("tenant"));
  EXPECT_THAT(ErrorOf([](S& s) { s.tenant = std::string(65, 'a'); }), HasSubstr("1 to 64"));
  EXPECT_THAT(ErrorOf([](S& s) { s.tenant = "a/b"; }), HasSubstr("tenant"));
  EXPECT_THAT(ErrorOf([](S& s) { s.tenant = std::string("a\0", 2); }), HasSubstr("tenant"));
  EXPECT_THAT(ErrorOf([](S& s) { s.model = ""; }), HasSubstr("model"));
  EXPECT_THAT(ErrorOf([](S& s) { s.model = std::string(257, 'a'); }), HasSubstr("1 to 256"));
  EXPECT_THAT(ErrorOf([](S& s) { s.model = "a\nb"; }), HasSubstr("control"));
  EXPECT_THAT(ErrorOf([](S& s) { s.weights_revision = ""; }), HasSubstr("weights_revision"));
  EXPECT_THAT(ErrorOf([](S& s) { s.dtype = codecs::DType::kBytes; }), HasSubstr("dtype"));
  EXPECT_THAT(ErrorOf([](S& s) { s.tokens_per_block = 15; }), HasSubstr("16 to 1024"));
  EXPECT_THAT(ErrorOf([](S& s) { s.tokens_per_block = 1025; }), HasSubstr("tokens_per_block"));
  EXPECT_THAT(ErrorOf([](S& s) { s.groups.clear(); }), HasSubstr("groups count is 0"));
  EXPECT_THAT(ErrorOf([](S& s) { s.groups.resize(17, s.groups[0]); }), HasSubstr("1 to 16"));
  const auto group_error = [](const std::function<void(GroupGeometry&)>& change) {
    return ErrorOf([&](S& s) { change(s.groups[0]); });
  };
  using G = GroupGeometry;
  EXPECT_THAT(group_error([](G& g) { g.kind = static_cast<Kind>(5); }),
              HasSubstr("groups[0].kind"));
  EXPECT_THAT(group_error([](G& g) { g.layers.clear(); }), HasSubstr("layers count"));
  EXPECT_THAT(group_error([](G& g) { g.layers = {1, 1}; }), HasSubstr("ascending"));
  EXPECT_THAT(group_error([](G& g) { g.layers = {65536}; }), HasSubstr("65535"));
  EXPECT_THAT(group_error([](G& g) { g.kv_heads = 0; }), HasSubstr("kv_heads is 0"));
  EXPECT_THAT(group_error([](G& g) { g.kv_heads = 1025; }), HasSubstr("1 to 1024"));
  // What a space may have is what an image can hold.
  EXPECT_EQ(Validate(Changed([](S& s) { s.groups[0].k_dim = s.groups[0].v_dim = 4096; })),
            absl::OkStatus());
  EXPECT_THAT(group_error([](G& g) { g.k_dim = 4097; }),
              HasSubstr("groups[0].k_dim is 4097, expected 1 to 4096"));
  EXPECT_THAT(group_error([](G& g) { g.v_dim = 4097; }),
              HasSubstr("groups[0].v_dim is 4097, expected 1 to 4096"));
  EXPECT_THAT(group_error([](G& g) { g.v_dim = 0; }), HasSubstr("v_dim"));
  EXPECT_THAT(group_error([](G& g) { g.state_bytes = 1; }), HasSubstr("state_bytes"));
  EXPECT_THAT(group_error([](G& g) { g.row_bytes = 1; }), HasSubstr("row_bytes"));
  EXPECT_THAT(group_error([](G& g) { g.window_tokens = UINT32_MAX; }), HasSubstr("window_tokens"));
  EXPECT_THAT(group_error([](G& g) { g.rope.rotary_dims = 130; }), HasSubstr("rope.rotary_dims"));
  EXPECT_THAT(group_error([](G& g) { g.rope.rotary_dims = 3; }), HasSubstr("even"));
  EXPECT_THAT(group_error([](G& g) { g.rope.base = std::numeric_limits<double>::quiet_NaN(); }),
              HasSubstr("rope.base"));
  EXPECT_THAT(group_error([](G& g) { g.rope.base = 1; }), HasSubstr("rope.base"));
  EXPECT_THAT(group_error([](G& g) { g.rope.inverse_frequencies = {1}; }), HasSubstr("64"));
  EXPECT_THAT(group_error([](G& g) {
                g.rope.inverse_frequencies.assign(64, std::numeric_limits<double>::infinity());
              }),
              HasSubstr("finite"));
  EXPECT_THAT(group_error([](G& g) { g.rope.kind = Rope::Kind::kNone; }), HasSubstr("rotary_dims"));
  // Every number within its limit, and the whole beyond any block.
  EXPECT_THAT(ErrorOf([](S& s) {
                s.tokens_per_block = s.groups[0].kv_heads = 1024;
                s.groups[0].k_dim = s.groups[0].v_dim = 1024;
              }),
              HasSubstr("bytes of a block"));
}

TEST(SpaceIdentity, EveryFieldTellsSpacesApart) {
  using S = SpaceIdentity;
  const std::vector<std::function<void(S&)>> changes = {
      [](S&) {},
      [](S& s) { s.tenant = "other"; },
      [](S& s) { s.model = "other"; },
      [](S& s) { s.weights_revision = "other"; },
      [](S& s) { s.model = "modelr", s.weights_revision = "evision"; },
      [](S& s) { s.dtype = codecs::DType::kFp16; },
      [](S& s) { s.tokens_per_block = 64; },
      [](S& s) { s.groups.push_back(s.groups[0]); },
      [](S& s) {
        s.groups[0].layers = {0, 1, 3};
      },
      [](S& s) { s.groups[0].kv_heads = 4; },
      [](S& s) { s.groups[0].k_dim = 64; },
      [](S& s) { s.groups[0].v_dim = 64; },
      [](S& s) { s.groups[0].window_tokens = 4096; },
      [](S& s) { s.groups[0].rope.kind = Rope::Kind::kInterleaved; },
      [](S& s) { s.groups[0].rope.rotary_dims = 64; },
      [](S& s) { s.groups[0].rope.base = 500000; },
      [](S& s) { s.groups[0].rope.inverse_frequencies.assign(64, 1.0); },
      [](S& s) { s.groups[0].rope.inverse_frequencies.assign(64, 2.0); },
      [](S& s) { s.groups[0].kind = Kind::kLatent; },
      [](S& s) { s.groups[0].state_bytes = 1; },
      [](S& s) { s.groups[0].row_bytes = 1; },
  };
  std::set<Fingerprint> fingerprints;
  for (const auto& change : changes) {
    EXPECT_TRUE(fingerprints.insert(FingerprintOf(Changed(change))).second);
  }
}

TEST(BlockKey, EveryInputTellsBlocksApart) {
  const Fingerprint space = FingerprintOf(Plain());
  Fingerprint other = space;
  other[31] ^= std::byte{1};
  const BlockKey none{};
  BlockKey parent{};
  parent[0] = std::byte{1};
  const std::vector<uint32_t> tokens = {1, 2, 3}, longer = {1, 2, 3, 0};
  std::set<BlockKey> keys;
  const auto add = [&keys](const BlockKey& key) { EXPECT_TRUE(keys.insert(key).second); };
  add(DeriveKey(space, none, tokens));
  add(DeriveKey(other, none, tokens));
  add(DeriveKey(space, parent, tokens));
  add(DeriveKey(space, none, longer));
  add(DeriveKey(space, none, tokens, std::vector<KeyExtra>{{"lora", 0, "a"}}));
  add(DeriveKey(space, none, tokens, std::vector<KeyExtra>{{"salt", 0, "a"}}));
  add(DeriveKey(space, none, tokens, std::vector<KeyExtra>{{"lora", 1, "a"}}));
  add(DeriveKey(space, none, tokens, std::vector<KeyExtra>{{"lora", 0, ""}}));
  add(DeriveKey(space, none, tokens, std::vector<KeyExtra>{{"lora", 0, "a"}, {"lora", 1, "a"}}));
  add(OpaqueKey(space, std::as_bytes(std::span(tokens))));
  add(OpaqueKey(other, std::as_bytes(std::span(tokens))));
}

TEST(BlockKey, AChainIsItsBlocksOneByOne) {
  const Fingerprint space = FingerprintOf(Plain());
  std::vector<uint32_t> tokens(100);
  for (uint32_t i = 0; i < 100; ++i) {
    tokens[i] = i * i;
  }
  const std::vector<BlockKey> chain = DeriveChain(space, tokens, 16);
  ASSERT_EQ(chain.size(), 6u);
  BlockKey parent{};
  for (size_t i = 0; i < chain.size(); ++i) {
    parent = DeriveKey(space, parent, std::span(tokens).subspan(16 * i, 16));
    EXPECT_EQ(chain[i], parent);
  }
  tokens[40] += 1;  // in the third block: it and its descendants change
  const std::vector<BlockKey> other = DeriveChain(space, tokens, 16);
  for (size_t i = 0; i < chain.size(); ++i) {
    EXPECT_EQ(chain[i] == other[i], i < 2) << i;
  }
  EXPECT_TRUE(DeriveChain(space, {}, 16).empty());
}

TEST(Hex, IsLowerCase) {
  const std::vector<std::byte> bytes = {std::byte{0}, std::byte{0xAB}, std::byte{0x7F}};
  EXPECT_EQ(Hex(bytes), "00ab7f");
}

}  // namespace
}  // namespace cairn::proto
