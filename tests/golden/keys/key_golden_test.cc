// SPDX-License-Identifier: Apache-2.0
// Keys are what docs/internals/formats/key.md says: vectors from a second implementation of that
// page.
#include <gtest/gtest.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "proto/block_key.h"
#include "proto/convert.h"

namespace cairn::proto {
namespace {

// JSON is YAML.
const YAML::Node& Vectors() {
  static const auto* vectors = new YAML::Node(YAML::LoadFile(CAIRN_GOLDEN_FILE));
  return *vectors;
}

std::vector<std::byte> Unhex(const std::string& text) {
  std::vector<std::byte> bytes;
  for (size_t i = 0; i + 1 < text.size(); i += 2) {
    bytes.push_back(static_cast<std::byte>(std::stoi(text.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

BlockKey Key(const YAML::Node& node) {
  const std::vector<std::byte> bytes = Unhex(node.as<std::string>());
  BlockKey key{};
  EXPECT_EQ(bytes.size(), key.size());
  std::copy_n(bytes.begin(), std::min(bytes.size(), key.size()), key.begin());
  return key;
}

std::vector<KeyExtra> Extras(const YAML::Node& node) {
  std::vector<KeyExtra> extras;
  for (const YAML::Node& extra : node) {
    const std::vector<std::byte> value = Unhex(extra["value"].as<std::string>());
    extras.push_back({extra["kind"].as<std::string>(), extra["offset"].as<uint32_t>(),
                      std::string(reinterpret_cast<const char*>(value.data()), value.size())});
  }
  return extras;
}

SpaceIdentity Identity(const YAML::Node& spec) {
  SpaceIdentity identity;
  identity.tenant = spec["tenant"].as<std::string>();
  identity.model = spec["model"].as<std::string>();
  identity.weights_revision = spec["weights_revision"].as<std::string>();
  identity.dtype = static_cast<codecs::DType>(spec["dtype"].as<int>());
  identity.tokens_per_block = spec["tokens_per_block"].as<uint32_t>();
  for (const YAML::Node& node : spec["groups"]) {
    GroupGeometry group;
    group.kind = static_cast<GroupGeometry::Kind>(node["kind"].as<int>());
    group.layers = node["layers"].as<std::vector<uint32_t>>();
    group.kv_heads = node["kv_heads"].as<uint32_t>();
    group.k_dim = node["k_dim"].as<uint32_t>();
    group.v_dim = node["v_dim"].as<uint32_t>();
    group.window_tokens = node["window_tokens"].as<uint32_t>();
    group.state_bytes = node["state_bytes"].as<uint32_t>();
    group.row_bytes = node["row_bytes"].as<uint32_t>();
    const YAML::Node rope = node["rope"];
    group.rope.kind = static_cast<Rope::Kind>(rope["kind"].as<int>());
    group.rope.rotary_dims = rope["rotary_dims"].as<uint32_t>();
    group.rope.base = rope["base"].as<double>();
    group.rope.inverse_frequencies = rope["inverse_frequencies"].as<std::vector<double>>();
    identity.groups.push_back(group);
  }
  return identity;
}

TEST(KeyGolden, Fingerprints) {
  ASSERT_GE(Vectors()["spaces"].size(), 10u);
  for (const YAML::Node& vector : Vectors()["spaces"]) {
    SCOPED_TRACE(vector["name"].as<std::string>());
    const SpaceIdentity identity = Identity(vector["spec"]);
    EXPECT_EQ(Validate(identity), absl::OkStatus());
    EXPECT_EQ(Hex(FingerprintOf(identity)), vector["fingerprint"].as<std::string>());
    // The way over protobuf changes nothing.
    const auto again = FromSpec(ToSpec(identity));
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(FingerprintOf(*again), FingerprintOf(identity));
  }
}

TEST(KeyGolden, DerivedKeys) {
  ASSERT_GE(Vectors()["keys"].size(), 10u);
  for (const YAML::Node& vector : Vectors()["keys"]) {
    SCOPED_TRACE(vector["name"].as<std::string>());
    EXPECT_EQ(
        Hex(DeriveKey(Key(vector["space"]), Key(vector["parent"]),
                      vector["tokens"].as<std::vector<uint32_t>>(), Extras(vector["extras"]))),
        vector["key"].as<std::string>());
  }
}

TEST(KeyGolden, Chains) {
  ASSERT_GE(Vectors()["chains"].size(), 4u);
  for (const YAML::Node& vector : Vectors()["chains"]) {
    SCOPED_TRACE(vector["name"].as<std::string>());
    const std::vector<BlockKey> keys =
        DeriveChain(Key(vector["space"]), vector["tokens"].as<std::vector<uint32_t>>(),
                    vector["tokens_per_block"].as<uint32_t>(), Extras(vector["extras"]));
    std::vector<std::string> hex;
    for (const BlockKey& key : keys) {
      hex.push_back(Hex(key));
    }
    EXPECT_EQ(hex, vector["keys"].as<std::vector<std::string>>());
  }
}

TEST(KeyGolden, OpaqueKeys) {
  ASSERT_GE(Vectors()["opaque"].size(), 4u);
  for (const YAML::Node& vector : Vectors()["opaque"]) {
    EXPECT_EQ(Hex(OpaqueKey(Key(vector["space"]), Unhex(vector["engine_key"].as<std::string>()))),
              vector["key"].as<std::string>());
  }
}

}  // namespace
}  // namespace cairn::proto
