// SPDX-License-Identifier: Apache-2.0
// What another user of the sockets' folder, or another tenant, can do to a daemon, and learn of it.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status.h"
#include "client/cpp/client.h"
#include "client/cpp/events.h"
#include "tests/e2e/daemon/daemon_process.h"
#include "tests/e2e/daemon/raw_client.h"
#include "tests/support/sanitizer.h"
#include "tests/support/temp_dir.h"
#include "tests/support/wait.h"
#include "transport/local/socket.h"

namespace cairn {
namespace {

using ::testing::HasSubstr;

const absl::Duration kPatience = absl::Seconds(20) * kSlowdown;

class DoorsTest : public ::testing::Test {
 protected:
  // All three doors are files in a folder of the test's own.
  absl::Status Start(std::vector<std::string> flags = {}) {
    flags.push_back("--control=unix:" + File("control"));
    flags.push_back("--socket=" + File("socket"));
    flags.push_back("--admin=unix:" + File("admin"));
    auto daemon = DaemonProcess::Start(std::move(flags));
    CAIRN_RETURN_IF_ERROR(daemon.status());
    daemon_ = *std::move(daemon);
    return absl::OkStatus();
  }
  std::string File(const std::string& name) const { return sockets_ + "/" + name; }
  bool AwaitReadiness(const std::string& text) const {
    return WaitFor([&] { return daemon_->HttpGet("/readyz").find(text) != std::string::npos; },
                   kPatience, absl::Milliseconds(20));
  }
  std::unique_ptr<RawClient> Open(const std::string& tenant) const {
    auto client = RawClient::Open("unix:" + File("control"), tenant);
    EXPECT_TRUE(client.ok()) << client.status();
    return client.ok() ? *std::move(client) : nullptr;
  }
  static absl::StatusOr<v1::StatsReply> Stats(v1::Store::Stub& store, const std::string& ticket) {
    v1::StatsRequest request;
    request.set_ticket(ticket);
    v1::StatsReply reply;
    grpc::ClientContext context;
    SetTimeout(context, absl::Seconds(5));
    const absl::Status status = FromGrpc(store.Stats(&context, request, &reply));
    if (!status.ok()) return status;
    return reply;
  }

