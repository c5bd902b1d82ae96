// SPDX-License-Identifier: Apache-2.0
// The SSD tier as its operator sees it: cairnctl tier.

#include <signal.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <thread>

#include "absl/strings/str_join.h"
#include "codecs/backend/backends.h"
#include "codecs/image/image.h"
#include "codecs/transform/demote.h"
#include "proto/block_key.h"
#include "tests/e2e/client/tier_fixture.h"
#include "tests/support/run_command.h"
#include "tests/support/wait.h"

namespace cairn {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

class TierCliTest : public TierTest {
 protected:
  Ran Run(const std::string& words) const {
    return RunCommand(
        absl::StrCat(CAIRNCTL_PATH, " ", words, " --control ", daemon_->endpoint("control")));
  }
  Bytes Image(uint32_t block) {
    Bytes image(*space_->ImageBytesMax({}));
    const auto got = space_->Get({.key = keys_[block], .target = ImageTarget{image}}, kPatience);
    EXPECT_TRUE(got.ok()) << got.status();
    image.resize(got.ok() ? got->bytes : 0);
    return image;
  }
  static Bytes Demoted(const Bytes& image) {
    codecs::ImageView view;
    codecs::Recipe recipe;
    const codecs::Backend* backend = nullptr;
    EXPECT_EQ(codecs::ActiveBackend(&backend), codecs::Error::kOk);
    EXPECT_EQ(codecs::ParseImage(image, &view), codecs::Error::kOk);
    EXPECT_EQ(codecs::ParseRecipe("kivi:4", &recipe), codecs::Error::kOk);
    Bytes target(codecs::DemoteBytesMax(view, recipe));
    size_t bytes = 0;
    EXPECT_EQ(codecs::Demote(*backend, view, recipe, target, &bytes), codecs::Error::kOk);
    target.resize(bytes);
    return target;
  }
};

TEST_F(TierCliTest, ShowsTiersAndTheirDevices) {
  more_flags_ = {"--ssd-write-budget=500%"};
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_NO_FATAL_FAILURE(Put(0, 4));
  ASSERT_TRUE(daemon_->AwaitMetric(kWritten, 4, kPatience));
  Ran ran = Run("tier");
  EXPECT_EQ(ran.code, 0) << ran.output;
  for (const char* shown : {"TIER", "host", "ssd", "DEVICE", "ok", "1 open", "ENGINE"}) {
    EXPECT_THAT(ran.output, HasSubstr(shown));
  }
  EXPECT_THAT(ran.output, HasSubstr(path_));
  EXPECT_THAT(ran.output, Not(HasSubstr(" is ok")));
  EXPECT_THAT(ran.output, HasSubstr("amplification 1.00; budget "));
  EXPECT_THAT(ran.output, HasSubstr("0 images withheld\n"));
  EXPECT_THAT(ran.output, testing::ContainsRegex("ssd writes: .*iB a day, from [0-9]+s since"));
  EXPECT_THAT(Run("tier --rated-tbw 600").output, HasSubstr("; how long the drives last shows"));
  ran = Run("tier --json");
  EXPECT_EQ(ran.code, 0) << ran.output;
  for (const char* shown : {"\"tier\": \"ssd\"", "\"images\": 4", "\"state\": \"ok\"",
                            "\"faults\": 0", "\"open\": 1", "\"retired\": false"}) {
    EXPECT_THAT(ran.output, HasSubstr(shown));
  }
  // Each image has two copies by now.
  const uint64_t source_bytes = 4 * *space_->SourceBytes({});
  for (const char* words : {"status --json", "spaces --json"}) {
    const std::string output = Run(words).output;
    EXPECT_THAT(output, HasSubstr(absl::StrCat("\"source_bytes\": ", source_bytes)));
    EXPECT_THAT(output, HasSubstr(absl::StrCat("\"copies_source_bytes\": ", 2 * source_bytes)));
  }
  EXPECT_THAT(Run("tier --help").output, HasSubstr("retire PATH | admit PATH"));
}

TEST_F(TierCliTest, PrefetchesWhatLiesOnADrive) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_NO_FATAL_FAILURE(Put(0, 4));
  ASSERT_TRUE(daemon_->AwaitMetric(kWritten, 4, kPatience));
  ASSERT_NO_FATAL_FAILURE(Kill());
  ASSERT_NO_FATAL_FAILURE(Start());
  std::string words = "prefetch";
  for (uint32_t block = 0; block < 5; ++block) {
    absl::StrAppend(&words, " ", proto::Hex(keys_[block]));
  }
  const Ran ran = Run(words);
  EXPECT_EQ(ran.code, 0) << ran.output;
  EXPECT_EQ(ran.output, "0 in memory, 4 on their way, 1 not there, 0 refused\n");
  const auto are_in_memory = [&] {
    const auto match = space_->Match({.keys = keys_, .is_counting = true, .timeout = kPatience});
    return match.ok() && match->block_count == 4 &&
           std::ranges::all_of(match->blocks,
                               [](const MatchedBlock& block) { return block.tier == Tier::kHost; });
  };
  EXPECT_TRUE(WaitFor(are_in_memory)) << "Match says when they are there";
  EXPECT_THAT(Run(words + " --json").output, HasSubstr("\"in_memory\": 4"));
  Bytes values;
  ASSERT_TRUE(Get(3, &values).ok());
  EXPECT_TRUE(values == SourceOf(3));
}

