// SPDX-License-Identifier: Apache-2.0
// A process that writes, frees and reclaims is killed, again and again: what it said was durable is
// there, what it said was gone is gone, and nothing reads as something else. CAIRN_KILLS says how
// often; the soak asks for hundreds.
#include <gtest/gtest.h>

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

#include "tests/support/from_environment.h"
#include "tests/support/random.h"
#include "tests/support/ssd_shelf.h"

namespace cairn {
namespace {

// What the child tells, in this order, each before the next is begun.
struct Word {
  enum class What : uint8_t { kWritten, kGone } what = What::kWritten;
  uint64_t number = 0;
};

constexpr int kTellFd = 100;
constexpr char kFolder[] = "CAIRN_SSD_FOLDER", kFirst[] = "CAIRN_SSD_FIRST";

// What the child runs, which is this program anew: RocksDB's threads do not survive a fork. Puts
// numbers from one on, reads so that reclaim carries some along, and deletes some of the last and
// some of the oldest, which are reclaimed meanwhile. Tells of it on kTellFd.
[[noreturn]] void WriteUntilKilled() {
  SsdShelf::Options options;
  options.budget_bytes = SsdShelf::kSmallBudgetBytes;
  options.folder = std::getenv(kFolder);
  const uint64_t first = std::strtoull(std::getenv(kFirst), nullptr, 10);
  SsdShelf shelf(options);
  const auto say = [](Word::What what, uint64_t number) {
    const Word word = {.what = what, .number = number};
    CAIRN_CHECK(::write(kTellFd, &word, sizeof(word)) == sizeof(word));
  };
  for (uint64_t number = first;; ++number) {
    CAIRN_CHECK_OK(shelf.Put(number));
    say(Word::What::kWritten, number);
    const std::set<uint64_t> numbers = shelf.Numbers();
    const auto remove = [&](uint64_t doomed) {
      shelf.Delete(doomed);
      CAIRN_CHECK(shelf.tier().AwaitFreed(MonotonicNow() + absl::Seconds(30)));
      say(Word::What::kGone, doomed);
    };
    const uint64_t old = *std::next(
        numbers.begin(), static_cast<ptrdiff_t>(number * 7919 % (1 + numbers.size() / 2)));
    (void)shelf.Get(old);
    if (number % 5 == 0 && numbers.contains(number - 2)) {
      remove(number - 2);
    } else if (number % 5 == 3 && old + 40 < number) {
      remove(old);
    }
  }
}

TEST(SsdKillTest, NothingWrongAndNothingLost) {
  if (std::getenv(kFolder) != nullptr) {
    WriteUntilKilled();
  }
  const int kills = FromEnvironment("CAIRN_KILLS", 4);
  const TempDir folder{std::filesystem::current_path()};
  std::mt19937_64 random = SeededRandom(1);
  uint64_t next = 1;
  for (int kill = 0; kill < kills; ++kill) {
    int ends[2];
    ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      ::setenv(kFolder, folder.path().c_str(), 1);
      ::setenv(kFirst, std::to_string(next).c_str(), 1);
      ::dup2(ends[1], kTellFd);
      ::execl("/proc/self/exe", "cairn-child",
              "--gtest_filter=SsdKillTest.NothingWrongAndNothingLost", nullptr);
      ::_exit(1);
    }
    ::close(ends[1]);
    // A while after its first word.
    std::set<uint64_t> there, gone;
    uint64_t last = next;
    const uint64_t words_max = 20 + random() % 300;
    Word word;
    for (uint64_t words = 0; words < words_max && ::read(ends[0], &word, sizeof(word)) ==
                                                      static_cast<ssize_t>(sizeof(word));
         ++words) {
      (word.what == Word::What::kWritten ? there : gone).insert(word.number);
      last = std::max(last, word.number);
    }
    ASSERT_EQ(::kill(child, SIGKILL), 0);
    while (::read(ends[0], &word, sizeof(word)) == static_cast<ssize_t>(sizeof(word))) {
      (word.what == Word::What::kWritten ? there : gone).insert(word.number);
      last = std::max(last, word.number);
    }
    ::close(ends[0]);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << "it ended by itself";

    SsdShelf::Options options;
    options.budget_bytes = SsdShelf::kSmallBudgetBytes;
    options.folder = folder.path().string();
    SsdShelf shelf(options);
    const std::set<uint64_t> found = shelf.Numbers();
    for (const uint64_t number : found) {
      const absl::Status status = shelf.Get(number);
      EXPECT_TRUE(status.ok() || absl::IsNotFound(status))  // reclaim is at work already
          << number << " reads as something else: " << status;
      EXPECT_FALSE(gone.contains(number)) << number << " came back";
    }
    // The newest are there, but for those it was killed in the middle of freeing; the oldest may
    // have been reclaimed.
    for (uint64_t number = last; number + 20 > last && number >= next; --number) {
      if (there.contains(number) && !gone.contains(number) && (number + 2) % 5 != 0) {
        EXPECT_TRUE(found.contains(number)) << number << " of " << last << " is lost";
      }
    }
    next = last + 10;
  }
}

}  // namespace
}  // namespace cairn
