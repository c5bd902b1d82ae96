// SPDX-License-Identifier: Apache-2.0
// What outlives the daemon: it is killed, and another takes over its disk.

#include <signal.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "codecs/image/image.h"
#include "tests/e2e/client/client_fixture.h"
#include "tests/support/run_command.h"
#include "tests/support/side_object_bytes.h"
#include "tests/support/temp_dir.h"

namespace cairn {
namespace {

using Bytes = std::vector<std::byte>;
constexpr auto kBf16 = codecs::DType::kBf16;
constexpr codecs::ProfileShape kShape = {
    .layers = kLayers, .heads = kHeads, .k_dim = kDim, .v_dim = kDim};
constexpr uint32_t kBlocks = 6;
constexpr char kWritten[] = "cairn_write_downs_total{outcome=\"written\"}";

class RestartTest : public testing::Test {
 protected:
  // A daemon over the disk, and a client of it.
  void Start() {
    auto started =
        DaemonProcess::Start({absl::StrCat("--ssd=", devices_), "--ssd-scrub-rate=" + scrub_rate_});
    ASSERT_TRUE(started.ok()) << started.status();
    daemon_ = *std::move(started);
    ConnectOptions options;
    options.control = daemon_->endpoint("control");
    options.timeout = kPatience;
    auto client = Client::Connect(options);
    ASSERT_TRUE(client.ok()) << client.status();
    client_ = *std::move(client);
  }
  void Open(const std::string& recipe, const std::string& model = "model") {
    auto space = client_->OpenSpace(ToyIdentity(kBf16, model), recipe, kPatience);
    ASSERT_TRUE(space.ok()) << space.status();
    space_ = *std::move(space);
    keys_ = space_->DeriveChain(Tokens());
  }
  void End(int signal, int exit_code) {
    space_.reset();
    client_.reset();
    daemon_->process().Signal(signal);
    ASSERT_EQ(daemon_->process().Wait(absl::Seconds(20)).value_or(-1), exit_code)
        << daemon_->ReadLog();
    log_ = daemon_->ReadLog();
    daemon_.reset();
  }
  void Kill() { End(SIGKILL, 128 + SIGKILL); }

  // Changes the last byte of the image's only place in a segment. False: it is in none.
  bool FlipByteOf(const Bytes& image) const {
    for (const auto& segment : std::filesystem::directory_iterator(disk_.path() / "segments")) {
      std::fstream file(segment.path(), std::ios::in | std::ios::out | std::ios::binary);
      const std::string bytes((std::istreambuf_iterator<char>(file)), {});
      const size_t place =
          bytes.find(std::string_view(reinterpret_cast<const char*>(image.data()), image.size()));
      if (place != std::string::npos) {
        const size_t last = place + image.size() - 1;
        file.clear();
        file.seekp(static_cast<std::streamoff>(last));
        file.put(static_cast<char>(bytes[last] ^ 1));
        return true;
      }
    }
    return false;
  }

  static std::vector<uint32_t> Tokens() {
    std::vector<uint32_t> tokens((kBlocks + 1) * kTokens);
    std::iota(tokens.begin(), tokens.end(), 7U);
    return tokens;
  }
  Bytes SourceOf(uint32_t block) const {
    return ToyValues(kBf16, *space_->SourceBytes({}), block + 1);
  }
  absl::Status Put(uint32_t block) {
    const Bytes source = SourceOf(block);
    return space_
        ->Put({.key = keys_[block],
               .parent = block == 0 ? BlockKey{} : keys_[block - 1],
               .first_position = block * kTokens,
               .source = SourceBytes{source}},
              kPatience)
        .status();
  }
  void PutChain() {
    for (uint32_t block = 0; block < kBlocks; ++block) {
      ASSERT_TRUE(Put(block).ok());
    }
  }
  absl::StatusOr<GetResult> Image(uint32_t block, Bytes* image) {
    image->resize(*space_->ImageBytesMax({}));
    auto got = space_->Get({.key = keys_[block], .target = ImageTarget{*image}}, kPatience);
    if (got.ok()) {
      image->resize(got->bytes);
    }
    return got;
  }
  codecs::ImageSpec SpecOf(uint32_t block) {
    Bytes image;
    codecs::ImageView view;
    EXPECT_TRUE(Image(block, &image).ok());
    EXPECT_EQ(codecs::ParseImage(image, &view), codecs::Error::kOk);
    return view.spec();
  }
  Bytes Values(uint32_t block) {
    Bytes values(*space_->SourceBytes({}));
    EXPECT_TRUE(space_->Get({.key = keys_[block], .target = SourceTarget{values}}, kPatience).ok());
    return values;
  }
  uint32_t Matched() {
    const auto match = space_->Match({.keys = keys_, .is_counting = true, .timeout = kPatience});
    EXPECT_TRUE(match.ok()) << match.status();
    return match.ok() ? match->block_count : 0;
  }