TEST_F(TierCliTest, PinsAPrefixForAsLongAsItRuns) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_NO_FATAL_FAILURE(Put(0, 3));
  ASSERT_TRUE(daemon_->AwaitMetric(kWritten, 3, kPatience));
  ASSERT_NO_FATAL_FAILURE(Kill());
  ASSERT_NO_FATAL_FAILURE(Start());
  const std::string file = (disk_.path() / "tokens").string();
  std::ofstream(file) << "[" << absl::StrJoin(Tokens(4), ", ") << "]";
  constexpr char kLeased[] = "cairn_tier_leased_bytes{tier=\"host\"}";
  Ran ran;
  std::thread pin([&] { ran = Run(absl::StrCat("pin --for 4 --tokens ", file)); });
  const bool is_pinned = WaitFor([&] { return daemon_->Metric(kLeased) > 0; });
  ASSERT_NO_FATAL_FAILURE(Put(3, 4));
  pin.join();
  EXPECT_TRUE(is_pinned);
  EXPECT_EQ(ran.code, 0) << ran.output;
  EXPECT_THAT(ran.output, HasSubstr("3 of 4 blocks pinned, "));
  EXPECT_THAT(ran.output, HasSubstr("4 of 4 blocks pinned, 4 of them in memory, "))
      << "what comes later too";
  EXPECT_TRUE(WaitFor([&] { return daemon_->Metric(kLeased) == 0; })) << "and no longer";

  std::ofstream(file) << "17 x";
  EXPECT_THAT(Run("pin --tokens " + file).output,
              HasSubstr("'x' in " + file + " is not a token id"));
  std::ofstream(file) << "17";
  EXPECT_THAT(Run("pin --tokens " + file).output, HasSubstr("1 tokens make 0 blocks of 16 tokens"));
  EXPECT_EQ(Run("pin").code, 2);
}

// Blocks of 512 KiB, of which each reader wants one head: the others stay on the drive.
TEST_F(TierCliTest, ASliceIsReadWithoutTheRestOfItsImage) {
  constexpr uint32_t kLargeTokens = 256;
  constexpr char kSliceBytes[] = "cairn_promoted_bytes_total{kind=\"slice\"}";
  proto::SpaceIdentity identity = ToyIdentity(kBf16, "large");
  identity.tokens_per_block = kLargeTokens;
  const auto open = [&] {
    auto space = client_->OpenSpace(identity, "raw", kPatience);
    ASSERT_TRUE(space.ok()) << space.status();
    space_ = *std::move(space);
    std::vector<uint32_t> tokens(2 * kLargeTokens);
    std::iota(tokens.begin(), tokens.end(), 7U);
    keys_ = space_->DeriveChain(tokens);
  };
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_NO_FATAL_FAILURE(open());
  for (uint32_t block = 0; block < 2; ++block) {
    const Bytes source = SourceOf(block);
    const auto put = space_->Put({.key = keys_[block],
                                  .parent = block == 0 ? BlockKey{} : keys_[0],
                                  .first_position = block * kLargeTokens,
                                  .source = SourceBytes{source}},
                                 kPatience);
    ASSERT_TRUE(put.ok()) << put.status();
  }
  ASSERT_TRUE(daemon_->AwaitMetric(kWritten, 2, kPatience));
  ASSERT_NO_FATAL_FAILURE(Kill());
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_NO_FATAL_FAILURE(open());

  const GroupSlice head = {.head_first = 2, .head_count = 1};
  const size_t head_bytes = *space_->SourceBytes(head);  // of K and V, side by side in each layer
  const size_t part_bytes = head_bytes / kLayers;
  const Bytes source = SourceOf(0);
  Bytes values(head_bytes);
  const auto get = [&](const BlockKey& key) {
    return space_->Get({.key = key, .slice = head, .target = SourceTarget{values}}, kPatience);
  };
  const auto got = get(keys_[0]);
  ASSERT_TRUE(got.ok()) << got.status();
  for (uint32_t layer = 0; layer < kLayers; ++layer) {
    EXPECT_EQ(std::memcmp(&values[layer * part_bytes], &source[(layer * kHeads + 2) * part_bytes],
                          part_bytes),
              0)
        << layer;
  }
  // Pages before and behind each part, and those of header and directory.
  EXPECT_GE(daemon_->Metric(kSliceBytes), head_bytes);
  EXPECT_LE(daemon_->Metric(kSliceBytes), head_bytes + (2 * kLayers + 1) * 4096);
  EXPECT_EQ(daemon_->Metric("cairn_ssd_read_bytes_total{device=\"0\"}"),
            daemon_->Metric(kSliceBytes));
  EXPECT_EQ(daemon_->Metric("cairn_promoted_bytes_total{kind=\"whole\"}"), 0);
  EXPECT_EQ(daemon_->Metric("cairn_tier_copies{tier=\"host\"}"), 0);
  values.resize(*space_->SourceBytes({}));
  ASSERT_TRUE(Get(0, &values).ok());
  EXPECT_TRUE(values == source);
  EXPECT_EQ(daemon_->Metric("cairn_tier_copies{tier=\"host\"}"), 1);
}

