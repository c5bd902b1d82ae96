// SPDX-License-Identifier: Apache-2.0
#pragma once
// A small daemon that is filled to its limits, and what it may weigh whatever is done to it.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/e2e/daemon/daemon_process.h"
#include "tests/e2e/daemon/raw_client.h"
#include "tests/support/sanitizer.h"
#include "tests/support/wait.h"

namespace cairn {

inline constexpr uint64_t kMiB = uint64_t{1} << 20;
// docs/guides/memory.md: threads, code and the rest, beside the arena and an index and a gRPC
// as small as here.
inline constexpr uint64_t kBesideArenaBytesMax = 64 * kMiB;
inline constexpr bool kIsWeighed = !kIsSanitized;  // a sanitizer's own memory is anonymous too

// Blocks of about `mib` MiB of source: 256 KiB a layer.
inline ToyShape ShapeOfMiB(uint16_t mib) {
  return {.model = absl::StrCat("mib", mib),
          .layers = static_cast<uint16_t>(4 * mib),
          .heads = 8,
          .dim = 128,
          .tokens = 64};
}

class BudgetTest : public ::testing::Test {
 protected:
  struct Opened {
    ToyShape shape;
    uint64_t id = 0;
    std::vector<std::byte> content;  // of every block
  };

  void Start(uint64_t host_mib, std::vector<std::string> flags = {}) {
    arena_bytes_ = (host_mib + 192) * kMiB;
    flags.push_back(absl::StrCat("--host-bytes=", host_mib, "MiB"));
    flags.emplace_back("--staging-bytes=192MiB");
    flags.emplace_back("--map=off");  // the arena is of the memory that is weighed
    auto daemon = DaemonProcess::Start(std::move(flags));
    ASSERT_TRUE(daemon.ok()) << daemon.status();
    daemon_ = *std::move(daemon);
    auto client = RawClient::Open(daemon_->endpoint("control"));
    ASSERT_TRUE(client.ok()) << client.status();
    client_ = *std::move(client);
    auto connection = client_->Dial(32 * kMiB);
    ASSERT_TRUE(connection.ok()) << connection.status();
    connection_ = *std::move(connection);
  }

  // After everything: nothing is held, and nothing has grown.
  void TearDown() override {
    if (daemon_ == nullptr) return;
    EXPECT_TRUE(daemon_->AwaitMetric("cairn_staging_used_bytes", 0, absl::Seconds(10)));
    EXPECT_TRUE(daemon_->AwaitMetric("cairn_data_requests_in_flight", 0, absl::Seconds(10)));
    EXPECT_LE(daemon_->Metric("cairn_tier_used_bytes"),
              daemon_->Metric("cairn_tier_capacity_bytes"));
    const uint64_t anonymous_bytes = AnonymousBytes();
    if (kIsWeighed) {
      EXPECT_LE(anonymous_bytes, arena_bytes_ + kBesideArenaBytesMax);
    }
    RecordProperty(
        "anonymous_mib_beside_arena",
        absl::StrCat((static_cast<int64_t>(anonymous_bytes) - static_cast<int64_t>(arena_bytes_)) /
                     static_cast<int64_t>(kMiB)));
    EXPECT_EQ(daemon_->Metric("cairn_corrupt_tiles_total"), 0);
    EXPECT_TRUE(daemon_->process().is_running()) << daemon_->ReadLog();
  }

  // Upkeep evicts from above 97 per cent of the tier down to 95, when it gets to it. Until it has,
  // it may take what a test only means to look at.
  bool AwaitWatermark() const {
    const double low = 0.95 * daemon_->Metric("cairn_tier_capacity_bytes");
    return WaitFor([&] { return daemon_->Metric("cairn_tier_used_bytes") <= low; },
                   absl::Seconds(10), absl::Milliseconds(5));
  }

  // Resident, as the kernel counts it.
  uint64_t AnonymousBytes() const {
    std::ifstream file(absl::StrCat("/proc/", daemon_->process().pid(), "/smaps_rollup"));
    for (std::string line; std::getline(file, line);) {
      const std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipWhitespace());
      uint64_t kib = 0;
      if (words.size() >= 2 && words[0] == "Anonymous:" && absl::SimpleAtoi(words[1], &kib)) {
        return kib * 1024;
      }
    }
    ADD_FAILURE() << "no smaps_rollup";
    return 0;
  }

  Opened OpenSpace(const ToyShape& shape) {
    const auto id = client_->OpenSpace(ToySpec("test", shape));
    EXPECT_TRUE(id.ok()) << id.status();
    return {shape, id.value_or(0), ToySource(0, shape.whole(), shape)};
  }
  proto::Frame PutFrame(const Opened& space, uint64_t block, uint64_t parent = 0) {
    proto::Frame frame =
        client_->PutFrame(space.id, ToyKey(block), space.shape.whole(), space.content, space.shape);
    if (parent != 0) {  // blocks of a chain are numbered from 1
      std::get<proto::Put>(frame.body).parent = ToyKey(parent);
      std::get<proto::Put>(frame.body).first_position = (block - 1) * space.shape.tokens;
    }
    return frame;
  }
  absl::Status Put(const Opened& space, uint64_t block, uint64_t parent = 0) {
    return AskOk(*connection_, PutFrame(space, block, parent), space.content).status();
  }
  // OK with the right bytes, or NotFound.
  absl::Status Get(const Opened& space, uint64_t block) {
    std::vector<std::byte> target(space.content.size());
    const auto frame =
        client_->GetFrame(space.id, ToyKey(block), space.shape.whole(), target.size());
    const absl::Status status = AskOk(*connection_, frame, {}, target).status();
    EXPECT_TRUE(!status.ok() || target == space.content) << "wrong bytes in block " << block;
    return status;
  }
  v1::MatchReply Match(const Opened& space, uint64_t first, uint64_t last, bool lease) {
    std::vector<proto::BlockKey> keys;
    for (uint64_t block = first; block <= last; ++block) keys.push_back(ToyKey(block));
    auto request = client_->MatchOf(space.id, keys);
    request.set_lease(lease);
    const auto reply = client_->Match(request);
    EXPECT_TRUE(reply.ok()) << reply.status();
    return reply.value_or(v1::MatchReply());
  }

  uint64_t arena_bytes_ = 0;
  std::unique_ptr<DaemonProcess> daemon_;
  std::unique_ptr<RawClient> client_;
  std::unique_ptr<transport::Connection> connection_;
};

// A refusal for want of room whose text has `text`.
inline void ExpectExhausted(const absl::Status& status, const std::string& text) {
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr(text));
}

}  // namespace cairn
