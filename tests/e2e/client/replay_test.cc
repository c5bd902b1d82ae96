// SPDX-License-Identifier: Apache-2.0
// `cairnctl replay` against a real cairnd: what it hits is what a model of the store hits.
#include <signal.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "client/cli/replay/content.h"
#include "tests/e2e/client/client_fixture.h"
#include "tests/e2e/client/replay_fixture.h"
#include "tests/support/run_command.h"
#include "tests/support/temp_dir.h"

namespace cairn {
namespace {

using replay::Content;
using testing::HasSubstr;
using testing::Not;

constexpr char kSmallBlocks[] = " --block-bytes 16KiB";

struct Modelled {
  uint64_t blocks = 0, hit_blocks = 0, hit_tokens = 0, distinct = 0;
};
// Of a store that keeps everything: a prefix is there once it was asked for.
Modelled ModelOf(const std::vector<Asked>& asked) {
  Modelled model;
  std::set<std::vector<uint64_t>> prefixes;
  for (const Asked& one : asked) {
    bool is_unbroken = true;
    for (size_t count = 1; count <= one.ids.size(); ++count) {
      const std::vector<uint64_t> prefix(one.ids.begin(),
                                         one.ids.begin() + static_cast<ptrdiff_t>(count));
      is_unbroken = is_unbroken && prefixes.contains(prefix);
      if (is_unbroken) {
        ++model.hit_blocks;
        model.hit_tokens += std::min(kTraceTokens, one.tokens - (count - 1) * kTraceTokens);
      }
      prefixes.insert(prefix);
    }
    model.blocks += one.ids.size();
  }
  model.distinct = prefixes.size();
  return model;
}

class ReplayTest : public ClientTest {
 protected:
  std::string TracePath() const { return folder_.File("trace.jsonl"); }

  Played Play(const std::string& trace, const std::string& flags,
              const DaemonProcess& daemon = *daemon_) const {
    return PlayTrace(daemon, TracePath(), trace, "--deadline-ms 20000 " + flags);
  }

