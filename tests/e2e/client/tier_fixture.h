// SPDX-License-Identifier: Apache-2.0
#pragma once
// Daemons over one folder of the SSD tier, one after the other, and blocks to put there.

#include <signal.h>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/e2e/client/client_fixture.h"
#include "tests/support/temp_dir.h"

namespace cairn {

class TierTest : public testing::Test {
 protected:
  using Bytes = std::vector<std::byte>;
  static constexpr auto kBf16 = codecs::DType::kBf16;
  static constexpr uint32_t kBlocks = 12;
  static constexpr char kWritten[] = "cairn_write_downs_total{outcome=\"written\"}";

  std::vector<std::string> Flags() const {
    std::vector<std::string> flags = {"--ssd=" + path_ + "=256MiB", "--ssd-io=threads"};
    flags.insert(flags.end(), more_flags_.begin(), more_flags_.end());
    return flags;
  }
  // A daemon that serves, and a client of it.
  void Start() {
    auto started = DaemonProcess::Start(Flags());
    ASSERT_TRUE(started.ok()) << started.status();
    daemon_ = *std::move(started);
    Connect();
  }
  void Connect(const std::string& model = "model", const std::string& recipe = "raw") {
    ConnectOptions options;
    options.control = daemon_->endpoint("control");
    options.timeout = kPatience;
    options.breaker.is_enforced = false;  // Matched() is the daemon's answer, however late gets are
    auto client = Client::Connect(options);
    ASSERT_TRUE(client.ok()) << client.status();
    client_ = *std::move(client);
    auto space = client_->OpenSpace(ToyIdentity(kBf16, model), recipe, kPatience);
    ASSERT_TRUE(space.ok()) << space.status();
    space_ = *std::move(space);
    keys_ = space_->DeriveChain(Tokens(kBlocks));
  }
  static std::vector<uint32_t> Tokens(uint32_t blocks) {
    std::vector<uint32_t> tokens(blocks * kTokens);
    std::iota(tokens.begin(), tokens.end(), 7U);
    return tokens;
  }
  void Disconnect() {
    space_.reset();
    client_.reset();
  }
  void Kill() {
    Disconnect();
    daemon_->process().Signal(SIGKILL);
    ASSERT_EQ(daemon_->process().Wait(kPatience).value_or(-1), 128 + SIGKILL);
    daemon_.reset();
  }
  Bytes SourceOf(uint32_t block) const {
    return ToyValues(kBf16, *space_->SourceBytes({}), block + 1);
  }
  void Put(uint32_t first, uint32_t end) {
    for (uint32_t block = first; block < end; ++block) {
      const Bytes source = SourceOf(block);
      const auto put = space_->Put({.key = keys_[block],
                                    .parent = block == 0 ? BlockKey{} : keys_[block - 1],
                                    .first_position = block * kTokens,
                                    .source = SourceBytes{source}},
                                   kPatience);
      ASSERT_TRUE(put.ok()) << put.status();
    }
  }
  absl::Status Get(uint32_t block, Bytes* values, absl::Duration timeout = kPatience) {
    values->resize(*space_->SourceBytes({}));
    return space_->Get({.key = keys_[block], .target = SourceTarget{*values}}, timeout).status();
  }
  uint32_t Matched() {
    const auto match = space_->Match({.keys = keys_, .is_counting = true, .timeout = kPatience});
    EXPECT_TRUE(match.ok()) << match.status();
    return match.ok() ? match->block_count : 0;
  }

  // A disk: a folder of the system's may be in memory, where nothing bypasses the page cache.
  const TempDir disk_{std::filesystem::path(CAIRN_TEST_DISK)};
  const std::string path_ = disk_.path().string();
  std::vector<std::string> more_flags_;
  std::unique_ptr<DaemonProcess> daemon_;
  std::unique_ptr<Client> client_;
  std::unique_ptr<Space> space_;
  std::vector<BlockKey> keys_;
};

}  // namespace cairn
