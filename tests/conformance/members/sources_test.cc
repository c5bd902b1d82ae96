// SPDX-License-Identifier: Apache-2.0
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "tests/conformance/members/source.h"
#include "tests/support/log_capture.h"
#include "tests/support/sanitizer.h"
#include "tests/support/wait.h"

namespace cairn {
namespace {

// Keeps the last set of a source.
class Reader {
 public:
  explicit Reader(Registry& registry) : registry_(registry), source_(registry.MakeSource()) {
    source_->Start([this](std::vector<ListedMember> members) {
      std::ranges::sort(members, {}, &ListedMember::address);
      const MutexLock lock(mutex_);
      members_ = std::move(members);
      ++sets_;
    });
  }
  ~Reader() { source_->Stop(); }

  MemberSource& source() { return *source_; }
  int sets() const {
    const MutexLock lock(mutex_);
    return sets_;
  }
  std::vector<ListedMember> members() const {
    const MutexLock lock(mutex_);
    return members_;
  }
  // Waits until the source says this, without what it cannot know.
  [[nodiscard]] bool Sees(std::vector<ListedMember> expected) const {
    for (ListedMember& one : expected) {
      if (!registry_.has_names()) one.name.clear();
      if (!registry_.has_zones()) one.zone.clear();
    }
    std::ranges::sort(expected, {}, &ListedMember::address);
    return WaitFor([&] { return sets() > 0 && members() == expected; });
  }

