// SPDX-License-Identifier: Apache-2.0
// A daemon with a GPU, in the process of the test, whose device is emulated: what clients,
// operators and probes see of its tier and of what it encodes. And cairnd, which has none.

#include <sys/socket.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status.h"
#include "kernels/backend.h"
#include "service/config.h"
#include "service/daemon.h"
#include "tests/e2e/client/client_fixture.h"
#include "tests/kernels/device/emulated_device.h"
#include "tests/support/log_capture.h"
#include "tests/support/metric_capture.h"
#include "tests/support/run_command.h"
#include "tests/support/temp_dir.h"
#include "tests/support/wait.h"

namespace cairn {
namespace {

using Bytes = std::vector<std::byte>;
using testing::HasSubstr;
using testing::Not;

constexpr auto kBf16 = codecs::DType::kBf16;
constexpr uint32_t kBlockTokens = 128;          // 256 KiB a block
constexpr uint32_t kBlocks = 4, kOthers = 200;  // twice what memory holds

class GpuTest : public testing::Test {
 protected:
  enum class Drives { kNone, kOne };
  std::vector<std::string> Flags(Drives drives = Drives::kOne) const {
    const std::string& folder = folder_.path().string();
    std::vector<std::string> flags = {"--control=127.0.0.1:0", "--http=127.0.0.1:0",
                                      absl::StrCat("--socket=", folder, "/s.sock"),
                                      "--host-bytes=16MiB", "--gpu=2=64MiB"};
    if (drives == Drives::kOne) {
      flags.push_back(absl::StrCat("--ssd=", disk_.path().string(), "=256MiB"));
      flags.push_back("--ssd-io=threads");
    }
    return flags;
  }
  // `coded_bytes_min`: kernels are slow here, so most tests let the device have none.
  absl::Status Start(Drives drives = Drives::kOne, uint64_t coded_bytes_min = UINT64_MAX) {
    const auto line = ParseCommandLine(Flags(drives), {});
    CAIRN_RETURN_IF_ERROR(line.status());
    Machine machine;
    machine.open_device = [this](int device) -> std::unique_ptr<kernels::Runtime> {
      return device == 2 ? std::make_unique<EmulatedDevice>(faults_) : nullptr;
    };
    machine.device_coded_bytes_min = coded_bytes_min;
    CAIRN_ASSIGN_OR_RETURN(daemon_, Daemon::Start(line->config, machine));
    ConnectOptions options;
    options.control = Endpoint("control");
    options.timeout = kPatience;
    CAIRN_ASSIGN_OR_RETURN(client_, Client::Connect(options));
    proto::SpaceIdentity identity = ToyIdentity(kBf16, "model");
    identity.tokens_per_block = kBlockTokens;
    CAIRN_ASSIGN_OR_RETURN(space_, client_->OpenSpace(identity, "exact", kPatience));
    return absl::OkStatus();
  }
  void TearDown() override {
    space_.reset();
    client_.reset();
    if (daemon_ != nullptr) {
      daemon_->Stop();
    }
  }
  std::string Endpoint(const std::string& name) const {
    const std::string line = daemon_->ReadyLine() + " ";
    const size_t at = line.find(name + "=") + name.size() + 1;
    return line.substr(at, line.find(' ', at) - at);
  }
  // The body.
  std::string HttpGet(const std::string& path) const {
    const std::string address = Endpoint("http");
    const Fd fd =
        ConnectTcp(static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
    const std::string request = absl::StrCat("GET ", path, " HTTP/1.0\r\nHost: x\r\n\r\n");
    CAIRN_CHECK(::send(fd.get(), request.data(), request.size(), 0) ==
                static_cast<ssize_t>(request.size()));
    std::string reply;
    char bytes[4096];
    for (ssize_t count = 0; (count = ::recv(fd.get(), bytes, sizeof bytes, 0)) > 0;) {
      reply.append(bytes, static_cast<size_t>(count));
    }
    return reply.substr(reply.find("\r\n\r\n") + 4);
  }
  Ran Ctl(const std::string& words) const {
    return RunCommand(absl::StrCat(CAIRNCTL_PATH, " ", words, " --control ", Endpoint("control")));
  }
  double Metric(const std::string& series) const {
    MetricCapture metrics;
    daemon_->Report(metrics);
    return metrics.Value(series);
  }

  BlockKey KeyOf(uint32_t block) const {
    const std::string name = absl::StrCat("block ", block);
    return space_->OpaqueKey(std::as_bytes(std::span(name)));
  }
  Bytes SourceOf(uint32_t block) const {
    return ToyValues(kBf16, *space_->SourceBytes({}), block + 1);
  }
  void Put(uint32_t first, uint32_t count) {
    for (uint32_t block = first; block < first + count; ++block) {
      const Bytes source = SourceOf(block);
      const auto put = space_->Put({.key = KeyOf(block), .source = SourceBytes{source}}, kPatience);
      ASSERT_TRUE(put.ok()) << put.status();
    }
  }
  // Where the block's bytes came from; they are right.
  Tier Get(uint32_t block, Side decode = Side::kClient) {
    Bytes values(*space_->SourceBytes({}));
    const auto got = space_->Get(
        {.key = KeyOf(block), .decode = decode, .target = SourceTarget{values}}, kPatience);
    EXPECT_TRUE(got.ok()) << got.status();
    EXPECT_TRUE(values == SourceOf(block)) << block;
    return got.ok() ? got->tier : Tier::kNone;
  }
  bool AreOnDeviceOnly() const {
    for (uint32_t block = 0; block < kBlocks; ++block) {
      const BlockKey key = KeyOf(block);
      const auto match =
          space_->Match({.keys = std::span(&key, 1), .is_counting = true, .timeout = kPatience});
      if (!match.ok() || match->block_count != 1 || match->blocks[0].tier != Tier::kGpu) {
        return false;
      }
    }
    return true;
  }
  // The first blocks, on the device and the drive; memory has others.
  void LeaveOnDevice() {
    ASSERT_NO_FATAL_FAILURE(Put(0, kBlocks));
    for (uint32_t block = 0; block < kBlocks; ++block) {
      EXPECT_EQ(Get(block), Tier::kHost);
      EXPECT_EQ(Get(block), Tier::kHost);
    }
    ASSERT_TRUE(WaitFor([&] { return Metric("cairn_tier_copies{tier=\"gpu\"}") == kBlocks; }));
    ASSERT_TRUE(WaitFor([&] { return Metric("cairn_images_uncopied") == 0; }));
    ASSERT_NO_FATAL_FAILURE(Put(kBlocks, kOthers));
    ASSERT_TRUE(WaitFor([&] { return Metric("cairn_images_uncopied") == 0; }));
    ASSERT_TRUE(AreOnDeviceOnly());
  }

  const TempDir folder_;
  const TempDir disk_{std::filesystem::path(CAIRN_TEST_DISK)};
  const std::shared_ptr<EmulatedMemory::Faults> faults_ =
      std::make_shared<EmulatedMemory::Faults>();
  std::unique_ptr<Daemon> daemon_;
  std::unique_ptr<Client> client_;
  std::unique_ptr<Space> space_;
};

TEST_F(GpuTest, ServesWhatMemoryGaveUpAndGoesOnWithoutItsDevice) {
  const LogCapture log;
  const absl::Status started = Start();
  ASSERT_TRUE(started.ok()) << started;
  EXPECT_EQ(log.Count("GPU tier device=emulated"), 1u);
  ASSERT_NO_FATAL_FAILURE(LeaveOnDevice());
  EXPECT_EQ(Get(0), Tier::kGpu);
  EXPECT_EQ(Get(0), Tier::kHost);
  EXPECT_EQ(Get(1), Tier::kGpu);
  EXPECT_EQ(Metric("cairn_gets_total{outcome=\"hit\",tier=\"gpu\"}"), 2);
  EXPECT_EQ(Metric("cairn_tier_capacity_bytes{tier=\"gpu\"}"), 32 << 20) << "the rest codes";
  EXPECT_EQ(HttpGet("/readyz"), "ready\n");
  std::string shown = Ctl("tier").output;
  EXPECT_THAT(shown, HasSubstr("gpu:2"));
  EXPECT_THAT(shown, HasSubstr("emulated"));
  EXPECT_THAT(shown, Not(HasSubstr("is out")));
  EXPECT_EQ(Ctl("verify").code, 0);

  faults_->is_dead = true;
  EXPECT_EQ(Get(2), Tier::kSsd) << "a read that the device failed is served by a drive";
  EXPECT_EQ(Get(3), Tier::kSsd);
  EXPECT_EQ(Metric("cairn_gpu_state{state=\"out\"}"), 1);
  EXPECT_EQ(Metric("cairn_tier_copies{tier=\"gpu\"}"), 0);
  EXPECT_EQ(HttpGet("/readyz"), "ready\ngpu:2 is out: the device failed\n");
  shown = Ctl("tier").output;
  EXPECT_THAT(shown, HasSubstr("gpu:2 is out: the device failed"));
  EXPECT_THAT(Ctl("status").output, HasSubstr("gpu:2 is out"));
  EXPECT_EQ(log.Count("device is out: its copies are dropped"), 1u);
  ASSERT_NO_FATAL_FAILURE(Put(kBlocks + kOthers, 1));
  EXPECT_EQ(Get(kBlocks + kOthers), Tier::kHost);
}

// No copy is kept there, since without a drive none would outlive the one in memory.
TEST_F(GpuTest, CodesOnItsDeviceWithoutADriveAndGoesOnWithoutTheDevice) {
  const LogCapture log;
  const absl::Status started = Start(Drives::kNone, /*coded_bytes_min=*/1);
  ASSERT_TRUE(started.ok()) << started;
  EXPECT_EQ(log.Count("GPU codec device=emulated"), 1u);
  EXPECT_EQ(log.Count("GPU tier"), 0u);
  ASSERT_NO_FATAL_FAILURE(Put(0, 1));
  EXPECT_EQ(Get(0, Side::kDaemon), Tier::kHost);
  const auto count = [&](const std::string& op, const std::string& name,
                         const std::string& more = "") {
    return Metric("cairn_gpu_codec_" + name + "{op=\"" + op + "\"" + more + "}");
  };
  for (const char* op : {"encode", "decode"}) {
    EXPECT_EQ(count(op, "made_total") + count(op, "fallbacks_total", ",reason=\"late\""), 1)
        << op << ": on a busy machine the emulated device may be late";
  }
  EXPECT_EQ(Metric("cairn_gpu_state{state=\"ok\"}"), 1);
  EXPECT_EQ(HttpGet("/readyz"), "ready\n");
  std::string shown = Ctl("tier").output;
  EXPECT_THAT(shown, HasSubstr("gpu:2"));
  EXPECT_THAT(shown, Not(HasSubstr("is out")));
  EXPECT_THAT(Ctl("tier retire gpu:2").output,
              HasSubstr("gpu:2 has no copies without an SSD tier: there is nothing to retire"));

  faults_->is_dead = true;
  ASSERT_NO_FATAL_FAILURE(Put(1, 1));
  EXPECT_EQ(Get(1, Side::kDaemon), Tier::kHost);
  for (const char* op : {"encode", "decode"}) {
    EXPECT_EQ(count(op, "fallbacks_total", ",reason=\"lost\""), 1) << op;
  }
  EXPECT_EQ(Metric("cairn_gpu_state{state=\"out\"}"), 1);
  EXPECT_EQ(HttpGet("/readyz"), "ready\ngpu:2 is out: the device failed\n");
  EXPECT_THAT(Ctl("tier").output, HasSubstr("gpu:2 is out: the device failed"));
  EXPECT_EQ(log.Count("device is out"), 1u);
}

// Metrics: docs/reference/metrics.md lists what is exported of it.
TEST_F(GpuTest, ItsMetricsAreDocumented) {
  const absl::Status started = Start();
  ASSERT_TRUE(started.ok()) << started;
  std::set<std::string> exported, documented;
  MetricCapture metrics;
  daemon_->Report(metrics);
  for (const auto& [series, value] : metrics.values()) {
    std::string name = series.substr(0, series.find('{'));
    if (name.starts_with("cairn_gpu_") && !name.ends_with("_sum")) {
      exported.insert(std::move(name));
    }
  }
  std::ifstream document(CAIRN_SOURCE_DIR "/docs/reference/metrics.md");
  for (std::string line; std::getline(document, line);) {
    if (line.starts_with("| `cairn_gpu_")) {
      documented.insert(line.substr(3, line.find('`', 3) - 3));
    }
  }
  EXPECT_EQ(exported, documented);
  EXPECT_GT(exported.size(), 5u);
}

TEST_F(GpuTest, ADeviceWithoutRoomEndsTheStart) {
  faults_->is_full = true;
  const absl::Status started = Start();
  EXPECT_TRUE(absl::IsResourceExhausted(started));
  EXPECT_THAT(std::string(started.message()),
              HasSubstr("gpu: gpu:2 (emulated) has no room for 16MiB of work"));
}

TEST_F(GpuTest, CairndWithoutADeviceDoesNotStart) {
  if (kernels::Probe().is_available) GTEST_SKIP() << "there is a device";
  const std::string log = folder_.File("log");
  auto child = ChildProcess::Start(CAIRND_PATH, Flags(), log);
  ASSERT_TRUE(child.ok());
  EXPECT_EQ((*child)->Wait(kPatience).value_or(-1), 1);
  std::ifstream file(log);
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  EXPECT_THAT(text, HasSubstr("cannot start"));
  EXPECT_THAT(text, HasSubstr(absl::StrCat("gpu: ", std::string(kernels::Probe().reason))));
  const Ran version = RunCommand(absl::StrCat(CAIRNCTL_PATH, " version"));
  EXPECT_THAT(version.output,
              HasSubstr(absl::StrCat("\ndevices ", std::string(kernels::Probe().reason), "\n")));
  EXPECT_THAT(RunCommand(absl::StrCat(CAIRNCTL_PATH, " version --json")).output,
              HasSubstr("\"devices\": []"));
}

}  // namespace
}  // namespace cairn