  TempDir folder_;
};

TEST_F(ReplayTest, WhereEverythingFitsTheHitsAreTheModels) {
  const std::vector<Asked> asked = Sessions(150);
  const Modelled model = ModelOf(asked);
  const std::string page = folder_.File("page.html");
  const Played played = Play(TraceOf(asked, 1000), "--recipe raw --html " + page);
  ASSERT_EQ(played.code, 0) << played.output;
  EXPECT_EQ(played.Figure("requests"), asked.size());
  EXPECT_EQ(played.Figure("blocks"), model.blocks);
  EXPECT_EQ(played.Figure("distinct_blocks"), model.distinct);
  for (const std::string where : {"host", "all", "unbounded"}) {
    EXPECT_EQ(played.Figure("hits." + where + ".blocks"), model.hit_blocks) << where;
    EXPECT_EQ(played.Figure("hits." + where + ".tokens"), model.hit_tokens) << where;
  }
  EXPECT_EQ(played.Figure("wrong_bytes"), 0);
  EXPECT_EQ(played.Figure("lost_blocks"), 0);
  EXPECT_EQ(played.Figure("late_calls"), 0);
  EXPECT_EQ(played.Figure("stored_blocks"), model.distinct);
  EXPECT_EQ(played.Figure("verified_bytes"), model.hit_blocks * replay::kContentBytesMax);
  EXPECT_EQ(played.Figure("calls.match.count"), asked.size());
  EXPECT_EQ(played.Figure("calls.get.count"), model.hit_blocks);

  std::stringstream html;
  html << std::ifstream(page).rdbuf();
  EXPECT_THAT(html.str(), HasSubstr("<svg"));
  EXPECT_THAT(html.str(), HasSubstr("unbounded store"));
  EXPECT_THAT(html.str(), Not(HasSubstr("://"))) << "it names nothing elsewhere";
  EXPECT_THAT(html.str(), Not(HasSubstr("<script")));
}

TEST_F(ReplayTest, RequestsAtOnceSeeNoWrongByte) {
  const std::vector<Asked> asked = Sessions(150);
  const Modelled model = ModelOf(asked);
  const Played played =
      Play(TraceOf(asked, 0), absl::StrCat("--parallel 4 --recipe exact", kSmallBlocks));
  ASSERT_EQ(played.code, 0) << played.output;
  EXPECT_EQ(played.Figure("wrong_bytes"), 0);
  EXPECT_EQ(played.Figure("requests"), asked.size());
  EXPECT_EQ(played.Figure("hits.unbounded.blocks"), model.hit_blocks);
  EXPECT_GT(played.Figure("hits.host.blocks"), 0);
}

// Bits an element, headers and all.
TEST_F(ReplayTest, ContentTakesTheBitsOfRealKv) {
  const std::string trace = TraceOf(Sessions(40), 1);
  const auto bits = [&](const std::string& recipe) {
    const Played played = Play(trace, "--recipe " + recipe);
    EXPECT_EQ(played.code, 0) << played.output;
    EXPECT_EQ(played.Figure("wrong_bytes"), 0) << recipe;
    EXPECT_GT(played.Figure("hits.host.blocks"), 0) << recipe;
    const double elements = played.Figure("stored_blocks") * replay::kContentBytesMax / 2;
    return 8 * played.Figure("stored_bytes") / elements;
  };
  EXPECT_NEAR(16 / bits("exact"), 1.5, 0.05);
  EXPECT_NEAR(bits("cairn:2.3"), 2.3, 0.1);
  EXPECT_NEAR(bits("kivi:4"), 4.4, 0.2);
}

TEST_F(ReplayTest, BlocksOfANamedSpaceStay) {
  const std::vector<Asked> asked = Sessions(20);
  const Modelled model = ModelOf(asked);
  const std::string trace = TraceOf(asked, 1);
  const std::string flags = absl::StrCat("--space-name stays --recipe exact", kSmallBlocks);
  ASSERT_EQ(Play(trace, flags).code, 0);
  const Played again = Play(trace, flags);
  ASSERT_EQ(again.code, 0) << again.output;
  EXPECT_EQ(again.Figure("hits.all.blocks"), model.blocks);
  EXPECT_EQ(again.Figure("hits.unbounded.blocks"), model.hit_blocks);
  EXPECT_EQ(again.Figure("calls.put.count"), 0);
  const Played other = Play(trace, absl::StrCat("--space-name stays --recipe raw", kSmallBlocks));
  EXPECT_EQ(other.code, 2);
  EXPECT_THAT(other.output, HasSubstr("is there as exact"));
}

// Another block's content in the place of one: the bytes are told, and the command fails.
TEST_F(ReplayTest, WrongBytesAreToldAndFail) {
  for (const std::string recipe : {"raw", "kivi:4", "cairn:2.3"}) {
    const Content content(replay::kContentDimMax);
    auto client = Connect(Options());
    ASSERT_NE(client, nullptr);
    auto space = Open(client, content.Identity("default", "wrong-" + recipe), recipe);
    ASSERT_NE(space, nullptr);
    const BlockKey key = Content::KeyOf(space->fingerprint(), {}, 1);
    std::vector<std::byte> block(content.block_bytes());
    content.Fill(Content::KeyOf(space->fingerprint(), {}, 2), block);
    ASSERT_TRUE(space->Put({.key = key, .source = SourceBytes{block}}, kPatience).ok());
    const Played played = Play(TraceOf({{{1}, kTraceTokens}}, 1),
                               absl::StrCat("--recipe ", recipe, " --space-name wrong-", recipe));
    EXPECT_EQ(played.code, 5) << played.output;
    EXPECT_GT(played.Figure("wrong_bytes"), replay::kContentBytesMax / 2) << recipe;
    EXPECT_EQ(played.Figure("wrong_blocks"), 1) << recipe;
    EXPECT_EQ(played.Figure("hits.all.blocks"), 0) << recipe;
  }
}

// Of a store that is too small, what cairn_replay_simulate says without it.
TEST_F(ReplayTest, AStoreTooSmallHitsWhatIsSimulated) {
  auto small = DaemonProcess::Start({"--host-bytes=16MiB"});
  ASSERT_TRUE(small.ok()) << small.status();
  const std::vector<Asked> asked = Sessions(500, 60);
  const Played played = Play(TraceOf(asked, 10), "--recipe raw", **small);
  ASSERT_EQ(played.code, 0) << played.output;
  EXPECT_EQ(played.Figure("wrong_bytes"), 0);
  EXPECT_EQ(played.Figure("lost_blocks"), 0);
  const double blocks = played.Figure("blocks");
  const double rate = 100 * played.Figure("hits.all.blocks") / blocks;
  const double ceiling = 100 * played.Figure("hits.unbounded.blocks") / blocks;
  EXPECT_LT(rate, ceiling - 1);
  const double image_bytes = played.Figure("stored_bytes") / played.Figure("stored_blocks");
  const std::string simulated = RunCommand(absl::StrCat(SIMULATE_PATH, " ", TracePath(), " ",
                                                        std::lround(image_bytes), " 16MiB"))
                                    .output;
  const size_t line = simulated.find("16MiB");
  ASSERT_NE(line, std::string::npos) << simulated;
  double images = 0;
  double simulated_rate = 0;
  ASSERT_EQ(std::sscanf(simulated.c_str() + line, "16MiB %lf %lf", &images, &simulated_rate), 2)
      << simulated;
  std::printf("real %.2f %%, simulated %.2f %%, unbounded %.2f %%\n", rate, simulated_rate,
              ceiling);
  EXPECT_NEAR(simulated_rate, rate, 3);
}

// What one daemon wrote to its drive before it was killed, another with less memory serves.
TEST_F(ReplayTest, BlocksComeFromTheSsdTierAfterAKill) {
  const TempDir disk{std::filesystem::path(CAIRN_TEST_DISK)};
  const std::string drive = "--ssd=" + disk.path().string() + "=256MiB";
  auto daemon = DaemonProcess::Start({drive});
  ASSERT_TRUE(daemon.ok()) << daemon.status();
  std::vector<Asked> asked;
  for (uint64_t session = 0; session < 60; ++session) {
    Asked one{{}, 10 * kTraceTokens};
    for (uint64_t i = 0; i < 10; ++i) one.ids.push_back(session * 10 + i);
    asked.push_back(one);
  }
  const std::string trace = TraceOf(asked, 10);
  const std::string flags = "--recipe exact --space-name kept";
  const Played first = Play(trace, flags, **daemon);
  ASSERT_EQ(first.code, 0) << first.output;
  EXPECT_EQ(first.Figure("stored_blocks"), 600);
  ASSERT_TRUE((*daemon)->AwaitMetric("cairn_images_uncopied", 0, kPatience));
  ASSERT_TRUE((*daemon)->AwaitMetric("cairn_writing_down_bytes", 0, kPatience));
  (*daemon)->process().Signal(SIGKILL);
  ASSERT_TRUE((*daemon)->process().Wait(kPatience).ok());

  daemon = DaemonProcess::Start({drive, "--host-bytes=16MiB"});
  ASSERT_TRUE(daemon.ok()) << daemon.status();
  for (int round = 0; round < 2; ++round) {
    const Played played = Play(trace, flags, **daemon);
    ASSERT_EQ(played.code, 0) << played.output;
    EXPECT_EQ(played.Figure("wrong_bytes"), 0);
    EXPECT_EQ(played.Figure("lost_blocks"), 0);
    EXPECT_EQ(played.Figure("hits.all.blocks"), 600);
    // The first of a session is read when it is asked for, those after it may be ahead of that.
    EXPECT_GT(played.Figure("hits.ssd.blocks"), 40) << "memory has room for less";
  }
}

TEST_F(ReplayTest, TheRateIsKept) {
  const std::vector<Asked> asked(5, Asked{{1}, kTraceTokens});
  const Played played =
      Play(TraceOf(asked, 200), absl::StrCat("--rate 2 --requests 4 --recipe raw", kSmallBlocks));
  ASSERT_EQ(played.code, 0) << played.output;
  EXPECT_EQ(played.Figure("requests"), 4);
  EXPECT_GE(played.Figure("elapsed_ms"), 300);
}

TEST_F(ReplayTest, AnInterruptEndsThePlayWithItsReport) {
  const std::vector<Asked> asked(2, Asked{{1}, kTraceTokens});
  std::ofstream(TracePath()) << TraceOf(asked, 600'000);
  const std::string report = folder_.File("report");
  auto running = ChildProcess::Start(
      "/bin/sh", {"-c", absl::StrCat("exec ", CAIRNCTL_PATH, " replay ", TracePath(),
                                     " --rate 1 --recipe raw --progress --control ",
                                     daemon_->endpoint("control"), kSmallBlocks, " 2>", report)});
  ASSERT_TRUE(running.ok()) << running.status();
  const absl::Time until = MonotonicNow() + kPatience;
  std::string shown;
  while (shown.find("1 of 2") == std::string::npos && MonotonicNow() < until) {
    absl::SleepFor(absl::Milliseconds(20));
    std::stringstream text;
    text << std::ifstream(report).rdbuf();
    shown = text.str();
  }
  (*running)->Signal(SIGINT);
  const auto line = (*running)->ReadLine(kPatience);
  ASSERT_TRUE(line.ok()) << line.status() << shown;
  EXPECT_THAT(*line, HasSubstr("1 requests, 1 blocks"));
  EXPECT_EQ((*running)->Wait(kPatience).value_or(-1), 0);
}

TEST_F(ReplayTest, WhatCannotBePlayedIsRefused) {
  const std::string good = TraceOf({{{1}, kTraceTokens}}, 1);
  EXPECT_THAT(Play(good + "nonsense\n", "").output, HasSubstr("line 2: is not a JSON object"));
  EXPECT_EQ(Play(good + "nonsense\n", "").code, 2);
  EXPECT_EQ(Play(good, "--block-bytes 128KiB").code, 2);
  EXPECT_EQ(Play(good, "--rate 0").code, 2);
  EXPECT_EQ(Play(good, "--parallel 17").code, 2);
  EXPECT_EQ(Play(good, "--recipe nonsense").code, 2);
  EXPECT_EQ(Play(good, "--recipe patternkv:2").code, 2) << "a bank has to come with it";
  EXPECT_EQ(Play(good, "--control 127.0.0.1:1 --timeout 1").code, 4);
}

}  // namespace
}  // namespace cairn
