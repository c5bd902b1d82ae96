// SPDX-License-Identifier: Apache-2.0
// What the members of a cluster share of a space besides its blocks: the profile that one of them
// has mined, and the policy that an operator has set at one of them.

#include <signal.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "codecs/image/image.h"
#include "service/peer/homes.h"
#include "tests/e2e/client/cluster_fixture.h"
#include "tests/e2e/client/member_wire.h"
#include "tests/support/temp_dir.h"
#include "tests/support/wait.h"

namespace cairn {
namespace {

using testing::HasSubstr;

class SharedTest : public ClusterTest {
 protected:
  DaemonProcess* StartMember(const std::string& name, std::vector<std::string> more = {}) {
    for (const std::string& flag : wire_.Flags(name)) more.push_back(flag);
    return Start(name, more);
  }
  void StartAll(const std::vector<std::string>& names) {
    for (const std::string& name : names) StartMember(name);
    for (const auto& daemon : daemons_) {
      ASSERT_TRUE(Await(*daemon, "joined", static_cast<int>(names.size()))) << daemon->ReadLog();
    }
  }
  static void Kill(DaemonProcess& daemon) {
    daemon.process().Signal(SIGKILL);
    ASSERT_TRUE(daemon.process().Wait(kPatience).ok());
  }

  const MemberWire wire_{PeerWire::kTls, folder_, {"a", "b", "c", "d"}};
};

// --- Profiles ------------------------------------------------------------------------------------

constexpr uint32_t kBlockTokens = 128, kBlocks = 5;  // 512 tokens and a block to judge by
constexpr absl::Duration kMiningTime = absl::Seconds(60);

class ProfilesTest : public SharedTest {
 protected:
  // A client of one member.
  struct Writer {
    std::unique_ptr<Client> client;
    std::unique_ptr<Space> space;