  // A disk: a folder of the system's may be in memory, where nothing bypasses the page cache.
  const TempDir disk_{std::filesystem::path(CAIRN_TEST_DISK)};
  std::string devices_ = disk_.path().string() + "=256MiB";
  std::unique_ptr<DaemonProcess> daemon_;
  std::unique_ptr<Client> client_;
  std::unique_ptr<Space> space_;
  std::vector<BlockKey> keys_;
  std::string log_;
  std::string scrub_rate_ = "0";
};

class RestartOf : public RestartTest, public testing::WithParamInterface<const char*> {};
INSTANTIATE_TEST_SUITE_P(, RestartOf, testing::Values("raw", "exact", "cairn:2.3"),
                         [](const auto& info) {
                           return info.param == std::string("cairn:2.3") ? "profile" : info.param;
                         });

TEST_P(RestartOf, ByKillKeepsEveryByte) {
  const std::string recipe = GetParam();
  const bool is_lossless = recipe != "cairn:2.3";
  const Bytes profile = SideObjectBytes(SideObjectKind::kProfile, 1, kShape);
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_NO_FATAL_FAILURE(Open(recipe));
  if (!is_lossless) {
    ASSERT_TRUE(space_->PutSideObject(0, SideObjectKind::kProfile, profile, kPatience).ok());
  }
  ASSERT_NO_FATAL_FAILURE(PutChain());
  std::vector<Bytes> images(kBlocks), values(kBlocks);
  for (uint32_t block = 0; block < kBlocks; ++block) {
    ASSERT_TRUE(Image(block, &images[block]).ok());
    values[block] = Values(block);
  }
  ASSERT_TRUE(daemon_->AwaitMetric(kWritten, kBlocks, absl::Seconds(20)));
  EXPECT_EQ(daemon_->Metric("cairn_images_uncopied"), 0);
  const auto leased = space_->Match({.keys = keys_, .timeout = kPatience});
  ASSERT_TRUE(leased.ok()) << leased.status();
  EXPECT_EQ(daemon_->Metric("cairn_leased_images"), kBlocks);
  ASSERT_NO_FATAL_FAILURE(Kill());

  ASSERT_NO_FATAL_FAILURE(Start());
  EXPECT_EQ(daemon_->Metric("cairn_recovered_images_total"), kBlocks) << daemon_->ReadLog();
  EXPECT_EQ(daemon_->Metric("cairn_leased_images"), 0) << "a lease is of its process";
  ASSERT_NO_FATAL_FAILURE(Open("raw"));
  EXPECT_EQ(space_->recipe(), recipe) << "the space keeps its policy";
  const auto match = space_->Match({.keys = keys_, .is_counting = true, .timeout = kPatience});
  ASSERT_TRUE(match.ok()) << match.status();
  ASSERT_EQ(match->block_count, kBlocks);
  for (uint32_t block = 0; block < kBlocks; ++block) {
    EXPECT_EQ(match->blocks[block].tier, Tier::kSsd);
    Bytes image;
    const auto got = Image(block, &image);
    ASSERT_TRUE(got.ok()) << got.status();
    EXPECT_EQ(got->tier, Tier::kSsd);
    EXPECT_EQ(image, images[block]);
    EXPECT_EQ(Values(block), values[block]);
    if (is_lossless) {
      EXPECT_EQ(values[block], SourceOf(block));
    }
  }
  // The next put goes on where the process before stopped.
  ASSERT_TRUE(Put(kBlocks).ok());
  EXPECT_EQ(codecs::FormatRecipe(SpecOf(kBlocks).recipe), codecs::FormatRecipe(SpecOf(0).recipe));
  if (!is_lossless) {
    EXPECT_EQ(SpecOf(kBlocks).side_objects[0], proto::SideObjectId(profile));
    const auto listed = space_->ListSideObjects(kPatience);
    ASSERT_TRUE(listed.ok() && listed->size() == 1);
    EXPECT_FALSE((*listed)[0].is_mined);
  }
  EXPECT_EQ(Matched(), kBlocks + 1);
}

TEST_F(RestartTest, BringsNothingBackThatWasDeleted) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_NO_FATAL_FAILURE(Open("raw"));
  ASSERT_NO_FATAL_FAILURE(PutChain());
  ASSERT_TRUE(daemon_->AwaitMetric(kWritten, kBlocks, absl::Seconds(20)));
  const auto deleted = space_->Delete(std::span(keys_).subspan(2, 1), kPatience);
  ASSERT_TRUE(deleted.ok()) << deleted.status();
  EXPECT_EQ(*deleted, 1u);
  ASSERT_NO_FATAL_FAILURE(Kill());
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_NO_FATAL_FAILURE(Open("raw"));
  EXPECT_EQ(Matched(), 2u);
  EXPECT_EQ(daemon_->Metric("cairn_recovered_images_total"), kBlocks - 1);
  const auto invalidated = space_->Invalidate(kPatience);
  ASSERT_TRUE(invalidated.ok()) << invalidated.status();
  EXPECT_EQ(*invalidated, kBlocks - 1);
  ASSERT_NO_FATAL_FAILURE(Kill());
  ASSERT_NO_FATAL_FAILURE(Start());
  EXPECT_EQ(daemon_->Metric("cairn_recovered_images_total"), 0);
}

// A drive that is away learns of deletions when it is back.
TEST_F(RestartTest, ADeletionOfNoBlocksDeletesNone) {
  const TempDir other{std::filesystem::path(CAIRN_TEST_DISK)};
  const std::string aside = other.path().string() + ".aside";
  devices_ = absl::StrCat(disk_.path().string(), "=256MiB,", other.path().string(), "=256MiB");
  constexpr uint32_t kChains = 16;  // both drives have some
  std::vector<BlockKey> keys;
  const auto stored = [&] {
    const auto there = space_->Contains(keys, kPatience);
    EXPECT_TRUE(there.ok()) << there.status();
    return there.ok() ? std::count(there->begin(), there->end(), true) : 0;
  };
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_NO_FATAL_FAILURE(Open("raw"));
  const Bytes source = SourceOf(0);
  for (uint32_t i = 0; i < kChains; ++i) {
    keys.push_back(space_->OpaqueKey(std::as_bytes(std::span(&i, 1))));
    ASSERT_TRUE(space_->Put({.key = keys[i], .source = SourceBytes{source}}, kPatience).ok());
  }
  ASSERT_TRUE(daemon_->AwaitMetric(kWritten, kChains, absl::Seconds(20)));
  ASSERT_NO_FATAL_FAILURE(Kill());
  std::filesystem::rename(other.path(), aside);
  std::filesystem::create_symlink("/no/such", other.path());
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_NO_FATAL_FAILURE(Open("raw"));
  EXPECT_LT(stored(), static_cast<ptrdiff_t>(kChains));
  const auto deleted = space_->Delete({}, kPatience);
  ASSERT_TRUE(deleted.ok()) << deleted.status();
  EXPECT_EQ(*deleted, 0u);
  ASSERT_NO_FATAL_FAILURE(Kill());
  std::filesystem::remove(other.path());
  std::filesystem::rename(aside, other.path());
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_NO_FATAL_FAILURE(Open("raw"));
  EXPECT_EQ(stored(), static_cast<ptrdiff_t>(kChains));
}

TEST_F(RestartTest, ByTermWritesDownTheRestFirst) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_NO_FATAL_FAILURE(Open("exact"));
  ASSERT_NO_FATAL_FAILURE(PutChain());
  ASSERT_NO_FATAL_FAILURE(End(SIGTERM, 0));
  EXPECT_THAT(log_, testing::HasSubstr("drained=true"));
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_NO_FATAL_FAILURE(Open("exact"));
  EXPECT_EQ(Matched(), kBlocks);
  EXPECT_EQ(Values(kBlocks - 1), SourceOf(kBlocks - 1));
}

