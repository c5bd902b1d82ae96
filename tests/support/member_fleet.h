// SPDX-License-Identifier: Apache-2.0
#pragma once
// The members of a cluster in one process. Each has what a daemon has: its members and view, the
// plan of what it announces to which home, and the table of what it was told as a home. Blocks are
// names, calls between members are function calls, and time is a FakeClock's.
//
// Thread-safety: Thread-compatible.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/check.h"
#include "base/clock.h"
#include "service/members/members.h"
#include "service/peer/announce_plan.h"
#include "service/peer/announced.h"
#include "service/peer/homes.h"
#include "service/peer/located.h"
#include "service/peer/location_table.h"
#include "tests/support/fake_clock.h"

namespace cairn {

class MemberFleet {
 public:
  // What the members have done, in the time of one processor.
  struct Work {
    absl::Duration all, most_of_one;
    uint64_t batches = 0, names = 0;
    absl::Duration lag;  // on the clock of the members
    void Add(absl::Duration one) {
      all += one;
      most_of_one = std::max(most_of_one, one);
    }
  };

  MemberFleet(size_t members, size_t blocks_each, uint64_t table_bytes, uint64_t seed)
      : random_(seed) {
    for (size_t i = 0; i < members; ++i) {
      const std::string name = absl::StrCat("node-", i);
      listed_.push_back({name, absl::StrCat("10.0.", i / 256, ".", i % 256, ":7"), ""});
      nodes_.push_back(std::make_unique<Node>(listed_.back(), table_bytes, clock_));
      for (size_t b = 0; b < blocks_each; ++b) {
        BlockChange block{.name = {}, .run = random_() | 1, .is_stored = true};
        const uint64_t words[] = {random_(), random_()};
        std::memcpy(block.name.data(), words, sizeof words);
        nodes_.back()->blocks.push_back(block);
      }
    }
  }

  size_t count() const { return nodes_.size(); }
  // Every member reads the list.
  Work List() {
    return ForEach([this](Node& node) { node.members.Take(listed_); });
  }
  // Every member meets every other one of the list.
  Work MeetAll() {
    return ForEach([this](Node& node) {
      std::vector<Met> met;
      for (const auto& other : nodes_) {
        if (other != nullptr && other.get() != &node) met.push_back(other->met());
      }
      node.members.Meet(met);
    });
  }
  // A member is gone, and every other one's list says so.
  Work Leave(size_t i) {
    std::erase_if(listed_, [&](const ListedMember& one) { return one.name == nodes_[i]->name(); });
    nodes_[i].reset();
    return List();
  }
  // A member is another process now, without blocks, and every other one hears it.
  Work Restart(size_t i) {
    Node& again = *nodes_[i];
    ++again.incarnation;
    again.blocks.clear();
    return ForEach([&](Node& node) {
      if (&node != &again) node.members.Meet(again.met());
    });
  }
  // Members announce until every home has been told all.
  Work Announce() {
    Work work;
    const absl::Time began = clock_.Now();
    std::vector<absl::Duration> of_node(nodes_.size());
    for (bool is_over = false; !is_over;) {
      is_over = true;
      for (size_t i = 0; i < nodes_.size(); ++i) {
        if (nodes_[i] == nullptr) continue;
        const absl::Time start = MonotonicNow();
        is_over = !Step(*nodes_[i], &work) && is_over;
        of_node[i] += MonotonicNow() - start;
      }
      clock_.Advance(absl::Milliseconds(10));
      CAIRN_CHECK(clock_.Now() - began < absl::Hours(1), "announcing does not end");
    }
    for (const absl::Duration one : of_node) work.Add(one);
    work.lag = clock_.Now() - began;
    return work;
  }
  // The blocks of a sample that one of their homes does not know, or knows of a wrong member.
  size_t CountUnknown(size_t samples) {
    size_t unknown = 0;
    for (size_t s = 0; s < samples; ++s) {
      const Node* node = nodes_[random_() % nodes_.size()].get();
      if (node == nullptr || node->blocks.empty()) continue;
      const BlockChange& block = node->blocks[random_() % node->blocks.size()];
      const ViewPtr view = node->members.view();
      const Homes::Two two = Homes(*view).Of(block.run);
      bool is_known = true;
      for (const uint32_t number : {two.first, two.second}) {
        const Node& home = *Find(view->Find(number)->name);
        const Located located = FindIn(home.table, *home.members.view(), {&block.name, 1});
        is_known = is_known && located.holders[0].size() == 1 &&
                   located.members[located.holders[0][0]].name == node->name();
      }
      unknown += is_known ? 0 : 1;
    }
    return unknown;
  }
  // Whether all views are of these members.
  bool HaveOneView(size_t members) const {
    std::optional<uint64_t> hash;
    for (const auto& node : nodes_) {
      if (node == nullptr) continue;
      const ViewPtr view = node->members.view();
      if (view->members.size() != members || view->hash != hash.value_or(view->hash)) return false;
      hash = view->hash;
    }
    return true;
  }

