// SPDX-License-Identifier: Apache-2.0
// `cairnctl replay --daemons` against real daemons: members of one cluster hit about what one
// daemon with all of their memory hits, and much more than daemons that are alone.
#include <cstdio>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/e2e/client/cluster_fixture.h"
#include "tests/e2e/client/member_wire.h"
#include "tests/e2e/client/replay_fixture.h"

namespace cairn {
namespace {

using testing::HasSubstr;

constexpr size_t kDaemons = 3;
constexpr char kHostBytes[] = "--host-bytes=16MiB", kHostBytesOfAll[] = "--host-bytes=48MiB";

// Sessions of two turns, all under one block. The blocks fit into the memory of all daemons, and
// not into the memory of one. Between the two turns of a session, other sessions have theirs.
std::vector<Asked> SessionsOfTwoTurns() {
  constexpr uint64_t kSessions = 40, kSessionBlocks = 8, kBetween = 10;
  std::vector<Asked> asked;
  for (uint64_t turn = 0; turn < kSessions + kBetween; ++turn) {
    for (const uint64_t session : {turn, turn - kBetween}) {
      if (session >= kSessions) continue;  // not begun, or over
      Asked one{{1}, (kSessionBlocks + 1) * kTraceTokens};
      for (uint64_t i = 0; i < kSessionBlocks; ++i) {
        one.ids.push_back(1000 + session * kSessionBlocks + i);
      }
      asked.push_back(one);
    }
  }
  return asked;
}

double NumberOf(const google::protobuf::Struct& figures, const std::string& name) {
  return figures.fields().at(name).number_value();
}

class ReplayHostsTest : public ClusterTest {
 protected:
  void StartMembers() {
    for (const char* name : {"a", "b", "c"}) {
      std::vector<std::string> flags = wire_.Flags(name);
      flags.insert(flags.end(), {"--peer-match-ms=5000", kHostBytes});
      Start(name, flags);
    }
    for (const auto& daemon : daemons_) {
      ASSERT_TRUE(Await(*daemon, "joined", kDaemons)) << MembersOf(*daemon);
    }
  }
  void StartAlone(const std::string& host_bytes, size_t count) {
    for (size_t i = 0; i < count; ++i) {
      auto daemon = DaemonProcess::Start({host_bytes});
      ASSERT_TRUE(daemon.ok()) << daemon.status();
      daemons_.push_back(*std::move(daemon));
    }
  }
  std::string Addresses() const {
    return absl::StrJoin(daemons_, ",", [](std::string* out, const auto& daemon) {
      out->append(daemon->endpoint("control"));
    });
  }
  Played Play(const std::string& trace, const std::string& flags) const {
    const std::string path = folder_.File("trace.jsonl");
    std::ofstream(path) << trace;
    const Ran ran = RunCommand(
        absl::StrCat(CAIRNCTL_PATH, " replay ", path, " --json --deadline-ms 20000 ", flags));
    return PlayedOf(ran.code, ran.output);
  }
  Played PlayOver(const std::string& trace, const std::string& flags = "") const {
    const Played played =
        Play(trace, absl::StrCat("--recipe raw --daemons ", Addresses(), " ", flags));
    EXPECT_EQ(played.code, 0) << played.output;
    EXPECT_EQ(played.Figure("wrong_bytes"), 0);
    EXPECT_EQ(played.Figure("late_calls"), 0);
    return played;
  }