// Copies that rot on the disk go before somebody asks for them, and the others stay.
TEST_F(RestartTest, TheScrubberFindsWhatRots) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_NO_FATAL_FAILURE(Open("raw"));
  ASSERT_NO_FATAL_FAILURE(PutChain());
  ASSERT_NO_FATAL_FAILURE(End(SIGTERM, 0));
  ASSERT_NO_FATAL_FAILURE(Start());  // seals what the first one left open
  ASSERT_NO_FATAL_FAILURE(Open("raw"));
  Bytes image;
  ASSERT_TRUE(Image(2, &image).ok());
  ASSERT_NO_FATAL_FAILURE(End(SIGTERM, 0));
  ASSERT_TRUE(FlipByteOf(image));

  scrub_rate_ = "1GiB";
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_NO_FATAL_FAILURE(Open("raw"));
  EXPECT_TRUE(daemon_->AwaitMetric("cairn_scrub_passes_total", 1, kPatience));
  EXPECT_EQ(daemon_->Metric("cairn_corrupt_tiles_total{where=\"scrub\"}"), 1);
  EXPECT_EQ(daemon_->Metric("cairn_scrubbed_images_total"), kBlocks);
  EXPECT_EQ(daemon_->Metric("cairn_tier_copies{tier=\"ssd\"}"), kBlocks - 1);
  EXPECT_EQ(Matched(), 2u) << "the prefix before it";
  EXPECT_EQ(Values(5), SourceOf(5));
  EXPECT_THAT(daemon_->ReadLog(), testing::HasSubstr("image is damaged: dropped"));
}