  TempDir folder_;
  std::string sockets_ = [this] {
    EXPECT_EQ(::mkdir(folder_.File("sockets").c_str(), 0700), 0);
    return folder_.File("sockets");
  }();
  std::unique_ptr<DaemonProcess> daemon_;
};

// A sweeper takes one file after the other; each time new clients get in again.
TEST_F(DoorsTest, SweptFilesAreMadeAgain) {
  ASSERT_TRUE(Start().ok());
  const auto before = Open("before");
  ASSERT_NE(before, nullptr);
  for (const char* door : {"control", "admin", "socket"}) {
    ASSERT_EQ(::unlink(File(door).c_str()), 0) << door;
    EXPECT_TRUE(daemon_->AwaitMetric(
        absl::StrCat("cairn_doors_made_again_total{door=\"", door, "\"}"), 1, kPatience))
        << door << daemon_->ReadLog();
    EXPECT_TRUE(AwaitReadiness("200 OK")) << door;
    const auto client = Open("after");
    ASSERT_NE(client, nullptr) << door;
    EXPECT_TRUE(client->Dial().ok()) << door;
    v1::ListTiersReply tiers;
    grpc::ClientContext context;
    SetTimeout(context, absl::Seconds(5));
    EXPECT_TRUE(client->admin().ListTiers(&context, v1::ListTiersRequest(), &tiers).ok()) << door;
  }
  EXPECT_TRUE(before->OpenSpace(ToySpec("before")).ok()) << "who was in stays in";
  EXPECT_THAT(daemon_->ReadLog(), HasSubstr("socket file was missing and has been made again"));
  daemon_->process().Signal(SIGTERM);
  EXPECT_EQ(daemon_->process().Wait(kPatience).value(), 0);
  EXPECT_TRUE(std::filesystem::is_empty(sockets_)) << "something was left behind";
}

TEST_F(DoorsTest, MovedFilesAreNotLeftBehind) {
  ASSERT_TRUE(Start().ok());
  ASSERT_EQ(::rename(File("socket").c_str(), File("moved").c_str()), 0);
  EXPECT_TRUE(daemon_->AwaitMetric("cairn_doors_made_again_total{door=\"socket\"}", 1, kPatience));
  EXPECT_FALSE(std::filesystem::exists(File("moved")));
  daemon_->process().Signal(SIGTERM);
  EXPECT_EQ(daemon_->process().Wait(kPatience).value(), 0);
  EXPECT_TRUE(std::filesystem::is_empty(sockets_));
}

// Another process's socket in the place of the daemon's, which may be making its own again.
absl::StatusOr<transport::SocketFile> TakePlace(const std::string& path) {
  for (int i = 0; i < 10; ++i) {
    ::unlink(path.c_str());
    auto theirs = transport::SocketFile::Listen(path, SOCK_STREAM);
    if (theirs.ok()) return theirs;
  }
  return absl::UnavailableError("the daemon is always faster");
}

// Another process puts its socket in the place of ours: the daemon says so and does not fight.
TEST_F(DoorsTest, SwappedFilesMakeItUnready) {
  ASSERT_TRUE(Start().ok());
  for (const char* door : {"control", "admin", "socket"}) {
    auto theirs = TakePlace(File(door));
    ASSERT_TRUE(theirs.ok()) << theirs.status();
    EXPECT_TRUE(AwaitReadiness(absl::StrCat("503"))) << door;
    EXPECT_TRUE(AwaitReadiness(absl::StrCat(door, ": "))) << daemon_->HttpGet("/readyz");
    EXPECT_EQ(daemon_->Metric(absl::StrCat("cairn_door_state{door=\"", door, "\"}")), 0);
    EXPECT_FALSE(theirs->Keep().value()) << "its file was left alone";
    theirs = absl::CancelledError();
    EXPECT_TRUE(AwaitReadiness("200 OK")) << "the other has gone";
  }
}

TEST_F(DoorsTest, ALockOnTheFolderKeepsNobodyFromStarting) {
  const Fd lock(::open(sockets_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  ASSERT_EQ(::flock(lock.get(), LOCK_SH), 0);
  const absl::Status started = Start();
  EXPECT_TRUE(started.ok()) << started;
}

TEST_F(DoorsTest, AFolderThatEverybodyMayWriteIsRefused) {
  ASSERT_EQ(::chmod(sockets_.c_str(), 0777), 0);
  const absl::Status refused = Start();
  EXPECT_FALSE(refused.ok());
  EXPECT_THAT(std::string(refused.message()), HasSubstr("is writable by everybody"));
  ASSERT_EQ(::chmod(sockets_.c_str(), 02770), 0);
  ASSERT_TRUE(Start().ok()) << "a group is somebody's choice";
  EXPECT_THAT(daemon_->ReadLog(), HasSubstr("is writable by group"));
}

TEST_F(DoorsTest, ATenantLeavesRegionsToOthers) {
  ASSERT_TRUE(Start({"--region-bytes=16MiB", "--regions-bytes=64MiB"}).ok());
  const auto flood = Open("flood"), other = Open("other");
  std::vector<std::unique_ptr<transport::Connection>> held;
  absl::Status refused;
  while (refused.ok() && held.size() < 8) {
    auto connection = flood->Dial(16 << 20);
    refused = connection.status();
    if (connection.ok()) held.push_back(*std::move(connection));
  }
  EXPECT_EQ(held.size(), 2u);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("region_bytes: the tenant holds 33554432"));
  EXPECT_TRUE(other->Dial(4 << 20).ok());
  held.clear();
  EXPECT_TRUE(WaitFor([&] { return flood->Dial(16 << 20).ok(); }, kPatience)) << "given back";
}

// Whoever knows a ticket is told that it is another's before its memory counts for the tenant: the
// region is larger than the tenant's share, and the answer does not speak of it.
TEST_F(DoorsTest, ARegionIsNotCountedForTheTicketOfAnother) {
  const std::string a = folder_.File("a"), b = folder_.File("b"), policy = folder_.File("policy");
  std::ofstream(policy) << "version: 1\nidentities:\n  - {door: " << a << ", tenants: [one]}\n"
                        << "  - {door: " << b << ", tenants: [two]}\n";
  ASSERT_TRUE(Start({"--region-bytes=16MiB", "--regions-bytes=16MiB", "--policy=" + policy,
                     "--door=" + a + "," + b})
                  .ok());
  const auto owner = RawClient::Open("unix:" + a + "/control.sock", "one");
  ASSERT_TRUE(owner.ok()) << owner.status();
  const auto dial = [&](const std::string& socket, uint64_t region_bytes) {
    proto::Frame hello;
    hello.seq = 1;
    hello.ticket = (*owner)->ticket();
    hello.body = proto::Hello{.window = 32};
    transport::ConnectOptions options;
    options.region_bytes = region_bytes;
    return transport::Connect("unix:" + socket, hello, options, MonotonicNow() + kPatience)
        .status();
  };
  const std::string own = a + "/cairnd.sock", others[] = {b + "/cairnd.sock", File("socket")};
  EXPECT_TRUE(absl::IsResourceExhausted(dial(own, 12 << 20))) << "it may have half of 16 MiB";
  const double refusals = daemon_->Metric("cairn_limit_refusals_total{limit=\"region_bytes\"}");
  EXPECT_EQ(refusals, 1);
  for (const std::string& socket : others) {
    EXPECT_EQ(dial(socket, 12 << 20),
              absl::PermissionDeniedError("ticket: another peer opened its session"))
        << socket;
  }
  EXPECT_EQ(daemon_->Metric("cairn_limit_refusals_total{limit=\"region_bytes\"}"), refusals);
  EXPECT_EQ(daemon_->Metric("cairn_tickets_of_others_total"), 2);
  EXPECT_EQ(dial(own, 4 << 20), absl::OkStatus());
}

TEST_F(DoorsTest, ATenantLeavesWatchersToOthers) {
  ASSERT_TRUE(Start().ok());
  const std::string control = "unix:" + File("control");
  const auto flood = Client::Connect({.control = control, .tenant = "flood"});
  const auto other = Client::Connect({.control = control, .tenant = "other"});
  ASSERT_TRUE(flood.ok() && other.ok());
  std::vector<std::unique_ptr<EventWatch>> held;
  absl::Status refused;
  while (refused.ok() && held.size() < 100) {
    held.push_back((*flood)->Watch({}));
    refused = held.back()->Next(absl::Seconds(5)).status();
  }
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  const auto watch = (*other)->Watch({});
  const auto first = watch->Next(absl::Seconds(5));
  EXPECT_TRUE(first.ok()) << first.status();
}

TEST_F(DoorsTest, NobodyLearnsWhatOthersHold) {
  ASSERT_TRUE(Start().ok());
  const auto busy = Open("busy"), other = Open("other");
  const auto watching = Client::Connect({.control = "unix:" + File("control"), .tenant = "other"});
  ASSERT_TRUE(watching.ok());
  const auto watch = (*watching)->Watch({});
  const auto begin = watch->Next(absl::Seconds(5));
  ASSERT_TRUE(begin.ok()) << begin.status();
  const auto space = busy->OpenSpace(ToySpec("busy"));
  ASSERT_TRUE(space.ok());
  const auto connection = busy->Dial();
  ASSERT_TRUE(connection.ok());
  const auto source = ToySource(1, WholeToy());
  ASSERT_TRUE(
      AskOk(**connection, busy->PutFrame(*space, ToyKey(1), WholeToy(), source), source).ok());

  const auto own = Stats(busy->store(), busy->ticket_bytes());
  EXPECT_EQ(own->block_count(), 1u);
  EXPECT_GT(own->tiers(0).used_bytes(), 0u);
  const auto others = Stats(other->store(), other->ticket_bytes());
  EXPECT_EQ(others->block_count(), 0u);
  EXPECT_EQ(others->tiers(0).used_bytes(), 0u);
  EXPECT_EQ(others->session_count(), 2u) << "its own";
  const auto stranger = Stats(other->store(), "");
  EXPECT_EQ(stranger->block_count() + stranger->session_count(), 0u);
  EXPECT_EQ(stranger->tiers(0).used_bytes(), 0u);
  EXPECT_GT(stranger->tiers(0).capacity_bytes(), 0u);
  EXPECT_FALSE(stranger->daemon_version().empty());
  EXPECT_FALSE(Stats(other->store(), std::string(16, 'x')).ok());

  EXPECT_TRUE(absl::IsDeadlineExceeded(watch->Next(absl::Milliseconds(200)).status()))
      << "it saw that something came";
  const auto again = (*watching)->Watch({});
  EXPECT_EQ(again->Next(absl::Seconds(5))->position.next_sequence, begin->position.next_sequence);
}

// Whoever gets a core file of the daemon gets no blocks.
TEST_F(DoorsTest, TheArenaIsInNoCoreFile) {
  if (kIsSanitized) GTEST_SKIP() << "a sanitizer has mappings of its own";
  ASSERT_TRUE(Start({"--host-bytes=256MiB"}).ok());
  std::ifstream maps(absl::StrCat("/proc/", daemon_->process().pid(), "/smaps"));
  uint64_t kib = 0, left_out_kib = 0, dumped_kib = 0;
  for (std::string line; std::getline(maps, line);) {
    unsigned long long value = 0;
    if (std::sscanf(line.c_str(), "Rss: %llu kB", &value) == 1) kib = value;
    if (!line.starts_with("VmFlags:")) continue;
    ((line + " ").find(" dd ") != std::string::npos ? left_out_kib : dumped_kib) += kib;
  }
  EXPECT_GE(left_out_kib, 256u << 10);
  EXPECT_LE(dumped_kib, 128u << 10) << "beside the arena there are programs and small things";
}

}  // namespace
}  // namespace cairn