TEST_F(TierCliTest, RetiresADeviceAndTakesItBack) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_NO_FATAL_FAILURE(Put(0, 4));
  ASSERT_TRUE(daemon_->AwaitMetric(kWritten, 4, kPatience));
  Ran ran = Run("tier retire " + path_);
  EXPECT_EQ(ran.code, 0) << ran.output;
  EXPECT_EQ(ran.output, path_ + " is read-only: retired\n");
  EXPECT_THAT(daemon_->ReadLog(), HasSubstr("device is retired path=" + path_));
  EXPECT_THAT(Run("tier").output, HasSubstr("ssd " + path_ + " is read-only: retired"));
  EXPECT_THAT(Run("status").output, HasSubstr("ssd " + path_ + " is read-only: retired"));
  EXPECT_THAT(Run("status --json").output, HasSubstr("\"state\": \"read-only\""));
  EXPECT_EQ(daemon_->Metric("cairn_ssd_state{device=\"0\",state=\"read-only\"}"), 1);
  ASSERT_NO_FATAL_FAILURE(Put(4, kBlocks));
  // Written down is nothing of it, and everything is served.
  ASSERT_TRUE(daemon_->AwaitMetric("cairn_images_uncopied", kBlocks - 4, kPatience));
  EXPECT_EQ(daemon_->Metric(kWritten), 4);
  EXPECT_EQ(Matched(), kBlocks);
  const std::string ready = daemon_->HttpGet("/readyz");
  EXPECT_THAT(ready, StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(ready, HasSubstr("ready\n" + path_ + " is read-only: retired\n"));

  ran = Run("tier admit " + path_);
  EXPECT_EQ(ran.code, 0) << ran.output;
  EXPECT_EQ(ran.output, path_ + " is ok\n");
  EXPECT_THAT(daemon_->ReadLog(), HasSubstr("device is taken back path=" + path_));
  EXPECT_TRUE(daemon_->AwaitMetric(kWritten, kBlocks, kPatience));

  ran = Run("tier retire /no/such");
  EXPECT_EQ(ran.code, 3) << ran.output;
  EXPECT_THAT(ran.output, HasSubstr("there is: " + path_));
  EXPECT_EQ(Run("tier retire").code, 2);
  EXPECT_EQ(Run("tier drop " + path_).code, 2);
}

TEST_F(TierCliTest, ADeviceThatIsNotThereIsOutUntilItComes) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_NO_FATAL_FAILURE(Put(0, kBlocks));
  ASSERT_TRUE(daemon_->AwaitMetric(kWritten, kBlocks, kPatience));
  ASSERT_NO_FATAL_FAILURE(Kill());
  // As a disk that is not mounted.
  const std::string aside = path_ + ".aside";
  std::filesystem::rename(path_, aside);
  std::filesystem::create_symlink("/no/such", path_);
  ASSERT_NO_FATAL_FAILURE(Start());
  EXPECT_THAT(daemon_->ReadLog(), HasSubstr("device is missing"));
  EXPECT_THAT(daemon_->ReadLog(), HasSubstr("blocks are only in memory"));
  EXPECT_EQ(daemon_->Metric("cairn_ssd_state{device=\"0\",state=\"out\"}"), 1);
  EXPECT_THAT(Run("tier").output, HasSubstr("ssd " + path_ + " is out: "));
  EXPECT_THAT(daemon_->HttpGet("/readyz"), StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(daemon_->HttpGet("/readyz"), HasSubstr(path_ + " is out: "));
  EXPECT_EQ(Matched(), 0u);
  ASSERT_NO_FATAL_FAILURE(Put(0, 2));
  EXPECT_EQ(Matched(), 2u) << "from memory";

  std::filesystem::remove(path_);
  std::filesystem::rename(aside, path_);
  EXPECT_EQ(Run("tier admit " + path_).output, path_ + " is ok\n");
  EXPECT_EQ(Matched(), kBlocks) << "what the disk holds is found without a restart";
  for (const uint32_t block : {0U, kBlocks - 1}) {
    Bytes values;
    ASSERT_TRUE(Get(block, &values).ok());
    EXPECT_EQ(values, SourceOf(block));
  }
}