 private:
  Registry& registry_;
  const std::unique_ptr<MemberSource> source_;
  mutable Mutex mutex_;
  std::vector<ListedMember> members_ ABSL_GUARDED_BY(mutex_);
  int sets_ ABSL_GUARDED_BY(mutex_) = 0;
};

#define CAIRN_MAKE_REGISTRY()                               \
  if (!GetParam().make) GTEST_SKIP() << GetParam().missing; \
  const LogCapture log;                                     \
  const std::unique_ptr<Registry> registry = GetParam().make()

// Of this process, the registry's stand-in included.
double CpuSeconds() {
  timespec time{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) / 1e9;
}

ListedMember Make(const Registry& registry, int number, int host) {
  const uint16_t port =
      registry.port() != 0 ? registry.port() : static_cast<uint16_t>(7000 + number);
  return {absl::StrCat("m", number),
          absl::StrCat("10.", host / 65536, ".", host / 256 % 256, ".", host % 256, ":", port),
          absl::StrCat("z", number % 3)};
}

std::vector<ListedMember> Several(const Registry& registry, std::vector<int> numbers) {
  std::vector<ListedMember> members;
  for (const int number : numbers) members.push_back(Make(registry, number, number));
  return members;
}

TEST_P(MemberSources, GiveWhatIsListed) {
  CAIRN_MAKE_REGISTRY();
  registry->List(Several(*registry, {1, 2, 3}));
  const Reader reader(*registry);
  EXPECT_TRUE(reader.Sees(Several(*registry, {1, 2, 3})));
}

TEST_P(MemberSources, SeeWhoComesAndGoes) {
  CAIRN_MAKE_REGISTRY();
  registry->List(Several(*registry, {1, 2}));
  Reader reader(*registry);
  ASSERT_TRUE(reader.Sees(Several(*registry, {1, 2})));
  registry->List(Several(*registry, {1, 2, 3}));
  EXPECT_TRUE(reader.Sees(Several(*registry, {1, 2, 3})));
  registry->List(Several(*registry, {3, 2}));
  EXPECT_TRUE(reader.Sees(Several(*registry, {2, 3})));
  EXPECT_TRUE(reader.source().state().ok());
}

TEST_P(MemberSources, SeeANewAddress) {
  CAIRN_MAKE_REGISTRY();
  registry->List({Make(*registry, 1, 1), Make(*registry, 2, 2)});
  const Reader reader(*registry);
  ASSERT_TRUE(reader.Sees({Make(*registry, 1, 1), Make(*registry, 2, 2)}));
  registry->List({Make(*registry, 1, 1), Make(*registry, 2, 9)});
  EXPECT_TRUE(reader.Sees({Make(*registry, 1, 1), Make(*registry, 2, 9)}));
}

TEST_P(MemberSources, GoOnSayingWhatHasNotChanged) {
  CAIRN_MAKE_REGISTRY();
  registry->List(Several(*registry, {1}));
  const Reader reader(*registry);
  ASSERT_TRUE(reader.Sees(Several(*registry, {1})));
  const int sets = reader.sets();
  EXPECT_TRUE(WaitFor([&] { return reader.sets() > sets + 1; }));
  EXPECT_TRUE(reader.Sees(Several(*registry, {1})));
}

TEST_P(MemberSources, GiveNothingWhileTheyCannotSee) {
  CAIRN_MAKE_REGISTRY();
  registry->List(Several(*registry, {1, 2}));
  Reader reader(*registry);
  ASSERT_TRUE(reader.Sees(Several(*registry, {1, 2})));
  registry->Break();
  ASSERT_TRUE(WaitFor([&] { return !reader.source().state().ok(); }));
  EXPECT_TRUE(reader.Sees(Several(*registry, {1, 2})));
  registry->Mend();
  EXPECT_TRUE(WaitFor([&] { return reader.source().state().ok(); }));
  registry->List(Several(*registry, {2, 4}));
  EXPECT_TRUE(reader.Sees(Several(*registry, {2, 4})));
}

TEST_P(MemberSources, TakeNoLieForAList) {
  CAIRN_MAKE_REGISTRY();
  registry->List(Several(*registry, {1, 2}));
  Reader reader(*registry);
  ASSERT_TRUE(reader.Sees(Several(*registry, {1, 2})));
  registry->Lie();
  ASSERT_TRUE(WaitFor([&] { return !reader.source().state().ok(); }));
  EXPECT_TRUE(reader.Sees(Several(*registry, {1, 2})));
  registry->List(Several(*registry, {1, 5}));
  EXPECT_TRUE(reader.Sees(Several(*registry, {1, 5})));
}

TEST_P(MemberSources, BeginWithoutARegistry) {
  CAIRN_MAKE_REGISTRY();
  registry->List(Several(*registry, {1}));
  registry->Break();
  Reader reader(*registry);
  EXPECT_TRUE(WaitFor([&] { return !reader.source().state().ok(); }));
  EXPECT_EQ(reader.sets(), 0);
  registry->Mend();
  EXPECT_TRUE(reader.Sees(Several(*registry, {1})));
}

TEST_P(MemberSources, ListAsManyAsThereMayBe) {
  CAIRN_MAKE_REGISTRY();
  std::vector<ListedMember> members;
  for (int i = 1; i <= registry->members_max(); ++i) members.push_back(Make(*registry, i, i));
  registry->List(members);
  const Reader reader(*registry);
  ASSERT_TRUE(reader.Sees(members));
  // One leaves, and another one moves. The time is from the end of the registry's own change.
  members.pop_back();
  const ListedMember moved = Make(*registry, 1, 60'000);
  members.front() = moved;
  registry->List(members);
  const absl::Time changed = MonotonicNow();
  const double cpu_before = CpuSeconds();
  ASSERT_TRUE(reader.Sees(members));
  const absl::Duration took = MonotonicNow() - changed;
  // The registry of etcd writes all of them anew: a thousand changes.
  EXPECT_LE(took, (members.size() < 500 || registry->has_bulk_lists() ? absl::Seconds(1)
                                                                      : absl::Seconds(10)) *
                      kSlowdown);
  std::printf("%s: a change among %zu names is seen after %.0f ms; %.0f ms of a processor\n",
              GetParam().name.c_str(), members.size() + 1, absl::ToDoubleMilliseconds(took),
              1000 * (CpuSeconds() - cpu_before));
}

TEST_P(MemberSources, EndWhenStopped) {
  CAIRN_MAKE_REGISTRY();
  registry->List(Several(*registry, {1}));
  Reader reader(*registry);
  ASSERT_TRUE(reader.Sees(Several(*registry, {1})));
  reader.source().Stop();
  const int sets = reader.sets();
  registry->List(Several(*registry, {1, 2}));
  reader.source().Stop();
  EXPECT_EQ(reader.sets(), sets);
}

}  // namespace
}  // namespace cairn
