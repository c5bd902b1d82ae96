// SPDX-License-Identifier: Apache-2.0
// The process that has a tier is killed at any moment, or loses power: what it said was put is
// there, what it deleted is gone, and nothing is wrong.
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <iterator>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "base/file.h"
#include "codecs/image/image.h"
#include "tests/fault/ssd/cut_log.h"
#include "tests/support/from_environment.h"
#include "tests/support/log_capture.h"
#include "tests/support/random.h"
#include "tests/support/ssd_shelf.h"
#include "tests/support/temp_dir.h"

namespace cairn {
namespace {

using Numbers = std::set<uint64_t>;

enum class End { kKill, kPowerCut };

int Rounds() { return FromEnvironment("CAIRN_KILLS", 4); }  // of each test

// What a writer said until its end.
struct Said {
  Numbers put, durable, gone, deleted, bad;
  uint64_t deleted_in_reclaim = 0;
  std::string other;
};

Said Read(const std::string& lines) {
  Said said;
  for (const absl::string_view line : absl::StrSplit(lines, '\n')) {
    const std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(line, ' ');
    uint64_t number = 0;
    if (parts.first == "open" || !absl::SimpleAtoi(parts.second, &number)) {
      said.other += line.empty() || parts.first == "open" ? "" : absl::StrCat(line, "\n");
    } else if (parts.first == "+" || parts.first == "!") {
      said.put.insert(number);
      if (parts.first == "!") {
        said.durable.insert(number);
      }
    } else {
      said.deleted_in_reclaim += parts.first == "~" ? 1 : 0;
      (parts.first == "-"                         ? said.gone
       : parts.first == "=" || parts.first == "~" ? said.deleted
                                                  : said.bad)
          .insert(number);
    }
  }
  return said;
}

class SsdPowerCut : public testing::Test {
 protected:
  // The drive is full before the first round, so that each has reclaim under way.
  SsdPowerCut() {
    SsdShelf shelf(
        {.budget_bytes = SsdShelf::kSmallBudgetBytes, .folder = folder_.path().string()});
    while (shelf.evicted() == 0) {
      EXPECT_TRUE(shelf.Put(next_++).ok());
    }
  }
  // Runs a writer for a while, ends it so, and looks at what it left.
  void Round(End end, uint64_t durable_each) {
    const Said said = Read(RunWriter(end, durable_each));
    EXPECT_TRUE(said.other.empty()) << said.other;
    EXPECT_TRUE(said.bad.empty()) << "bad: " << *said.bad.begin();
    puts_ += said.put.size();
    deleted_ += said.deleted.size();
    deleted_in_reclaim_ += said.deleted_in_reclaim;
    if (end == End::kPowerCut) {
      const CutFigures cut = RevertUnsynced(Log(), random_, [this](const std::string& path) {
        return unbelieved_.empty() || !absl::StrContains(path, unbelieved_);
      });
      reverted_pages_ += cut.pages;
    }
    if (is_ledger_alone_) {
      std::filesystem::remove(folder_.path() / "0" / "deletions");
    }
    Numbers evicted;
    SsdShelf shelf({.budget_bytes = SsdShelf::kSmallBudgetBytes,
                    .folder = folder_.path().string(),
                    .on_gone = [&](uint64_t number, bool) { evicted.insert(number); }});
    const Numbers found = ReadAll(shelf);
    Numbers expected = end == End::kKill ? said.put : said.durable;
    expected.insert(settled_.begin(), settled_.end());
    for (const uint64_t number : expected) {
      if (!said.gone.contains(number) && !evicted.contains(number) && !found.contains(number)) {
        ++lost_;
      }
    }
    for (const uint64_t number : said.deleted) {
      EXPECT_FALSE(found.contains(number)) << number << " came back";
    }
    shelf.Close();
    // The tier has made durable what it found.
    settled_.clear();
    std::ranges::set_difference(found, evicted, std::inserter(settled_, settled_.end()));
    next_ += said.put.size() + 10;
  }

  std::string RunWriter(End end, uint64_t durable_each) {
    std::filesystem::remove(Log());
    int out[2];
    EXPECT_EQ(::pipe(out), 0);
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
    ::posix_spawn_file_actions_addclose(&actions, out[0]);
    std::vector<std::string> arguments = {
        std::filesystem::read_symlink("/proc/self/exe").parent_path() / "cairn_ssd_writer",
        folder_.path(),
        absl::StrCat(next_),
        absl::StrCat(durable_each),
        absl::StrCat(random_()),
        is_ledger_alone_ ? "1" : "0",
        absl::StrCat(fail_each_)};
    std::vector<std::string> environment;
    if (end != End::kKill) {
      environment = {absl::StrCat(kCutRootVariable, "=", folder_.path().string()),
                     absl::StrCat(kCutLogVariable, "=", Log())};
    }
    const auto pointers = [](std::vector<std::string>& texts) {
      std::vector<char*> list;
      for (std::string& text : texts) {
        list.push_back(text.data());
      }
      list.push_back(nullptr);
      return list;
    };
    pid_t pid = -1;
    EXPECT_EQ(::posix_spawn(&pid, arguments[0].c_str(), &actions, nullptr,
                            pointers(arguments).data(), pointers(environment).data()),
              0);
    ::posix_spawn_file_actions_destroy(&actions);
    ::close(out[1]);
    std::string lines = Listen(out[0], pid);
    ::close(out[0]);
    EXPECT_EQ(::waitpid(pid, nullptr, 0), pid);
    return lines;
  }