TEST_F(TierCliTest, DrainsADaemonThatGoesOnServing) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_NO_FATAL_FAILURE(Put(0, 4));
  const Ran ran = Run("drain");
  EXPECT_EQ(ran.code, 0) << ran.output;
  EXPECT_EQ(ran.output, "draining: 1 sessions\n");
  EXPECT_THAT(daemon_->HttpGet("/readyz"), StartsWith("HTTP/1.1 503 "));
  EXPECT_THAT(daemon_->HttpGet("/healthz"), StartsWith("HTTP/1.1 200 "));
  EXPECT_EQ(Matched(), 4);
  ConnectOptions another;
  another.control = daemon_->endpoint("control");
  EXPECT_TRUE(absl::IsUnavailable(Client::Connect(another).status())) << "no new sessions";
  EXPECT_THAT(Run("status").output, HasSubstr("DRAINING"));
  EXPECT_EQ(Run("drain").code, 0) << "asked again, nothing changes";
  EXPECT_EQ(Run("drain now").code, 2);
}

// What is put in 8 bits comes back in 4, as the policy has it, and its bytes are those that the
// demotion of the image has.
TEST_F(TierCliTest, ColderCopiesAreTheDemotionOfWhatWasPut) {
  ASSERT_NO_FATAL_FAILURE(Start());
  const Ran refused = Run("policy --cold-recipe kivi:4");
  EXPECT_EQ(refused.code, 2) << refused.output;
  EXPECT_THAT(refused.output, HasSubstr("is lossy, but the space's recipe"));
  Disconnect();
  Connect("cold", "kivi:8");
  const std::string cold = " --space " + proto::Hex(space_->fingerprint()).substr(0, 12);
  EXPECT_THAT(Run("policy" + cold).output, HasSubstr("recipe kivi:8, cold recipe off, ttl off"));
  const Ran set = Run("policy --cold-recipe kivi:4" + cold);
  EXPECT_EQ(set.code, 0) << set.output;
  EXPECT_THAT(set.output, HasSubstr("recipe kivi:8, cold recipe kivi:4, ttl off"));
  ASSERT_NO_FATAL_FAILURE(Put(0, 4));
  ASSERT_TRUE(daemon_->AwaitMetric(kWritten, 4, kPatience));
  EXPECT_EQ(daemon_->Metric("cairn_write_down_recoded_total"), 4);
  std::vector<Bytes> put;
  for (uint32_t block = 0; block < 4; ++block) {
    put.push_back(Image(block));
  }
  ASSERT_NO_FATAL_FAILURE(Kill());

  ASSERT_NO_FATAL_FAILURE(Start());
  Disconnect();
  Connect("cold", "");
  for (uint32_t block = 0; block < 4; ++block) {
    EXPECT_EQ(Image(block), Demoted(put[block])) << block;
  }
  EXPECT_THAT(Run("policy" + cold).output, HasSubstr("recipe kivi:8, cold recipe kivi:4"));
  EXPECT_THAT(Run("ls" + cold).output, HasSubstr("kivi:4"));
  // It is kept as it was set last, though nothing else is written.
  EXPECT_EQ(Run("policy --ttl 600" + cold).code, 0);
  ASSERT_NO_FATAL_FAILURE(Kill());
  ASSERT_NO_FATAL_FAILURE(Start());
  EXPECT_THAT(Run("policy" + cold).output, HasSubstr("cold recipe kivi:4, ttl 600 s"));
}

TEST_F(TierCliTest, BlocksGoWhenTheirTimeIsOver) {
  ASSERT_NO_FATAL_FAILURE(Start());
  EXPECT_THAT(Run("policy --ttl 1").output, HasSubstr("recipe raw, cold recipe off, ttl 1 s"));
  ASSERT_NO_FATAL_FAILURE(Put(0, 3));
  ASSERT_TRUE(daemon_->AwaitMetric("cairn_expired_blocks_total", 3, absl::Seconds(30)));
  EXPECT_EQ(Matched(), 0u);
  EXPECT_EQ(daemon_->Metric("cairn_tier_copies{tier=\"ssd\"}"), 0);
  EXPECT_EQ(daemon_->Metric("cairn_tier_copies{tier=\"host\"}"), 0);
}

}  // namespace
}  // namespace cairn
