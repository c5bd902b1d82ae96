// SPDX-License-Identifier: Apache-2.0
#pragma once
// Several real daemons that are members of one cluster, on one host.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status.h"
#include "tests/e2e/client/client_fixture.h"
#include "tests/e2e/daemon/daemon_process.h"
#include "tests/support/run_command.h"
#include "tests/support/temp_dir.h"

namespace cairn {

// Daemons that list one another in one file. Their fixture, or an object of a test's own.
class Cluster {
 protected:
  // Starts a daemon, and lists it.
  DaemonProcess* Start(const std::string& name, const std::vector<std::string>& more = {},
                       const std::string& listed_as = "") {
    if (listed_.empty()) Write();
    std::vector<std::string> flags = {absl::StrCat("--members=file:", folder_.File("members")),
                                      absl::StrCat("--member-name=", name), "--peer=127.0.0.1:0",
                                      "--member-grace=0"};
    flags.insert(flags.end(), more.begin(), more.end());
    auto started = DaemonProcess::Start(flags);
    CAIRN_CHECK(started.ok(), started.status().ToString());
    listed_[listed_as.empty() ? name : listed_as] = (*started)->endpoint("peer");
    Write();
    daemons_.push_back(*std::move(started));
    return daemons_.back().get();
  }
  void List(const std::string& name, const std::string& address) {
    listed_[name] = address;
    Write();
  }
  void Forget(const std::string& name) {
    listed_.erase(name);
    Write();
  }
  std::string MembersOf(const DaemonProcess& daemon) const {
    return RunCommand(
               absl::StrCat(CAIRNCTL_PATH, " members --control ", daemon.endpoint("control"), tls_))
        .output;
  }
  bool Await(const DaemonProcess& daemon, const std::string& state, int count) const {
    return daemon.AwaitMetric(absl::StrCat("cairn_members{state=\"", state, "\"}"), count,
                              kPatience);
  }

  TempDir folder_;
  std::string tls_;  // flags of cairnctl
  std::map<std::string, std::string> listed_;
  std::vector<std::unique_ptr<DaemonProcess>> daemons_;

 private:
  void Write() const {
    std::ofstream file(folder_.File("new"));
    for (const auto& [name, address] : listed_) file << name << "=" << address << "\n";
    file.close();
    std::filesystem::rename(folder_.File("new"), folder_.File("members"));
  }
};

// A client of one daemon, with a space that is the same at each member, and the blocks of numbered
// sequences.
struct SequenceClient {
  std::unique_ptr<Client> client;
  std::unique_ptr<Space> space;

  static SequenceClient Open(ConnectOptions options, const std::string& recipe = "raw") {
    options.timeout = kPatience;
    auto client = Client::Connect(options);
    CAIRN_CHECK_OK(client);
    auto space = (*client)->OpenSpace(ToyIdentity(codecs::DType::kBf16, "m"), recipe, kPatience);
    CAIRN_CHECK_OK(space);
    return {*std::move(client), *std::move(space)};
  }
  std::vector<BlockKey> Keys(size_t blocks, size_t sequence = 0) const {
    return space->DeriveChain(ToyTokens(blocks, static_cast<uint32_t>(1 + 1000 * sequence)));
  }
  std::vector<std::byte> Values(size_t block, size_t sequence = 0) const {
    const auto bytes = space->SourceBytes({});
    EXPECT_TRUE(bytes.ok());
    return ToyValues(codecs::DType::kBf16, *bytes, 100 + 1000 * sequence + block);
  }
  absl::Status PutOne(size_t block, size_t sequence, absl::Duration timeout) const {
    const std::vector<BlockKey> keys = Keys(block + 1, sequence);
    const std::vector<std::byte> values = Values(block, sequence);
    return space
        ->Put({.key = keys[block],
               .parent = block == 0 ? BlockKey{} : keys[block - 1],
               .first_position = block * kTokens,
               .source = SourceBytes{values}},
              timeout)
        .status();
  }
  // Puts the blocks [first, end) of a sequence.
  void Put(size_t first, size_t end, size_t sequence = 0) const {
    for (size_t i = first; i < end; ++i) {
      const absl::Status status = PutOne(i, sequence, kPatience);
      ASSERT_TRUE(status.ok()) << status;
    }
  }
};

class ClusterTest : public testing::Test, protected Cluster {};

}  // namespace cairn
