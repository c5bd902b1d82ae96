// SPDX-License-Identifier: Apache-2.0
// A daemon with TLS for control and data, attacked at both addresses, before and after the proof,
// while an honest client is at work over TLS. The attackers have addresses of their own, as hosts
// do. The honest client gets no wrong byte, no call of it fails or is late, new clients get in, and
// the daemon holds little for those who have proved nothing.
//
// CAIRN_HOSTILE_ROUNDS: how many blows of an attack, instead of a second of it; `make soak` sets
// it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <string>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "client/cpp/client.h"
#include "tests/e2e/daemon/daemon_process.h"
#include "tests/fault/hostile/attacks_tls.h"
#include "tests/fault/hostile/victim.h"
#include "tests/support/from_environment.h"
#include "tests/support/process_weight.h"
#include "tests/support/random.h"
#include "tests/support/sanitizer.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tls_certificates.h"
#include "tests/support/wait.h"
#include "transport/stream/chunk.h"

namespace cairn {
namespace {

constexpr absl::Duration kAttackFor = absl::Seconds(1);
const absl::Duration kLateMax = absl::Milliseconds(250) * kSlowdown;
const absl::Duration kInWithin = absl::Seconds(10) * kSlowdown;
constexpr uint64_t kBeforeProofBytesMax = uint64_t{32} << 20;

class HostileTlsTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = std::make_unique<TempDir>();
    pki_ = std::make_unique<TestPki>(folder_->path().string());
    pki_->Write("attacker", {.uris = {"spiffe://test.example/ns/team-b/sa/engine"}});
    server_files_ = Files("server", transport::TlsRole::kServer);
    attacker_files_ = Files("attacker", transport::TlsRole::kClient);
    auto daemon = DaemonProcess::Start({"--host-bytes=256MiB", "--map=off", "--stream=127.0.0.1:0",
                                        absl::StrCat("--tls-cert=", pki_->File("server.pem")),
                                        absl::StrCat("--tls-key=", pki_->File("server.key")),
                                        absl::StrCat("--tls-ca=", pki_->File("ca.pem"))});
    ASSERT_TRUE(daemon.ok()) << daemon.status();
    daemon_ = *std::move(daemon);
    auto victim = Victim::Start(Options());
    ASSERT_TRUE(victim.ok()) << victim.status();
    victim_ = *std::move(victim);
    ASSERT_TRUE(victim_->AwaitHit(absl::Seconds(30)));
  }
  static void TearDownTestSuite() {
    victim_.reset();
    daemon_.reset();
    attacker_files_.reset();
    server_files_.reset();
    pki_.reset();
    folder_.reset();
  }

  static ConnectOptions Options() {
    ConnectOptions options;
    options.control = daemon_->endpoint("control");
    options.transports = "stream";
    options.timeout = kInWithin;
    options.tls = {.ca = pki_->File("ca.pem"),
                   .cert = pki_->File("client.pem"),
                   .key = pki_->File("client.key")};
    return options;
  }
  static std::unique_ptr<transport::TlsFiles> Files(const std::string& name,
                                                    transport::TlsRole role) {
    auto files = transport::TlsFiles::Open({.certificate = pki_->File(name + ".pem"),
                                            .key = pki_->File(name + ".key"),
                                            .ca = {{.domain = "", .path = pki_->File("ca.pem")}},
                                            .crl = ""},
                                           role);
    CAIRN_CHECK(files.ok(), files.status().ToString());
    return *std::move(files);
  }
  void SetUp() override { ASSERT_TRUE(daemon_ != nullptr && victim_ != nullptr); }

  static uint64_t Rounds() {
    return static_cast<uint64_t>(FromEnvironment("CAIRN_HOSTILE_ROUNDS", 0));
  }
  // Waits until the attack has gone on for a while and has had an effect: on a busy machine, who
  // attacks gets no processor for seconds. Returns the most memory that the daemon had meanwhile.
  static uint64_t Endure(TlsAttack& attack) {
    const pid_t pid = daemon_->process().pid();
    uint64_t most = 0;
    const absl::Time until = MonotonicNow() + kAttackFor;
    absl::Time next_hit = until;
    const absl::Time latest = until + kInWithin;
    while (MonotonicNow() < until || attack.blows < Rounds() ||
           (attack.blows == 0 && MonotonicNow() < latest)) {
      most = std::max(most, WeightOf(pid).bytes);
      absl::SleepFor(absl::Milliseconds(20));
      if (MonotonicNow() < next_hit) continue;
      next_hit = MonotonicNow() + absl::Seconds(1);
      if (!victim_->AwaitHit(kInWithin) || !daemon_->process().is_running()) break;
    }
    return most;
  }
  static double NotJudged() {
    return daemon_->Metric("cairn_tls_handshakes_total{door=\"control\",outcome=\"over_budget\"") +
           daemon_->Metric("cairn_tls_handshakes_total{door=\"stream\",outcome=\"over_budget\"");
  }

  // The port of a name in the log.
  static uint16_t Port(const std::string& name) {
    const std::string log = daemon_->ReadLog();
    const size_t at = log.find(" " + name + "=");
    const size_t colon = log.find_first_of(":", log.find("127.0.0.1", at));
    return static_cast<uint16_t>(std::strtoul(log.c_str() + colon + 1, nullptr, 10));
  }

