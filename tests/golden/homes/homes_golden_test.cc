// SPDX-License-Identifier: Apache-2.0
// Runs, homes and names of locations are what docs/internals/locations.md says: vectors from a
// second implementation of that page.
#include <gtest/gtest.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <string>
#include <vector>

#include "proto/location.h"
#include "service/peer/homes.h"

namespace cairn {
namespace {

// JSON is YAML.
const YAML::Node& Vectors() {
  static const auto* vectors = new YAML::Node(YAML::LoadFile(CAIRN_GOLDEN_FILE));
  return *vectors;
}

proto::BlockKey Key(const YAML::Node& node) {
  const auto text = node.as<std::string>();
  proto::BlockKey key{};
  EXPECT_EQ(text.size(), 2 * key.size());
  for (size_t i = 0; i < key.size() && 2 * i + 1 < text.size(); ++i) {
    key[i] = static_cast<std::byte>(std::stoi(text.substr(2 * i, 2), nullptr, 16));
  }
  return key;
}

TEST(HomesGolden, Scores) {
  ASSERT_GE(Vectors()["scores"].size(), 10u);
  for (const YAML::Node& vector : Vectors()["scores"]) {
    EXPECT_EQ(HomeScore(vector["name"].as<std::string>(), vector["run"].as<uint64_t>()),
              vector["score"].as<uint64_t>());
  }
}

std::vector<std::string> HomesOf(std::vector<std::string> names, uint64_t run) {
  std::ranges::sort(names);
  View view;
  for (const std::string& name : names) {
    Member member;
    member.name = name;
    member.number = static_cast<uint32_t>(view.members.size()) + 1;
    member.state = MemberState::kJoined;
    view.members.push_back(member);
  }
  const Homes::Two two = Homes(view).Of(run);
  std::vector<std::string> found;
  for (const uint32_t number : {two.first, two.second}) {
    if (number != 0) found.push_back(view.Find(number)->name);
  }
  return found;
}

TEST(HomesGolden, Homes) {
  ASSERT_GE(Vectors()["homes"].size(), 50u);
  for (const YAML::Node& vector : Vectors()["homes"]) {
    const uint64_t run = proto::RunOf(Key(vector["key"]));
    EXPECT_EQ(run, vector["run"].as<uint64_t>());
    EXPECT_EQ(HomesOf(vector["members"].as<std::vector<std::string>>(), run),
              vector["homes"].as<std::vector<std::string>>());
  }
}

TEST(HomesGolden, HomesOfManyMembers) {
  ASSERT_GE(Vectors()["homes_of_many"].size(), 20u);
  for (const YAML::Node& vector : Vectors()["homes_of_many"]) {
    std::vector<std::string> names;
    for (int i = 0; i < vector["count"].as<int>(); ++i) {
      names.push_back("node-" + std::to_string(i));
    }
    EXPECT_EQ(HomesOf(names, proto::RunOf(Key(vector["key"]))),
              vector["homes"].as<std::vector<std::string>>());
  }
}

TEST(HomesGolden, Runs) {
  ASSERT_GE(Vectors()["runs"].size(), 20u);
  for (const YAML::Node& vector : Vectors()["runs"]) {
    EXPECT_EQ(proto::RunFirst(vector["position"].as<uint64_t>()), vector["first"].as<uint64_t>());
  }
}

TEST(HomesGolden, Locations) {
  ASSERT_GE(Vectors()["locations"].size(), 8u);
  for (const YAML::Node& vector : Vectors()["locations"]) {
    EXPECT_EQ(proto::Hex(proto::NameLocation(Key(vector["space"]), Key(vector["key"]))),
              vector["name"].as<std::string>());
  }
}

}  // namespace
}  // namespace cairn
