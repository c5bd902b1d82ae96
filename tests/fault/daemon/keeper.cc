// SPDX-License-Identifier: Apache-2.0
#include "tests/fault/daemon/keeper.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "tests/e2e/client/client_fixture.h"

namespace cairn {
namespace {

constexpr auto kBf16 = codecs::DType::kBf16;
constexpr size_t kLeasesMax = 4;

}  // namespace

absl::Status Keeper::Connect(const std::string& control) {
  Disconnect();
  ConnectOptions options;
  options.control = control;
  options.timeout = kPatience;
  options.breaker.is_enforced = false;
  CAIRN_ASSIGN_OR_RETURN(client_, Client::Connect(options));
  proto::SpaceIdentity identity = ToyIdentity(kBf16, options_.name);
  identity.groups.front().kv_heads = options_.heads;
  CAIRN_ASSIGN_OR_RETURN(space_, client_->OpenSpace(identity, options_.recipe, kPatience));
  CAIRN_ASSIGN_OR_RETURN(const uint64_t bytes, space_->SourceBytes({}));
  got_.resize(bytes);
  expected_.resize(bytes);
  for (uint32_t i = 0; i < options_.chains && chains_[i].empty(); ++i) {
    for (const BlockKey& key :
         space_->DeriveChain(ToyTokens(options_.blocks, 1 + i * options_.blocks * kTokens))) {
      chains_[i].push_back({.key = key});
    }
  }
  return absl::OkStatus();
}

void Keeper::Disconnect() {
  leases_.clear();
  space_.reset();
  client_.reset();
}

std::vector<BlockKey> Keeper::Keys() const {
  std::vector<BlockKey> keys;
  for (const Chain& chain : chains_) {
    for (const Block& block : chain) {
      keys.push_back(block.key);
    }
  }
  return keys;
}

uint64_t Keeper::CountThere() {
  const auto there = space_->Contains(Keys(), kPatience);
  EXPECT_TRUE(there.ok()) << there.status();
  return there.ok() ? static_cast<uint64_t>(std::ranges::count(*there, true)) : 0;
}

// Magnitudes about one, the rest at random.
void Keeper::Fill(const BlockKey& key, std::vector<std::byte>* bytes) const {
  uint64_t seed = 0;
  std::memcpy(&seed, key.data(), sizeof(seed));
  std::mt19937_64 random(seed);
  for (size_t at = 0; at + sizeof(uint64_t) <= bytes->size(); at += sizeof(uint64_t)) {
    const uint64_t word = (random() & 0x80FF'80FF'80FF'80FF) | 0x3F00'3F00'3F00'3F00;
    std::memcpy(&(*bytes)[at], &word, sizeof(word));
  }
}

bool Keeper::IsAllowed(const absl::Status& status, const char* call) {
  if (absl::IsNotFound(status) || absl::IsResourceExhausted(status)) {
    return true;
  }
  // The daemon is gone; whether it should be is for who ended it to say.
  EXPECT_TRUE(absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status))
      << call << ": " << status;
  ended_by_ = absl::StrCat(call, ": ", status.ToString());
  return false;
}

absl::Status Keeper::Fetch(const BlockKey& key, const LeaseToken& lease) {
  CAIRN_ASSIGN_OR_RETURN(
      const GetResult result,
      space_->Get({.key = key, .lease = lease, .target = SourceTarget{got_}}, kPatience));
  Fill(key, &expected_);
  EXPECT_TRUE(got_ == expected_) << "wrong bytes of " << proto::Hex(key);
  ++counts_.hits;
  counts_.hits_from_ssd += result.tier == Tier::kSsd ? 1 : 0;
  return absl::OkStatus();
}

bool Keeper::Step() {
  Chain& chain = chains_[random_() % chains_.size()];
  const uint64_t act = random_() % 100;
  if (act < 55) return Put(chain);
  if (act < 55 + options_.delete_percent) return Delete(chain);
  if (act < 75 + options_.delete_percent) return Match(chain);
  return Get(chain[random_() % chain.size()]);
}

// Forgets what was evicted: a durable put would wait for the blocks before it.
bool Keeper::Refresh(Chain& chain) {
  std::vector<BlockKey> keys;
  for (const Block& block : chain) {
    keys.push_back(block.key);
  }
  const auto match = space_->Match({.keys = keys, .is_counting = true, .timeout = kPatience});
  for (size_t i = 0; i < chain.size(); ++i) {
    chain[i].is_there = match.ok() && i < match->block_count;
  }
  return match.ok() || IsAllowed(match.status(), "match");
}

// The first block of the chain that is not there.
bool Keeper::Put(Chain& chain) {
  if (!options_.is_roomy && !Refresh(chain)) {
    return false;
  }
  const auto block = std::ranges::find(chain, false, &Block::is_there);
  if (block == chain.end()) {
    return true;
  }
  const bool is_durable = random_() % 100 < options_.durable_percent;
  Fill(block->key, &expected_);
  const auto place = static_cast<uint64_t>(block - chain.begin());
  block->is_deleted = block->is_lost = false;  // from now on it may be there
  const auto put = space_->Put({.key = block->key,
                                .parent = place == 0 ? BlockKey{} : (block - 1)->key,
                                .first_position = place * kTokens,
                                .is_durable = is_durable,
                                .source = SourceBytes{expected_}},
                               kPatience);
  if (!put.ok()) {
    if (!options_.is_roomy && NotDurableOf(put.status()).has_value()) {
      return true;  // what is before it was evicted
    }
    return IsAllowed(put.status(), "put");
  }
  ++counts_.puts;
  block->is_there = true;
  block->may_miss = block + 1 != chain.end() && (block + 1)->is_there;
  if (is_durable) {
    EXPECT_EQ(put->durability, Durability::kDurable);
    ++counts_.durable_puts;
    for (auto before = chain.begin(); before <= block; ++before) {
      before->is_durable = true;
      before->may_miss = false;
    }
  }
  return true;
}

// A block, or all from it on.
bool Keeper::Delete(Chain& chain) {
  const size_t first = random_() % chain.size();
  const size_t end = random_() % 2 == 0 ? first + 1 : chain.size();
  std::vector<Block*> blocks;
  for (size_t i = first; i < end; ++i) {
    blocks.push_back(&chain[i]);
  }
  return Delete(blocks);
}

bool Keeper::DeleteEnds() {
  std::vector<Block*> blocks;
  for (Chain& chain : chains_) {
    for (size_t i = random_() % chain.size(); i < chain.size(); ++i) {
      blocks.push_back(&chain[i]);
    }
  }
  return Delete(blocks);
}

bool Keeper::Delete(const std::vector<Block*>& blocks) {
  std::vector<BlockKey> keys;
  for (Block* block : blocks) {
    keys.push_back(block->key);
    block->is_there = block->is_durable = block->is_lost = false;
    block->may_miss = true;
  }
  const auto deleted = space_->Delete(keys, kPatience);
  if (!deleted.ok()) {
    return IsAllowed(deleted.status(), "delete");
  }
  counts_.deleted += *deleted;
  for (Block* block : blocks) {
    block->is_deleted = true;
  }
  return true;
}

bool Keeper::Match(Chain& chain) {
  std::vector<BlockKey> keys;
  for (const Block& block : chain) {
    keys.push_back(block.key);
  }
  const auto match = space_->Match({.keys = keys, .timeout = kPatience});
  if (!match.ok()) {
    return IsAllowed(match.status(), "match");
  }
  const auto gone = std::ranges::find(chain, true, &Block::is_deleted) - chain.begin();
  const auto there = std::ranges::find(chain, false, &Block::is_there) - chain.begin();
  EXPECT_LE(match->block_count, gone) << "a deleted block, or a tail without its root";
  EXPECT_TRUE(match->block_count >= there || !options_.is_roomy) << match->block_count << there;
  if (match->block_count == 0) {
    return true;
  }
  ++counts_.leases;
  leases_.push_back(match->lease);
  for (int i = 0; i < 3; ++i) {
    const BlockKey& key = keys[random_() % match->block_count];
    if (const absl::Status got = Fetch(key, match->lease); !got.ok()) {
      EXPECT_FALSE(absl::IsNotFound(got)) << "a leased block is there: " << proto::Hex(key);
      return IsAllowed(got, "get");
    }
  }
  if (leases_.size() > kLeasesMax) {
    const LeaseToken lease = leases_.front();
    leases_.pop_front();
    if (const absl::Status status = client_->Release({&lease, 1}, kPatience); !status.ok()) {
      return IsAllowed(status, "release");
    }
  }
  return true;
}

bool Keeper::Get(Block& block) {
  const absl::Status got = Fetch(block.key, {});
  EXPECT_TRUE(!got.ok() || !block.is_deleted) << "deleted: " << proto::Hex(block.key);
  EXPECT_TRUE(!absl::IsNotFound(got) || !block.is_there || !options_.is_roomy)
      << "it was put: " << proto::Hex(block.key);
  if (!got.ok()) {
    block.is_there = block.is_there && options_.is_roomy;
    return IsAllowed(got, "get");
  }
  return true;
}

void Keeper::Check(const Expected& expected) {
  for (Chain& chain : chains_) {
    if (!CheckChain(chain, expected)) {
      ADD_FAILURE() << "a call of the check failed";
      return;
    }
  }
}

bool Keeper::CheckChain(Chain& chain, const Expected& expected) {
  std::vector<BlockKey> keys;
  for (const Block& block : chain) {
    keys.push_back(block.key);
  }
  const auto contained = space_->Contains(keys, kPatience);
  const auto match = space_->Match({.keys = keys, .timeout = kPatience});
  if (!contained.ok() || !match.ok()) {
    return false;
  }
  EXPECT_EQ(match->block_count, std::ranges::find(*contained, false) - contained->begin());
  std::vector<bool> there(chain.size());
  for (size_t i = 0; i < chain.size(); ++i) {
    if (!(*contained)[i]) {
      continue;
    }
    const absl::Status got =
        Fetch(chain[i].key, i < match->block_count ? match->lease : LeaseToken{});
    there[i] = got.ok();
    if (!got.ok() && (expected.is_whole || !absl::IsNotFound(got))) {
      ADD_FAILURE() << "it is there, and not: " << got;
      return false;
    }
  }
  (void)client_->Release({&match->lease, 1}, kPatience);
  for (size_t i = 0; i < chain.size(); ++i) {
    Block& block = chain[i];
    const std::string name = absl::StrCat("block ", i, " ", proto::Hex(block.key));
    const bool is_owed =
        block.is_durable && (expected.is_whole || expected.spared.contains(block.key));
    EXPECT_TRUE(there[i] || !is_owed) << name << " was durable";
    EXPECT_FALSE(there[i] && block.is_deleted) << name << " was deleted, and came back";
    EXPECT_TRUE(!expected.is_closed || i == 0 || !there[i] || there[i - 1] || chain[i - 1].may_miss)
        << name << " is a tail without its root";
    counts_.checked += is_owed ? 1 : 0;
    counts_.came_back += there[i] && block.is_lost ? 1 : 0;
    counts_.lost += block.is_durable && !there[i] ? 1 : 0;
    block.is_lost = !there[i] && (block.is_durable || block.is_lost);
    block.is_there = block.is_durable = there[i];
    block.may_miss = !there[i];
  }
  return true;
}

}  // namespace cairn
