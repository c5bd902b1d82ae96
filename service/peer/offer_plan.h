// SPDX-License-Identifier: Apache-2.0
#pragma once
// Decides which blocks a member that drains offers to whom, and in which order.
//
// The blocks are cut into parts at their chains. A part is a block and all that follow it, if these
// are no more than a fair share of the blocks: one of as many parts as there are members. Blocks
// before such a part follow it to its member, so that each part is a prefix there. Two members have
// a part, by rendezvous hashing of its first key (homes.h). The first one is offered it, and the
// second one what the first one does not take.
//
// A member is offered the last used blocks first. A block comes after those before it in its chain.
//
// Thread-safety: Thread-compatible. No I/O, no clock.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "client/cpp/block_io.h"
#include "proto/block_key.h"
#include "service/members/view.h"
#include "service/peer/offer.h"

namespace cairn {

// Blocks to be offered. A value.
struct OfferableBlocks {
  struct OneSpace {
    proto::SpaceIdentity identity;
    std::string recipe;
  };
  struct OneBlock {
    uint32_t space = 0;   // index in `spaces`
    uint32_t slices = 0;  // index in `slices`
    proto::BlockKey key{};
    proto::BlockKey parent{};  // all zero: none
    uint64_t first_position = 0;
    uint64_t last_use = 0;  // larger: later
    uint64_t image_bytes = 0;
  };
  std::vector<OneSpace> spaces;
  std::vector<std::vector<GroupSlice>> slices;
  std::vector<OneBlock> blocks;  // no two are the same
};

class OfferPlan {
 public:
  struct Options {
    size_t keys_max = 256;  // of one offer
    uint64_t bytes_max = uint64_t{64} << 20;
  };
  // The members are those of the view that have joined, without this daemon.
  OfferPlan(OfferableBlocks offerable, const View& view, Options options);

  // The members that have not been admitted, and that would be offered something.
  std::vector<uint32_t> ToAdmit() const;
  // Offers a member the blocks of the tenants that it may see. The second one gets the others.
  void Admit(uint32_t member, const std::function<bool(std::string_view tenant)>& may_see);
  // The members that have been admitted, have no offer under way, and would get one.
  std::vector<uint32_t> Ready() const;
  // The next offer to a member that is Ready(). Done() or Leave() must follow.
  BlockOffer Next(uint32_t member);
  // The member has answered its offer. REQUIRES: one answer for each of its blocks.
  void Done(uint32_t member, std::span<const OfferAnswer> answers);
  // Offers the member nothing any more. The second one gets what it has not answered.
  void Leave(uint32_t member);

  // Nothing is under way, and nothing is left to be offered to a member that has not left.
  bool is_over() const;

  // The blocks that are to be offered, and those that some member has now: they were read by it, or
  // it had them.
  size_t block_count() const { return offerable_.blocks.size(); }
  size_t taken_count() const { return taken_; }
  size_t had_count() const { return had_; }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  struct Line {  // to a member
    bool is_admitted = false, has_left = false;
    std::vector<uint32_t> queue;             // indices of blocks, in their order
    absl::flat_hash_set<uint32_t> was_told;  // what is or was in the queue
    std::vector<uint32_t> sent;              // under way
    std::vector<bool> sees;                  // by space; empty: all
  };
  enum class Fate : uint8_t { kOpen, kTaken, kHad };

  void Order(std::vector<uint32_t>* order) const;
  void Part(std::span<const uint32_t> order, size_t parts);
  // Adds the block to the member's queue, after those before it in its chain.
  void Push(uint32_t member, uint32_t block);
  // Offers the block to the second one of its members.
  void Pass(uint32_t member, uint32_t block);
  bool Sees(const Line& line, uint32_t block) const {
    return line.sees.empty() || line.sees[offerable_.blocks[block].space];
  }

  const OfferableBlocks offerable_;
  const Options options_;
  std::vector<uint32_t> parents_;  // indices of blocks; kNone: none
  std::vector<uint32_t> parts_;    // the first block of the part; kNone: it is before parts
  std::vector<Fate> fates_;
  std::map<uint32_t, Line> lines_;                           // by number
  std::map<uint32_t, std::pair<uint32_t, uint32_t>> homes_;  // of parts, by their first block
  size_t taken_ = 0, had_ = 0;
};

}  // namespace cairn