// --- From one release to the next ----------------------------------------------------------------

constexpr const char* kOldRecipes[] = {"raw", "exact", "cairn:2.3"};  // a space each
constexpr uint32_t kOldDeleted = 4;                                   // the block, of each

// The tier's folder as the first release of its version wrote it, in an archive. A release that
// writes another version adds an archive of its own, and this test goes through both:
//
//   CAIRN_WRITE_TIER=FILE e2e_client_restart_test --gtest_filter='*AnUpgrade*'
TEST_F(RestartTest, AnUpgradeKeepsWhatOlderReleasesWrote) {
  const Bytes profile = SideObjectBytes(SideObjectKind::kProfile, 1, kShape);
  if (const char* archive = std::getenv("CAIRN_WRITE_TIER"); archive != nullptr) {
    ASSERT_NO_FATAL_FAILURE(Start());
    for (const std::string recipe : kOldRecipes) {
      ASSERT_NO_FATAL_FAILURE(Open(recipe, recipe));
      if (recipe == "cairn:2.3") {
        ASSERT_TRUE(space_->PutSideObject(0, SideObjectKind::kProfile, profile, kPatience).ok());
      }
      ASSERT_NO_FATAL_FAILURE(PutChain());
      ASSERT_TRUE(daemon_->AwaitMetric("cairn_images_uncopied", 0, kPatience));
      ASSERT_EQ(space_->Delete(std::span(keys_).subspan(kOldDeleted, 1), kPatience).value_or(0),
                1u);
    }
    ASSERT_NO_FATAL_FAILURE(End(SIGTERM, 0));
    const Ran ran =
        RunCommand(absl::StrCat("tar -C ", disk_.path().string(), " -czf ", archive, " ."));
    ASSERT_EQ(ran.code, 0) << ran.output;
    GTEST_SKIP() << "wrote " << archive;
  }
  const Ran ran =
      RunCommand(absl::StrCat("tar -C ", disk_.path().string(), " -xzf ", CAIRN_OLD_TIER));
  ASSERT_EQ(ran.code, 0) << ran.output;
  for (const bool is_first : {true, false}) {  // and what this release wrote there itself
    ASSERT_NO_FATAL_FAILURE(Start());
    for (const std::string recipe : kOldRecipes) {
      SCOPED_TRACE(recipe);
      ASSERT_NO_FATAL_FAILURE(Open("raw", recipe));
      EXPECT_EQ(space_->recipe(), recipe) << "the space keeps its policy";
      EXPECT_EQ(Matched(), is_first ? kOldDeleted : kBlocks + 1);
      for (uint32_t block = 0; block < kBlocks; ++block) {
        if (is_first && block == kOldDeleted) {
          Bytes image;
          EXPECT_EQ(Image(block, &image).status().code(), absl::StatusCode::kNotFound);
          continue;
        }
        const codecs::ImageSpec spec = SpecOf(block);
        EXPECT_EQ(codecs::FormatRecipe(spec.recipe), recipe);
        if (recipe == "cairn:2.3") {
          EXPECT_EQ(spec.side_objects[0], proto::SideObjectId(profile));
          EXPECT_EQ(Values(block).size(), *space_->SourceBytes({}));
        } else {
          EXPECT_EQ(Values(block), SourceOf(block));
        }
      }
      if (is_first) {  // the chain goes on
        ASSERT_TRUE(Put(kOldDeleted).ok());
        ASSERT_TRUE(Put(kBlocks).ok());
      }
    }
    ASSERT_NO_FATAL_FAILURE(End(SIGTERM, 0));
    EXPECT_THAT(log_, testing::Not(testing::HasSubstr("WARN"))) << log_;
  }
}

}  // namespace
}  // namespace cairn