  const MemberWire wire_{PeerWire::kTls, folder_, {"a", "b", "c"}};
};

// The figures of the daemons, in the order of their addresses, add up to the figures of all.
void ExpectSums(const Played& played) {
  const auto& daemons = played.figures.fields().at("daemons").list_value().values();
  ASSERT_EQ(daemons.size(), static_cast<int>(kDaemons));
  double requests = 0, blocks = 0, hits = 0, peer_hits = 0, got = 0, put = 0, late = 0;
  for (const auto& value : daemons) {
    const google::protobuf::Struct& daemon = value.struct_value();
    EXPECT_GT(NumberOf(daemon, "requests"), 0);
    requests += NumberOf(daemon, "requests");
    blocks += NumberOf(daemon, "blocks");
    hits += NumberOf(daemon, "hit_blocks");
    peer_hits += NumberOf(daemon, "peer_hit_blocks");
    got += NumberOf(daemon, "get_wire_bytes");
    put += NumberOf(daemon, "put_wire_bytes");
    late += NumberOf(daemon, "late_calls");
  }
  EXPECT_EQ(requests, played.Figure("requests"));
  EXPECT_EQ(blocks, played.Figure("blocks"));
  EXPECT_EQ(hits, played.Figure("hits.all.blocks"));
  EXPECT_EQ(peer_hits, played.figures.fields().at("hits").struct_value().fields().contains("peer")
                           ? played.Figure("hits.peer.blocks")
                           : 0);
  EXPECT_EQ(got, played.Figure("get_wire_bytes"));
  EXPECT_EQ(put, played.Figure("put_wire_bytes"));
  EXPECT_EQ(late, played.Figure("late_calls"));
}

TEST_F(ReplayHostsTest, MembersHitWhatOneDaemonHitsAndIslandsDoNot) {
  const std::string trace = TraceOf(SessionsOfTwoTurns(), 10);
  ASSERT_NO_FATAL_FAILURE(StartAlone(kHostBytesOfAll, 1));
  const double one = PlayOver(trace).Figure("hits.all.blocks");
  daemons_.clear();
  ASSERT_NO_FATAL_FAILURE(StartAlone(kHostBytes, kDaemons));
  const Played islands = PlayOver(trace);
  const Played sticky = PlayOver(trace, "--route sticky");
  daemons_.clear();
  ASSERT_NO_FATAL_FAILURE(StartMembers());
  const Played members = PlayOver(trace);
  std::printf("hits: one daemon %.0f, members %.0f (%.0f of others), islands %.0f, sticky %.0f\n",
              one, members.Figure("hits.all.blocks"), members.Figure("hits.peer.blocks"),
              islands.Figure("hits.all.blocks"), sticky.Figure("hits.all.blocks"));
  for (const Played* played : {&islands, &sticky, &members}) ExpectSums(*played);
  EXPECT_GT(members.Figure("hits.all.blocks"), 0.9 * one);
  EXPECT_GT(members.Figure("hits.peer.blocks"), 0.1 * one);
  EXPECT_LT(islands.Figure("hits.all.blocks"), 0.6 * one);
  EXPECT_GT(sticky.Figure("hits.all.blocks"), islands.Figure("hits.all.blocks"));
}

TEST_F(ReplayHostsTest, ALossySpaceIsTheSameAtAllMembers) {
  ASSERT_NO_FATAL_FAILURE(StartMembers());
  const std::string trace = TraceOf(Sessions(20), 10);
  const Ran ran = RunCommand(
      absl::StrCat(CAIRNCTL_PATH, " replay ", folder_.File("t"), " --daemons ", Addresses()));
  EXPECT_EQ(ran.code, 3) << ran.output << ": no trace is there yet";
  const Played played = Play(
      trace,
      absl::StrCat("--recipe cairn:2.3 --block-bytes 16KiB --parallel 4 --daemons ", Addresses()));
  EXPECT_EQ(played.code, 0) << played.output;
  EXPECT_EQ(played.Figure("wrong_bytes"), 0);
  EXPECT_GT(played.Figure("hits.peer.blocks"), 0);
  const Ran text =
      RunCommand(absl::StrCat(CAIRNCTL_PATH, " replay ", folder_.File("trace.jsonl"),
                              " --route sticky --block-bytes 16KiB --daemons ", Addresses()));
  EXPECT_EQ(text.code, 0) << text.output;
  EXPECT_THAT(text.output, HasSubstr("OF OTHERS"));
  for (const auto& daemon : daemons_) {
    EXPECT_THAT(text.output, HasSubstr(daemon->endpoint("control")));
  }
}

TEST_F(ReplayHostsTest, DaemonsThatCannotTakePartAreNamed) {
  ASSERT_NO_FATAL_FAILURE(StartAlone(kHostBytes, 1));
  const std::string good = daemons_[0]->endpoint("control");
  const std::string trace = TraceOf({{{1}, kTraceTokens}}, 1);
  const auto refused = [&](const std::string& flags, int code, const std::string& says) {
    const Played played = Play(trace, flags);
    EXPECT_EQ(played.code, code) << flags << played.output;
    EXPECT_THAT(played.output, HasSubstr(says)) << flags;
  };
  refused(absl::StrCat("--timeout 1 --daemons ", good, ",127.0.0.1:1"), 4, "127.0.0.1:1");
  refused(absl::StrCat("--daemons ", good, ",127.0.0.1:1,", good), 2,
          absl::StrCat("--daemons has ", good, " twice"));
  refused("--daemons=", 2, "expected addresses with a comma between them");
  refused(absl::StrCat("--daemons ", good, ","), 2, "expected addresses with a comma between them");
  std::vector<std::string> many;
  for (int i = 0; i < 17; ++i) many.push_back(absl::StrCat("127.0.0.1:", i + 1));
  refused(absl::StrCat("--daemons ", absl::StrJoin(many, ",")), 2,
          "--daemons has 17 addresses; expected 1 to 16");
  refused(absl::StrCat("--daemons ", good, " --control ", good), 2,
          "give --daemons or --control, not both");
  refused(absl::StrCat("--route nearest --daemons ", good), 2,
          "--route is 'nearest'; expected random or sticky");
  refused(absl::StrCat("--route sticky --control ", good), 2, "--route needs --daemons");
  EXPECT_EQ(Play(trace, absl::StrCat("--space-name kept --recipe raw --daemons ", good)).code, 0);
  ASSERT_NO_FATAL_FAILURE(StartAlone(kHostBytes, 1));
  const std::string other = daemons_[1]->endpoint("control");
  refused(absl::StrCat("--space-name kept --recipe exact --daemons ", other, ",", good), 2,
          absl::StrCat(good, ": the space is there as raw"));
}

}  // namespace
}  // namespace cairn