  // Kills the writer once it has said so much, or a while later, and reads what it said to the end.
  std::string Listen(int fd, pid_t pid) {
    std::string lines;
    const auto lines_max = static_cast<ptrdiff_t>(random_() % 120);
    // Or with the next deletion in a segment that is reclaimed, while it is.
    const bool is_in_reclaim = random_() % 2 == 0;
    const absl::Duration run = absl::Milliseconds(is_in_reclaim ? 0 : random_() % 30);
    absl::Time kill_at = absl::Now() + absl::Seconds(20);  // if it never says so much
    bool is_done = false, is_killed = false;
    size_t passed = 0;
    for (;;) {  // ends: with the pipe, which ends with the writer
      if (!is_done && !is_ledger_alone_ && std::ranges::count(lines, '\n') > lines_max) {
        passed = passed == 0 ? lines.size() : passed;
        is_done = !is_in_reclaim || lines.find("\n~ ", passed - 1) != std::string::npos;
        kill_at = is_done ? absl::Now() + run : kill_at;
      }
      if (!is_done && is_ledger_alone_ &&  // a deletion was answered
          (absl::StrContains(lines, "\n= ") || absl::StrContains(lines, "\n~ "))) {
        is_done = true;
        kill_at = absl::Now();
      }
      if (!is_killed && absl::Now() >= kill_at) {
        ::kill(pid, SIGKILL);
        is_killed = true;
      }
      pollfd ready = {.fd = fd, .events = POLLIN, .revents = 0};
      if (::poll(&ready, 1, 5) > 0) {
        char text[65536];
        const ssize_t got = ::read(fd, text, sizeof(text));
        if (got <= 0) {
          return lines;
        }
        lines.append(text, static_cast<size_t>(got));
      }
    }
  }

  // What is there and whole, as a get would see it. Counts what is taken and wrong.
  Numbers ReadAll(SsdShelf& shelf) {
    Numbers there;
    for (const uint64_t number : shelf.Numbers()) {
      const auto bytes = shelf.Read(number);
      codecs::ImageView view;
      if (!bytes.ok() || codecs::ParseImage(*bytes, &view) != codecs::Error::kOk ||
          codecs::VerifyTiles(view) != codecs::Error::kOk) {
        continue;
      }
      const proto::BlockKey key = SsdShelf::KeyOf(number);
      if (std::memcmp(view.spec().key.data(), key.data(), key.size()) == 0) {
        EXPECT_TRUE(*bytes == SsdShelf::Image(number)) << "wrong bytes of " << number;
        there.insert(number);
      }
    }
    return there;
  }

  std::string Log() const { return outside_.File("log"); }
  void Print() {
    std::cout << puts_ << " put, " << reverted_pages_ << " pages taken back, " << lost_ << " lost; "
              << deleted_ << " deleted, " << deleted_in_reclaim_
              << " of them while a segment was reclaimed\n";
  }

  LogCapture log_;
  TempDir folder_{std::filesystem::current_path()};
  TempDir outside_{std::filesystem::current_path()};
  std::mt19937_64 random_ = SeededRandom();
  // The end comes just after a deletion, and the file of deletions is lost, too.
  bool is_ledger_alone_ = false;
  std::string unbelieved_;  // syncs of files with this in their path do nothing
  uint64_t fail_each_ = 0;  // of so many flushes of segments one fails
  Numbers settled_;         // found again in the last round
  uint64_t next_ = 1, puts_ = 0, lost_ = 0, reverted_pages_ = 0;
  uint64_t deleted_ = 0, deleted_in_reclaim_ = 0;
};

TEST_F(SsdPowerCut, KilledLosesNothingThatWasPut) {
  for (int round = 0; round < Rounds() || (deleted_in_reclaim_ == 0 && round < 30); ++round) {
    Round(End::kKill, /*durable_each=*/0);
  }
  Print();
  EXPECT_EQ(lost_, 0U);
  EXPECT_GT(deleted_in_reclaim_, 0U);
}

TEST_F(SsdPowerCut, APowerCutLosesNothingThatIsDurable) {
  for (int round = 0; round < Rounds(); ++round) {
    Round(End::kPowerCut, /*durable_each=*/1 + random_() % 16);
  }
  Print();
  EXPECT_EQ(lost_, 0U);
}

// The kernel forgets what a flush that failed was to write, and calls the next one a good one.
TEST_F(SsdPowerCut, AFlushThatFailsIsNotBelievedLater) {
  fail_each_ = 8;
  for (int round = 0; round < Rounds(); ++round) {
    Round(End::kPowerCut, /*durable_each=*/2);
  }
  Print();
  EXPECT_EQ(lost_, 0U);
}

// What was answered does not hang on the file that mends the ledger: an image whose write was under
// way is recorded after its deletion is.
TEST_F(SsdPowerCut, WhatWasDeletedIsGoneFromTheLedgerItself) {
  is_ledger_alone_ = true;
  for (int round = 0; round < Rounds(); ++round) {
    Round(End::kPowerCut, /*durable_each=*/1);
  }
  Print();
}

// A tier that did not sync what it has to would lose durable images: the test above would see it.
TEST_F(SsdPowerCut, APowerCutThatTakesBackSegmentsIsSeen) {
  unbelieved_ = "/segments/";
  for (int round = 0; round < 20 && lost_ == 0; ++round) {
    Round(End::kPowerCut, /*durable_each=*/1);
  }
  Print();
  EXPECT_GT(lost_, 0U);
}

}  // namespace
}  // namespace cairn