  void Survive(void (*attack)(TlsAttack&), bool is_control, bool is_before_proof) {
    TlsAttack now{.is_control = is_control,
                  .port = is_control ? daemon_->port("control") : Port("stream"),
                  .alpn = is_control ? "h2" : transport::kStreamAlpn,
                  .control = daemon_->endpoint("control"),
                  .server_files = *server_files_,
                  .client_files = *attacker_files_,
                  .random = SeededRandom()};
    const uint64_t bytes_before = WeightOf(daemon_->process().pid()).bytes;
    const double not_judged = NotJudged();
    (void)victim_->TakeRecord();
    std::thread attacker([&] {
      // The attackers are other hosts: what they compute is not to cost the daemon.
      (void)::setpriority(PRIO_PROCESS, static_cast<id_t>(::syscall(SYS_gettid)), 19);
      attack(now);
    });
    const uint64_t bytes_most = Endure(now);
    const VictimRecord record = victim_->TakeRecord();
    const absl::Time asked = MonotonicNow();
    const auto newcomer = Client::Connect(Options());
    const absl::Duration took = MonotonicNow() - asked;
    now.ends = true;
    attacker.join();
    EXPECT_GT(now.blows.load(), 0u) << "nobody was attacked";
    EXPECT_TRUE(newcomer.ok()) << newcomer.status() << " while the attack went on";
    Judge(record);
    if (is_before_proof && !kIsSanitized) {
      EXPECT_LE(bytes_most, bytes_before + kBeforeProofBytesMax);
    }
    std::printf(
        "%lu blows on %lu connections, %.0f of them over the budget; %lu KiB more at most; "
        "a new client in after %.0f ms; victim: %lu calls\n",
        now.blows.load(), now.connections.load(), NotJudged() - not_judged,
        (std::max(bytes_most, bytes_before) - bytes_before) >> 10, absl::ToDoubleMilliseconds(took),
        record.calls);
    EXPECT_TRUE(victim_->AwaitHit(kInWithin));
    EXPECT_THAT(daemon_->HttpGet("/readyz"), ::testing::HasSubstr("200 OK"));
    ASSERT_TRUE(WaitFor([] { return daemon_->Metric("cairn_tls_handshakes_running") == 0; }));
  }

  void Judge(const VictimRecord& record) {
    EXPECT_GT(record.hits, 0u);
    EXPECT_EQ(record.wrong_blocks, 0u);
    EXPECT_LE(record.late_max, kLateMax);
    EXPECT_EQ(record.failures, 0u) << record.last_failure;
    ASSERT_TRUE(daemon_->process().is_running()) << daemon_->ReadLog();
    // tests/bench/hostile.py reads them.
    const auto note = [](const char* name, const std::vector<absl::Duration>& times) {
      RecordProperty(name, absl::StrCat(absl::ToInt64Microseconds(P99(times))));
    };
    note("victim_get_p99_us", record.get_times);
    note("victim_match_p99_us", record.match_times);
  }

  static inline std::unique_ptr<TempDir> folder_;
  static inline std::unique_ptr<TestPki> pki_;
  static inline std::unique_ptr<transport::TlsFiles> server_files_, attacker_files_;
  static inline std::unique_ptr<DaemonProcess> daemon_;
  static inline std::unique_ptr<Victim> victim_;
};

// The victim alone: what its times are compared with.
TEST_F(HostileTlsTest, Nobody) {
  (void)victim_->TakeRecord();
  absl::SleepFor(kAttackFor);
  Judge(victim_->TakeRecord());
}

TEST_F(HostileTlsTest, ControlMutatedHandshakes) { Survive(MutateHandshakes, true, true); }
TEST_F(HostileTlsTest, ControlCutHandshakes) { Survive(CutHandshakes, true, true); }
TEST_F(HostileTlsTest, ControlSilentPeers) { Survive(CrowdSilently, true, true); }
TEST_F(HostileTlsTest, ControlDribbledHandshakes) { Survive(DribbleHandshakes, true, true); }
TEST_F(HostileTlsTest, ControlMutatedCalls) { Survive(MutateCalls, true, false); }
TEST_F(HostileTlsTest, ControlRenewedKeys) { Survive(RenewKeys, true, false); }
TEST_F(HostileTlsTest, ControlUnreadAnswers) { Survive(NeverRead, true, false); }

TEST_F(HostileTlsTest, StreamMutatedHandshakes) { Survive(MutateHandshakes, false, true); }
TEST_F(HostileTlsTest, StreamCutHandshakes) { Survive(CutHandshakes, false, true); }
TEST_F(HostileTlsTest, StreamSilentPeers) { Survive(CrowdSilently, false, true); }
TEST_F(HostileTlsTest, StreamDribbledHandshakes) { Survive(DribbleHandshakes, false, true); }
TEST_F(HostileTlsTest, StreamMutatedChunks) { Survive(MutateChunks, false, false); }
TEST_F(HostileTlsTest, StreamRenewedKeys) { Survive(RenewKeys, false, false); }
TEST_F(HostileTlsTest, StreamUnreadAnswers) { Survive(NeverRead, false, false); }

}  // namespace
}  // namespace cairn
