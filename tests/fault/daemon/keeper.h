// SPDX-License-Identifier: Apache-2.0
#pragma once
// A client that keeps chains of blocks in a daemon, and a model of what it was promised: what was
// answered is what it expects of the next process (docs/internals/durability.md). What a block
// contains follows from its key.
//
// Thread-safety: Thread-compatible. The chains of a keeper are its own.

#include <cstdint>
#include <deque>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "client/cpp/client.h"
#include "client/cpp/space.h"

namespace cairn {

class Keeper {
 public:
  struct Options {
    std::string name;  // of its model
    std::string recipe = "raw";
    uint64_t seed = 1;
    uint32_t chains = 8, blocks = 24;  // of each chain
    uint32_t heads = 4;                // of a block: 8 KiB each
    uint32_t durable_percent = 25;     // of its puts
    uint32_t delete_percent = 7;       // of its steps; 55 are puts, 20 matches, the rest gets
    bool is_roomy = true;              // nothing is evicted from the daemon's tiers
  };
  // What happened, since it was made.
  struct Counts {
    uint64_t puts = 0, durable_puts = 0, deleted = 0, hits = 0, hits_from_ssd = 0, leases = 0;
    uint64_t checked = 0;    // blocks that had to be there after a start, and were
    uint64_t lost = 0;       // of those that were durable, to damage or eviction
    uint64_t came_back = 0;  // of those, once what they were lost with was there again
  };
  // What a check may expect.
  struct Expected {
    bool is_whole = true;       // all that is durable
    bool is_closed = true;      // and no block without those before it
    std::set<BlockKey> spared;  // what is durable and of these, where it is not whole
  };

  explicit Keeper(const Options& options)
      : options_(options), random_(options.seed), chains_(options.chains) {}

  // With a session of its own, in the place of the one that it has.
  absl::Status Connect(const std::string& control);
  void Disconnect();

  // Something at random: a put, a deletion, a match with gets, or a get. True: go on. False: the
  // daemon does not answer any more. A wrong answer fails the test.
  bool Step();
  // Deletes the ends of all chains, by one call. False: it was not answered.
  bool DeleteEnds();
  // The call that got no answer, and how it ended.
  const std::string& ended_by() const { return ended_by_; }
  // What a new process has of all chains. Fails the test where it is not as expected, and takes
  // what it found for what there is.
  void Check(const Expected& expected);
  // As it found them last, by the index.
  uint64_t CountThere();
  std::vector<BlockKey> Keys() const;

  const Counts& counts() const { return counts_; }
  Client& client() { return *client_; }
  Space& space() { return *space_; }

 private:
  struct Block {
    BlockKey key{};
    bool is_there = false;    // as far as the daemon has said
    bool is_durable = false;  // so says the daemon, or it was there after a start
    bool is_deleted = false;  // so says the daemon: no process brings it back
    bool is_lost = false;     // it was durable, and went with a device
    bool may_miss = false;    // it may be gone while those after it are there
  };
  using Chain = std::vector<Block>;

  bool Refresh(Chain& chain);
  bool Put(Chain& chain);
  bool Delete(Chain& chain);
  bool Delete(const std::vector<Block*>& blocks);
  bool Match(Chain& chain);
  bool Get(Block& block);
  bool CheckChain(Chain& chain, const Expected& expected);
  // Looks up the block's bytes, by a lease that covers it or none. NotFound: a miss.
  absl::Status Fetch(const BlockKey& key, const LeaseToken& lease);
  // Whether a call that failed so may: it is a miss or a refusal. Else the daemon is gone, or the
  // test fails.
  bool IsAllowed(const absl::Status& status, const char* call);
  void Fill(const BlockKey& key, std::vector<std::byte>* bytes) const;

  const Options options_;
  std::mt19937_64 random_;
  std::unique_ptr<Client> client_;
  std::unique_ptr<Space> space_;
  std::vector<Chain> chains_;
  std::deque<LeaseToken> leases_;  // not given back yet
  std::vector<std::byte> expected_, got_;
  std::string ended_by_;
  Counts counts_;
};

}  // namespace cairn