 private:
  struct Node {
    Node(const ListedMember& self, uint64_t table_bytes, const Clock& clock)
        : members(
              {.cluster = "fleet", .self = self, .grace = absl::ZeroDuration(), .incarnation = 1},
              nullptr, clock),
          address(self.address),
          table(table_bytes) {}

    const std::string& name() const { return members.self(); }
    Met met() const { return {.name = name(), .address = address, .incarnation = incarnation}; }

    Members members;
    const std::string address;
    uint64_t incarnation = 1;
    LocationTable table;
    Announced announced{table, absl::ZeroDuration()};  // time is not the real one
    AnnouncePlan plan{AnnouncePlan::Options()};
    ViewPtr view;
    std::vector<BlockChange> blocks;
  };

  template <typename Do>
  Work ForEach(Do act) {
    Work work;
    for (const auto& node : nodes_) {
      if (node == nullptr) continue;
      const absl::Time start = MonotonicNow();
      act(*node);
      LookAtView(*node);
      work.Add(MonotonicNow() - start);
    }
    return work;
  }
  void LookAtView(Node& node) {
    ViewPtr view = node.members.view();
    if (view == node.view) return;
    node.view = std::move(view);
    node.plan.SetView(*node.view, clock_.Now());
  }
  Node* Find(const std::string& name) {
    for (const auto& node : nodes_) {
      if (node != nullptr && node->name() == name) return node.get();
    }
    return nullptr;
  }
  // Returns whether there was something to do.
  bool Step(Node& node, Work* work) {
    constexpr size_t kPage = 1024;
    const absl::Time now = clock_.Now();
    bool is_busy = node.plan.Lag(now) > absl::ZeroDuration();
    while (const std::optional<uint64_t> from = node.plan.WalkFrom(now)) {
      const auto page =
          std::span(node.blocks).subspan(*from, std::min(kPage, node.blocks.size() - *from));
      const uint64_t next = *from + page.size();
      node.plan.AddPage(page, next, next == node.blocks.size(), now);
      is_busy = true;
    }
    for (const AnnounceBatch* batch : node.plan.Due(now)) {
      Node& home = *Find(node.view->Find(batch->home)->name);
      const absl::Status taken = home.announced.Take(
          *home.members.view()->Find(node.name()),
          {batch->epoch, batch->first_sequence, batch->is_reset, batch->stored, batch->removed});
      CAIRN_CHECK(taken.ok(), taken.ToString());
      ++work->batches;
      work->names += batch->count();
      node.plan.Done(batch->home, batch->id, AnnouncePlan::Outcome::kTaken, now);
      is_busy = true;
    }
    return is_busy;
  }

  FakeClock clock_;
  std::mt19937_64 random_;
  std::vector<ListedMember> listed_;
  std::vector<std::unique_ptr<Node>> nodes_;  // null: it has left
};

}  // namespace cairn