    void Put(size_t first, size_t end) const {
      std::vector<uint32_t> tokens(end * kBlockTokens);
      std::iota(tokens.begin(), tokens.end(), 1U);
      const std::vector<BlockKey> keys = space->DeriveChain(tokens);
      for (size_t i = first; i < end; ++i) {
        const auto source = ToyValues(codecs::DType::kBf16, *space->SourceBytes({}), i);
        const auto put = space->Put({.key = keys[i],
                                     .parent = i == 0 ? BlockKey{} : keys[i - 1],
                                     .first_position = i * kBlockTokens,
                                     .source = SourceBytes{source}},
                                    kPatience);
        ASSERT_TRUE(put.ok()) << put.status();
      }
    }
    std::string RecipeOf(size_t block) const {
      std::vector<uint32_t> tokens((block + 1) * kBlockTokens);
      std::iota(tokens.begin(), tokens.end(), 1U);
      std::vector<std::byte> image(*space->ImageBytesMax({}));
      const auto got = space->Get(
          {.key = space->DeriveChain(tokens).back(), .target = ImageTarget{image}}, kPatience);
      codecs::ImageView view;
      if (!got.ok() || codecs::ParseImage(image, &view) != codecs::Error::kOk) return "";
      return std::string(codecs::FormatRecipe(view.spec().recipe));
    }
    // Awaits the current profile. All zero: none within kMiningTime.
    codecs::Digest AwaitProfile() const {
      codecs::Digest id{};
      const absl::Time deadline = MonotonicNow() + kMiningTime;
      while (id == codecs::Digest{} && MonotonicNow() < deadline) {
        absl::SleepFor(absl::Milliseconds(50));
        const auto listed = space->ListSideObjects(kPatience);
        if (!listed.ok()) continue;
        for (const SideObjectFigures& one : *listed) {
          if (!one.current_groups.empty()) id = one.id;
        }
      }
      return id;
    }
  };
  static proto::SpaceIdentity Identity() {
    proto::SpaceIdentity identity = ToyIdentity(codecs::DType::kBf16, "mined");
    identity.tenant = "default";
    identity.tokens_per_block = kBlockTokens;
    identity.groups[0].rope = {proto::Rope::Kind::kHalf, kDim, 10000, {}};
    return identity;
  }
  static Writer Open(const DaemonProcess& daemon) {
    ConnectOptions options;
    options.control = daemon.endpoint("control");
    options.timeout = kPatience;
    auto client = Client::Connect(options);
    CAIRN_CHECK_OK(client);
    auto space = (*client)->OpenSpace(Identity(), "cairn:2.3", kPatience);
    CAIRN_CHECK_OK(space);
    return {*std::move(client), *std::move(space)};
  }
  // The members in the order in which they would mine.
  std::vector<DaemonProcess*> Order(std::vector<std::string> names) const {
    uint64_t run = 0;
    const proto::Fingerprint space = proto::FingerprintOf(Identity());
    std::memcpy(&run, space.data(), sizeof run);
    std::ranges::sort(names, std::greater(),
                      [run](const std::string& name) { return HomeScore(name, run); });
    std::vector<DaemonProcess*> order;
    for (const std::string& name : names) {
      order.push_back(daemons_[static_cast<size_t>(name[0] - 'a')].get());
    }
    return order;
  }
  double Sum(const std::string& metric) const {
    double sum = 0;
    for (const auto& daemon : daemons_) sum += daemon->Metric(metric);
    return sum;
  }
};

TEST_F(ProfilesTest, OneMemberMinesAndTheOthersTakeItsProfile) {
  ASSERT_NO_FATAL_FAILURE(StartAll({"a", "b", "c"}));
  const std::vector<DaemonProcess*> order = Order({"a", "b", "c"});
  const Writer home = Open(*order[0]), second = Open(*order[1]), third = Open(*order[2]);
  home.Put(0, kBlocks);  // the third member has no blocks at all
  second.Put(0, kBlocks);
  const codecs::Digest mined = home.AwaitProfile();
  ASSERT_NE(mined, codecs::Digest{}) << order[0]->ReadLog();
  EXPECT_EQ(second.AwaitProfile(), mined) << order[1]->ReadLog();
  EXPECT_EQ(third.AwaitProfile(), mined) << order[2]->ReadLog();
  EXPECT_EQ(order[0]->Metric("cairn_upkeep_mined_total"), 1);
  EXPECT_EQ(Sum("cairn_upkeep_mined_total"), 1);
  EXPECT_EQ(Sum("cairn_peer_profiles_total{outcome=\"taken\""), 2);
  third.Put(0, 1);
  EXPECT_EQ(third.RecipeOf(0), "cairn:2.3");
  EXPECT_TRUE(third.space->ListSideObjects(kPatience)->at(0).is_mined)
      << "what a client installs replaces it";
}

TEST_F(ProfilesTest, AMemberMinesWhoseHomeHasTooFewBlocks) {
  ASSERT_NO_FATAL_FAILURE(StartAll({"a", "b", "c"}));
  const std::vector<DaemonProcess*> order = Order({"a", "b", "c"});
  const Writer home = Open(*order[0]), third = Open(*order[2]);
  home.Put(0, 1);
  third.Put(0, kBlocks);
  const codecs::Digest mined = third.AwaitProfile();
  ASSERT_NE(mined, codecs::Digest{}) << order[2]->ReadLog();
  EXPECT_EQ(home.AwaitProfile(), mined) << order[0]->ReadLog();
  EXPECT_EQ(Sum("cairn_upkeep_mined_total"), 1);
  // It has a profile now, so it mines none when it has enough.
  home.Put(1, kBlocks);
  EXPECT_EQ(Sum("cairn_upkeep_mined_total"), 1);
}

TEST_F(ProfilesTest, WithoutTheHomeTheNextOneMines) {
  ASSERT_NO_FATAL_FAILURE(StartAll({"a", "b", "c"}));
  const std::vector<DaemonProcess*> order = Order({"a", "b", "c"});
  ASSERT_NO_FATAL_FAILURE(Kill(*order[0]));
  for (const char* name : {"a", "b", "c"}) {
    if (listed_.at(name) != order[0]->endpoint("peer")) continue;
    Forget(name);
    break;
  }
  ASSERT_TRUE(Await(*order[1], "joined", 2));
  ASSERT_TRUE(Await(*order[2], "joined", 2));
  const Writer second = Open(*order[1]), third = Open(*order[2]);
  second.Put(0, kBlocks);
  third.Put(0, kBlocks);
  const codecs::Digest mined = second.AwaitProfile();
  ASSERT_NE(mined, codecs::Digest{}) << order[1]->ReadLog();
  EXPECT_EQ(third.AwaitProfile(), mined) << order[2]->ReadLog();
  EXPECT_EQ(order[1]->Metric("cairn_upkeep_mined_total"), 1);
  EXPECT_EQ(order[2]->Metric("cairn_upkeep_mined_total"), 0);
}

// --- Policies ------------------------------------------------------------------------------------

class PoliciesTest : public SharedTest {
 protected:
  static SequenceClient Open(const DaemonProcess& daemon, const std::string& recipe = "raw") {
    ConnectOptions options;
    options.control = daemon.endpoint("control");
    return SequenceClient::Open(options, recipe);
  }
  static Ran Policy(const DaemonProcess& daemon, const std::string& words = "") {
    return RunCommand(absl::StrCat(CAIRNCTL_PATH, " policy --space default/m --timeout 3 ", words,
                                   " --control ", daemon.endpoint("control"), " --admin ",
                                   daemon.endpoint("admin")));
  }
};

TEST_F(PoliciesTest, APolicyReachesAllMembers) {
  ASSERT_NO_FATAL_FAILURE(StartAll({"a", "b", "c"}));
  const SequenceClient a = Open(*daemons_[0]), b = Open(*daemons_[1]);
  const Ran set = Policy(*daemons_[0], "--recipe kivi:8 --cold-recipe kivi:4 --ttl 3600");
  ASSERT_EQ(set.code, 0) << set.output;
  EXPECT_THAT(set.output, HasSubstr("recipe kivi:8, cold recipe kivi:4, ttl 3600 s"));
  EXPECT_EQ(Policy(*daemons_[1]).output, set.output) << "it has confirmed it";
  // One whose space is opened later has it, too, and not what the client says.
  const SequenceClient c = Open(*daemons_[2], "exact");
  EXPECT_EQ(c.space->recipe(), "kivi:8");
  EXPECT_EQ(Policy(*daemons_[2]).output, set.output);
  // The last one wins, wherever it is set.
  const Ran again = Policy(*daemons_[2], "--recipe raw --cold-recipe off --ttl 0");
  ASSERT_EQ(again.code, 0) << again.output;
  EXPECT_EQ(Policy(*daemons_[0]).output, again.output);
  // A member that joins later is told when it is greeted.
  const DaemonProcess* const d = StartMember("d");
  EXPECT_TRUE(d->AwaitMetric("cairn_member_policies", 1, kPatience)) << d->ReadLog();
  const SequenceClient late = Open(*d, "exact");
  EXPECT_EQ(late.space->recipe(), "raw");
}

TEST_F(PoliciesTest, AMemberThatDoesNotConfirmIsNamedAndLearnsItLater) {
  ASSERT_NO_FATAL_FAILURE(StartAll({"a", "b", "c"}));
  const SequenceClient a = Open(*daemons_[0]), b = Open(*daemons_[1]);
  daemons_[1]->process().Signal(SIGSTOP);
  const Ran set = Policy(*daemons_[0], "--recipe exact");
  daemons_[1]->process().Signal(SIGCONT);
  EXPECT_NE(set.code, 0);
  EXPECT_THAT(set.output, HasSubstr("set here, but these members did not confirm it: b;"));
  EXPECT_THAT(Policy(*daemons_[0]).output, HasSubstr("recipe exact"));
  EXPECT_EQ(daemons_[2]->Metric("cairn_member_policies_learned_total"), 1);
  EXPECT_TRUE(daemons_[1]->AwaitMetric("cairn_member_policies_learned_total", 1, kPatience))
      << daemons_[1]->ReadLog();
  EXPECT_THAT(Policy(*daemons_[1]).output, HasSubstr("recipe exact"));
}

TEST_F(PoliciesTest, ItIsRememberedOnTheDrives) {
  const TempDir disk{std::filesystem::path(CAIRN_TEST_DISK)};
  const std::vector<std::string> ssd = {"--ssd=" + disk.path().string() + "=256MiB"};
  StartMember("a", ssd);
  StartMember("b");
  for (const auto& daemon : daemons_) ASSERT_TRUE(Await(*daemon, "joined", 2));
  {
    const SequenceClient b = Open(*daemons_[1]);
    ASSERT_EQ(Policy(*daemons_[1], "--recipe exact --ttl 77").code, 0);
  }
  // The member never had the space. Both end, and the one with the drive comes back alone.
  ASSERT_EQ(daemons_[0]->Metric("cairn_member_policies_learned_total"), 1);
  daemons_[0]->process().Signal(SIGTERM);
  ASSERT_TRUE(daemons_[0]->process().Wait(kPatience).ok());
  ASSERT_NO_FATAL_FAILURE(Kill(*daemons_[1]));
  const DaemonProcess* const a = StartMember("a", ssd);
  EXPECT_EQ(a->Metric("cairn_member_policies"), 1);
  const SequenceClient client = Open(*a);
  EXPECT_THAT(Policy(*a).output, HasSubstr("recipe exact, cold recipe off, ttl 77 s"));
  const DaemonProcess* const b = StartMember("b");
  EXPECT_TRUE(b->AwaitMetric("cairn_member_policies_learned_total", 1, kPatience));
}

}  // namespace
}  // namespace cairn
