// SPDX-License-Identifier: Apache-2.0
#include "service/peer/offer_plan.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "base/check.h"
#include "proto/location.h"
#include "service/peer/homes.h"

namespace cairn {

OfferPlan::OfferPlan(OfferableBlocks offerable, const View& view, Options options)
    : offerable_(std::move(offerable)), options_(options), fates_(offerable_.blocks.size()) {
  const auto& blocks = offerable_.blocks;
  absl::flat_hash_map<std::pair<uint32_t, proto::BlockKey>, uint32_t> indices;
  for (uint32_t i = 0; i < blocks.size(); ++i) indices[{blocks[i].space, blocks[i].key}] = i;
  parents_.assign(blocks.size(), kNone);
  for (uint32_t i = 0; i < blocks.size(); ++i) {
    const auto found = indices.find({blocks[i].space, blocks[i].parent});
    // Positions grow along a chain, so that no chain is a circle.
    if (found != indices.end() && blocks[found->second].first_position < blocks[i].first_position) {
      parents_[i] = found->second;
    }
  }
  View others;
  for (const Member& member : view.members) {
    if (!member.is_self && member.state == MemberState::kJoined && member.has_name()) {
      others.members.push_back(member);
    }
  }
  const Homes homes(others);
  if (homes.count() == 0) return;
  std::vector<uint32_t> order;
  Order(&order);
  Part(order, homes.count());
  for (const uint32_t block : order) {
    const uint32_t part = parts_[block];
    if (part == kNone) continue;
    if (part == block) {
      const Homes::Two two = homes.Of(proto::RunOf(blocks[block].key));
      homes_[part] = {two.first, two.second};
    }
    Push(homes_.at(part).first, block);
  }
}

// A block is as hot as the hottest block that follows it. So it comes before these.
void OfferPlan::Order(std::vector<uint32_t>* order) const {
  const auto& blocks = offerable_.blocks;
  order->resize(blocks.size());
  std::iota(order->begin(), order->end(), 0);
  std::vector<uint64_t> heat(blocks.size());
  for (size_t i = 0; i < blocks.size(); ++i) heat[i] = blocks[i].last_use;
  std::ranges::sort(*order, std::greater<>(), [&](uint32_t i) { return blocks[i].last_use; });
  for (const uint32_t block : *order) {
    // Ends: positions fall. Each block is warmed once, by the hottest one.
    for (uint32_t i = parents_[block]; i != kNone && heat[i] < heat[block]; i = parents_[i]) {
      heat[i] = heat[block];
    }
  }
  std::ranges::sort(*order, [&](uint32_t a, uint32_t b) {
    if (heat[a] != heat[b]) return heat[a] > heat[b];
    return blocks[a].first_position < blocks[b].first_position;
  });
}

void OfferPlan::Part(std::span<const uint32_t> order, size_t parts) {
  const auto& blocks = offerable_.blocks;
  std::vector<uint32_t> by_position(order.begin(), order.end());
  std::ranges::stable_sort(by_position, {}, [&](uint32_t i) { return blocks[i].first_position; });
  std::vector<size_t> following(blocks.size(), 1);  // it, and all that follow it
  for (auto i = by_position.rbegin(); i != by_position.rend(); ++i) {
    if (parents_[*i] != kNone) following[parents_[*i]] += following[*i];
  }
  const size_t fair = (blocks.size() + parts - 1) / parts;
  parts_.assign(blocks.size(), kNone);
  for (const uint32_t block : by_position) {
    const uint32_t parent = parents_[block];
    if (parent != kNone && parts_[parent] != kNone) {
      parts_[block] = parts_[parent];
    } else if (following[block] <= fair) {
      parts_[block] = block;
    }
  }
}

void OfferPlan::Push(uint32_t member, uint32_t block) {
  if (member == 0) return;
  Line& line = lines_[member];
  if (line.has_left) return;
  std::vector<uint32_t> before;
  for (uint32_t i = block; i != kNone && !line.was_told.contains(i); i = parents_[i]) {
    before.push_back(i);  // ends: positions fall
  }
  for (auto i = before.rbegin(); i != before.rend(); ++i) {
    if (line.is_admitted && !Sees(line, *i)) continue;
    line.was_told.insert(*i);
    line.queue.push_back(*i);
  }
}

void OfferPlan::Pass(uint32_t member, uint32_t block) {
  if (fates_[block] != Fate::kOpen || parts_[block] == kNone) return;
  const auto [first, second] = homes_.at(parts_[block]);
  if (member == first) Push(second, block);
}

// --- Members -------------------------------------------------------------------------------------

std::vector<uint32_t> OfferPlan::ToAdmit() const {
  std::vector<uint32_t> members;
  for (const auto& [member, line] : lines_) {
    if (!line.is_admitted && !line.has_left && !line.queue.empty()) members.push_back(member);
  }
  return members;
}

void OfferPlan::Admit(uint32_t member,
                      const std::function<bool(std::string_view tenant)>& may_see) {
  Line& line = lines_[member];
  if (line.has_left) return;
  line.is_admitted = true;
  for (const auto& space : offerable_.spaces) line.sees.push_back(may_see(space.identity.tenant));
  std::vector<uint32_t> hidden;
  std::erase_if(line.queue, [&](uint32_t block) {
    if (Sees(line, block)) return false;
    hidden.push_back(block);
    return true;
  });
  for (const uint32_t block : hidden) Pass(member, block);
}

std::vector<uint32_t> OfferPlan::Ready() const {
  std::vector<uint32_t> members;
  for (const auto& [member, line] : lines_) {
    if (line.is_admitted && line.sent.empty() && !line.queue.empty()) members.push_back(member);
  }
  return members;
}

// --- Offers --------------------------------------------------------------------------------------

BlockOffer OfferPlan::Next(uint32_t member) {
  Line& line = lines_.at(member);
  CAIRN_CHECK(line.sent.empty() && !line.queue.empty());
  const auto& blocks = offerable_.blocks;
  const auto& first = blocks[line.queue.front()];
  BlockOffer offer;
  offer.identity = offerable_.spaces[first.space].identity;
  offer.recipe = offerable_.spaces[first.space].recipe;
  offer.slices = offerable_.slices[first.slices];
  // Blocks of other spaces and slices wait, and so do the blocks that follow these.
  const size_t looked_at_max = 4 * options_.keys_max;
  absl::flat_hash_set<uint32_t> waiting;
  std::vector<uint32_t> rest;
  uint64_t bytes = 0;
  size_t i = 0;
  for (; i < line.queue.size() && i < looked_at_max && line.sent.size() < options_.keys_max; ++i) {
    const uint32_t index = line.queue[i];
    const auto& block = blocks[index];
    const bool fits = line.sent.empty() || bytes + block.image_bytes <= options_.bytes_max;
    if (!fits || block.space != first.space || block.slices != first.slices ||
        waiting.contains(parents_[index])) {
      waiting.insert(index);
      rest.push_back(index);
      if (fits) continue;
      ++i;
      break;
    }
    bytes += block.image_bytes;
    line.sent.push_back(index);
    offer.keys.push_back(block.key);
    offer.parents.push_back(block.parent);
    offer.image_bytes.push_back(block.image_bytes);
  }
  rest.insert(rest.end(), line.queue.begin() + static_cast<ptrdiff_t>(i), line.queue.end());
  line.queue = std::move(rest);
  return offer;
}

void OfferPlan::Done(uint32_t member, std::span<const OfferAnswer> answers) {
  Line& line = lines_.at(member);
  CAIRN_CHECK(line.sent.size() == answers.size());
  const std::vector<uint32_t> sent = std::exchange(line.sent, {});
  for (size_t i = 0; i < sent.size(); ++i) {
    Fate& fate = fates_[sent[i]];
    switch (answers[i]) {
      case OfferAnswer::kTaken:
      case OfferAnswer::kHad:
        if (fate != Fate::kOpen) break;
        fate = answers[i] == OfferAnswer::kTaken ? Fate::kTaken : Fate::kHad;
        ++(fate == Fate::kTaken ? taken_ : had_);
        break;
      case OfferAnswer::kDeclined:
      case OfferAnswer::kFailed:
        Pass(member, sent[i]);
        break;
    }
  }
  // A member without any room will have none for the rest.
  if (std::ranges::all_of(answers, [](auto a) { return a == OfferAnswer::kDeclined; })) {
    Leave(member);
  }
}

void OfferPlan::Leave(uint32_t member) {
  Line& line = lines_[member];
  line.has_left = true;
  std::vector<uint32_t> open = std::exchange(line.sent, {});
  open.insert(open.end(), line.queue.begin(), line.queue.end());
  line.queue.clear();
  for (const uint32_t block : open) Pass(member, block);
}

bool OfferPlan::is_over() const {
  return std::ranges::all_of(lines_, [](const auto& line) {
    return line.second.queue.empty() && line.second.sent.empty();
  });
}

}  // namespace cairn
