// SPDX-License-Identifier: Apache-2.0
// What many members cost each other, in the time of one processor: two hundred in one process, with
// their views, plans and tables, and one daemon among a thousand. No byte is sent.
//
// - "list": a member reads the list. "meet": it has met all others. "leave": a list without one of
//   them. "restart": it hears that one is another process. Each with the new view, the homes, and
//   the plan of what to announce.
// - "announce": until every home was told, of one member's time.

#include <algorithm>
#include <cstdio>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "service/peer/homes.h"
#include "tests/bench/bench.h"
#include "tests/support/member_fleet.h"

namespace cairn::bench {
namespace {

struct Row {
  std::string name;
  std::vector<double> mean_us = {}, most_us = {}, names = {};  // of a member, a round each
};

class Rows {
 public:
  void Add(const std::string& name, const MemberFleet::Work& work, size_t members) {
    Row& row = Find(name);
    row.mean_us.push_back(absl::ToDoubleMicroseconds(work.all) / static_cast<double>(members));
    row.most_us.push_back(absl::ToDoubleMicroseconds(work.most_of_one));
    row.names.push_back(static_cast<double>(work.names) / static_cast<double>(members));
  }
  void Print(const Options& options) const {
    std::printf("members: medians of %d rounds, of one member\n", options.rounds);
    std::printf("%-44s %12s %12s %12s\n", "case", "mean us", "most us", "names told");
    std::vector<Figures> figures;
    for (const Row& row : rows_) {
      std::printf("%-44s %12.1f %12.1f %12.0f\n", row.name.c_str(), Median(row.mean_us),
                  Median(row.most_us), Median(row.names));
      figures.push_back(
          {row.name, {{"mean_us", Median(row.mean_us)}, {"most_us", Median(row.most_us)}}});
    }
    WriteJson(options, "members", figures);
  }

 private:
  Row& Find(const std::string& name) {
    for (Row& row : rows_) {
      if (row.name == name) return row;
    }
    rows_.push_back({.name = name});
    return rows_.back();
  }
  std::vector<Row> rows_;
};

void RunFleet(size_t members, size_t blocks, uint64_t seed, Rows* rows) {
  const auto name = [&](const char* what) { return absl::StrCat(members, " members, ", what); };
  MemberFleet fleet(members, blocks, uint64_t{4} << 20, seed);
  rows->Add(name("list"), fleet.List(), members);
  rows->Add(name("meet"), fleet.MeetAll(), members);
  CAIRN_CHECK(fleet.HaveOneView(members), "the views differ");
  rows->Add(name("announce"), fleet.Announce(), members);
  CAIRN_CHECK(fleet.CountUnknown(20'000) == 0, "a home does not know a block");
  rows->Add(name("leave"), fleet.Leave(members / 2), members);
  rows->Add(name("announce after it"), fleet.Announce(), members);
  CAIRN_CHECK(fleet.CountUnknown(20'000) == 0, "a home does not know a block");
  rows->Add(name("restart"), fleet.Restart(members / 3), members);
  rows->Add(name("announce after it, too"), fleet.Announce(), members);
  CAIRN_CHECK(fleet.CountUnknown(20'000) == 0, "a home does not know a block");
}

// One daemon, which the greetings of a round tell of 64 members at once.
void RunOne(size_t count, Rows* rows) {
  FakeClock clock;
  Members members({.cluster = "x", .self = {"node-0", "10.0.0.0:7", ""}, .incarnation = 1}, nullptr,
                  clock);
  AnnouncePlan plan{AnnouncePlan::Options()};
  std::vector<ListedMember> listed;
  std::vector<Met> met;
  for (size_t i = 0; i < count; ++i) {
    const std::string name = absl::StrCat("node-", i);
    listed.push_back({name, absl::StrCat("10.0.", i / 256, ".", i % 256, ":7"), ""});
    if (i > 0) met.push_back({.name = name, .address = listed.back().address, .incarnation = 9});
  }
  const auto run = [&](const char* what, const std::function<void()>& act) {
    MemberFleet::Work work;
    work.Add(absl::Seconds(CpuSeconds(act)));
    rows->Add(absl::StrCat(count, " members, one daemon, ", what), work, 1);
  };
  const auto look = [&] { plan.SetView(*members.view(), clock.Now()); };
  run("list", [&] {
    members.Take(listed);
    look();
  });
  run("meet", [&] {
    for (size_t i = 0; i < met.size(); i += 64) {
      members.Meet(std::span(met).subspan(i, std::min<size_t>(64, met.size() - i)));
      look();
    }
  });
  run("leave", [&] {
    listed.pop_back();
    members.Take(listed);
    look();
  });
  run("restart", [&] {
    members.Meet({.name = "node-7", .address = listed[7].address, .incarnation = 10});
    look();
  });
  const Homes homes(*members.view());
  uint64_t sum = 0;
  run("homes of 1,000 runs", [&] {
    for (uint64_t run = 1; run <= 1000; ++run) sum += homes.Of(run * 0x9e3779b97f4a7c15).first;
  });
  CAIRN_CHECK(sum > 0);
}

int Main(int argc, char** argv) {
  const Options options = ParseOptions(argc, argv);
  Rows rows;
  for (int i = 0; i < options.rounds; ++i) {
    std::fprintf(stderr, "\rround %d of %d ", i + 1, options.rounds);
    RunFleet(options.quick ? 20 : 200, options.quick ? 50 : 1000, static_cast<uint64_t>(i) + 1,
             &rows);
    RunOne(1000, &rows);
  }
  std::fprintf(stderr, "\r                    \r");
  rows.Print(options);
  return 0;
}

}  // namespace
}  // namespace cairn::bench

int main(int argc, char** argv) { return cairn::bench::Main(argc, argv); }
