// SPDX-License-Identifier: Apache-2.0
// Blocks that a device reads in the daemon's memory, which the client has mapped: no CPU copies
// them, and a loan that is lost meanwhile is a miss.

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <vector>

#include "base/check.h"
#include "base/file.h"
#include "client/cpp/lent_pieces.h"
#include "tests/e2e/client/device_fixture.h"
#include "tests/support/emulated_memory.h"
#include "tests/support/wait.h"
#include "transport/local/loans.h"

namespace cairn {
namespace {

constexpr char kLoans[] = "cairn_transport_loans_total";
constexpr char kInForce[] = "cairn_transport_loans{";

class DeviceLentTest : public DeviceTest {
 protected:
  // Opens the space at a daemon that only this test has.
  void OpenAlone(const std::string& recipe) {
    auto started = DaemonProcess::Start();
    ASSERT_TRUE(started.ok()) << started.status();
    own_ = *std::move(started);
    ConnectOptions options;
    options.control = own_->endpoint("control");
    options.timeout = kPatience;
    ASSERT_NO_FATAL_FAILURE(Open(recipe, options));
  }
  void ExpectAllOf(EngineCache& cache) {
    cache.Download();
    for (uint32_t key = 0; key < kKeys; ++key) {
      EXPECT_EQ(cache.Take(&table_[key * kPagesPerKey]), SourceOf(key)) << key;
    }
  }
  // Gets all blocks while the device hangs. Calls `meanwhile` when all are lent and their copies
  // may run, and lets the device go on afterwards.
  template <typename Meanwhile>
  std::vector<absl::StatusOr<GetResult>> GetWhileHung(EngineCache& cache, Meanwhile meanwhile) {
    DeviceRequest request = Request(cache);
    request.stream = device_.OpenStream();
    device_.SetHung(true);
    std::vector<absl::StatusOr<GetResult>> got;
    std::thread getter([&] { got = mover_->Get(request); });
    EXPECT_TRUE(own_->AwaitMetric(kInForce, kKeys, kPatience));
    meanwhile();
    device_.SetHung(false);
    getter.join();
    device_.CloseStream(request.stream);
    return got;
  }

  std::unique_ptr<DaemonProcess> own_;
};

TEST_F(DeviceLentTest, NoCpuCopiesWhatTheDeviceReads) {
  ASSERT_NO_FATAL_FAILURE(Open("raw"));
  ASSERT_NO_FATAL_FAILURE(Put());
  const double loans = daemon_->Metric(kLoans);
  const double late = daemon_->Metric("cairn_transport_loans_late_total");
  EngineCache cache(device_);
  for (const auto& got : mover_->Get(Request(cache))) {
    EXPECT_TRUE(got.ok()) << got.status();
  }
  ExpectAllOf(cache);
  EXPECT_EQ(daemon_->Metric(kLoans) - loans, kKeys);
  EXPECT_EQ(device_.faults().lent_copies, kKeys) << "one for each image";
  EXPECT_EQ(device_.faults().slow_copies, 0u);
  EXPECT_TRUE(daemon_->AwaitMetric(kInForce, 0, absl::Seconds(5)));
  EXPECT_EQ(daemon_->Metric("cairn_transport_loans_late_total"), late);
  mover_.reset();
  EXPECT_EQ(device_.lent_ranges(), 0u);
}

// The tiles of a slice lie apart, and are copied from where they lie.
TEST_F(DeviceLentTest, SlicesAreReadWhereTheyLie) {
  ASSERT_NO_FATAL_FAILURE(Open("exact"));
  ASSERT_NO_FATAL_FAILURE(Put());
  const GroupSlice slice{.layer_count = kLayers, .head_first = 1, .head_count = 2};
  std::vector<Bytes> taken[2];
  for (const bool is_refused : {false, true}) {
    EmulatedDevice device;
    device.faults().refuses_reading = is_refused;
    EngineCache cache(device);
    auto mover = DeviceMover::Make(*space_, device, slice);
    ASSERT_TRUE(mover.ok()) << mover.status();
    for (const auto& got : (*mover)->Get(Request(cache))) {
      EXPECT_TRUE(got.ok()) << got.status();
    }
    cache.Download();
    for (uint32_t key = 0; key < kKeys; ++key) {
      taken[is_refused].push_back(cache.Take(&table_[key * kPagesPerKey]));
    }
    EXPECT_EQ(device.faults().lent_copies, is_refused ? 0 : kKeys * kLayers) << "one per layer";
    EXPECT_EQ(device.faults().slow_copies, 0u);
  }
  EXPECT_EQ(taken[false], taken[true]);
  const size_t head = SourceOf(0).size() / (kLayers * kHeads);
  EXPECT_EQ(std::memcmp(taken[false][0].data(), SourceOf(0).data() + head, 2 * head), 0);
}

TEST_F(DeviceLentTest, ADeviceThatRefusesTheMemoryGetsCopies) {
  ASSERT_NO_FATAL_FAILURE(Open("exact"));
  ASSERT_NO_FATAL_FAILURE(Put());
  device_.faults().refuses_reading = true;
  for (const uint32_t lent : {kKeys, 0U}) {
    const double loans = daemon_->Metric(kLoans);
    EngineCache cache(device_);
    for (const auto& got : mover_->Get(Request(cache))) {
      EXPECT_TRUE(got.ok()) << got.status();
    }
    ExpectAllOf(cache);
    // The refusal is known once the first batch is there.
    EXPECT_EQ(daemon_->Metric(kLoans) - loans, std::min<size_t>(lent, DeviceMover::kBatchImages));
    EXPECT_EQ(device_.faults().lent_copies, 0u);
    EXPECT_EQ(device_.faults().slow_copies, 0u);
  }
}

// The daemon has not verified what it lends. It verifies the copy that the client then asks for.
TEST_F(DeviceLentTest, WhatIsDamagedOnItsWayIsAskedForOnceMore) {
  ASSERT_NO_FATAL_FAILURE(Open("raw"));
  ASSERT_NO_FATAL_FAILURE(Put());
  const double loans = daemon_->Metric(kLoans);
  EngineCache cache(device_);
  device_.Damage(3);
  for (const auto& got : mover_->Get(Request(cache))) {
    EXPECT_TRUE(got.ok()) << got.status();
  }
  ExpectAllOf(cache);
  EXPECT_EQ(daemon_->Metric(kLoans) - loans, kKeys);
  EXPECT_EQ(device_.faults().lent_copies, kKeys);
}

TEST_F(DeviceLentTest, MoversOfADeviceShareWhatIsRegistered) {
  ASSERT_NO_FATAL_FAILURE(Open("raw"));
  ASSERT_NO_FATAL_FAILURE(Put());
  auto other = DeviceMover::Make(*space_, device_, {});
  ASSERT_TRUE(other.ok()) << other.status();
  EngineCache cache(device_);
  for (DeviceMover* mover : {mover_.get(), other->get()}) {
    EXPECT_TRUE(mover->Get(Request(cache)).front().ok());
  }
  EXPECT_EQ(device_.faults().lent_copies, 2 * kKeys);
  const size_t ranges = device_.lent_ranges();
  EXPECT_GT(ranges, 0u);
  mover_.reset();
  EXPECT_EQ(device_.lent_ranges(), ranges);
  EXPECT_TRUE((*other)->Get(Request(cache)).front().ok());
  other->reset();
  EXPECT_EQ(device_.lent_ranges(), 0u);
}

// A daemon that stops takes its loans back. Its memory may then have other bytes.
TEST_F(DeviceLentTest, ALoanThatIsLostWhileTheDeviceReadsIsAMiss) {
  ASSERT_NO_FATAL_FAILURE(OpenAlone("raw"));
  ASSERT_NO_FATAL_FAILURE(Put());
  EngineCache cache(device_);
  const auto results = GetWhileHung(cache, [&] {
    own_->process().Signal(SIGTERM);
    EXPECT_TRUE(own_->process().Wait(kPatience).ok());
  });
  ASSERT_EQ(results.size(), kKeys);
  for (const auto& got : results) {
    EXPECT_TRUE(absl::IsNotFound(got.status())) << got.status();
    EXPECT_THAT(std::string(got.status().message()), testing::HasSubstr("the loan was over"));
  }
  EXPECT_TRUE(WaitFor([&] { return device_.lent_ranges() == 0; }));
  EXPECT_FALSE(mover_->is_lost());
}

// The memory of a daemon that dies stays mapped until the device has read what is lent. Then it is
// unregistered without any call.
TEST_F(DeviceLentTest, WhatADeadDaemonHasLentIsStillRead) {
  ASSERT_NO_FATAL_FAILURE(OpenAlone("raw"));
  ASSERT_NO_FATAL_FAILURE(Put());
  EngineCache cache(device_);
  const auto results = GetWhileHung(cache, [&] {
    own_->process().Signal(SIGKILL);
    EXPECT_TRUE(own_->process().Wait(kPatience).ok());
    // The session ends meanwhile.
    EXPECT_FALSE(space_->Contains(keys_, absl::Milliseconds(200)).ok());
    EXPECT_GT(device_.lent_ranges(), 0u);
  });
  ASSERT_EQ(results.size(), kKeys);
  for (const auto& got : results) {
    EXPECT_TRUE(got.ok()) << got.status();
  }
  ExpectAllOf(cache);
  EXPECT_TRUE(WaitFor([&] { return device_.lent_ranges() == 0; }));
}

// A file that a daemon could lend: sealed, and without pages that were touched.
Fd MakeLent(uint64_t bytes) {
  Fd file(memfd_create("cairn-arena", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  CAIRN_CHECK(ftruncate(file.get(), static_cast<off_t>(bytes)) == 0 &&
              fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0);
  return file;
}

TEST(LentPiecesTest, PiecesAreRegisteredOnceAndUnregisteredBeforeTheMemoryIsUnmapped) {
  constexpr uint64_t kPiece = LentPieces::kPieceBytes;
  const Fd file = MakeLent(2 * kPiece + 4096), words = MakeLent(4096);
  auto mapped = transport::LentMemory::Map(file, words);
  ASSERT_TRUE(mapped.ok()) << mapped.status();
  const std::span<const std::byte> memory = (*mapped)->memory();
  EmulatedMemory device;
  const auto pieces = LentPieces::Of(device, memory.subspan(5, 7));
  ASSERT_NE(pieces, nullptr);
  EXPECT_EQ(LentPieces::Of(device, memory.last(1)), pieces);
  EXPECT_EQ(LentPieces::Of(device, std::span(memory.data() - 1, 1)), nullptr);
  EXPECT_TRUE(pieces->Register(memory.first(kPiece)));
  EXPECT_EQ(device.lent_ranges(), 1u);
  // An image in two pieces is copied in two parts.
  const auto across = memory.subspan(kPiece - 100, 300);
  EXPECT_TRUE(pieces->Register(across));
  EXPECT_EQ(device.lent_ranges(), 2u);
  const auto parts = pieces->Split(across);
  ASSERT_EQ(parts.size(), 2u);
  EXPECT_EQ(parts[0].data(), across.data());
  EXPECT_EQ(parts[0].size(), 100u);
  EXPECT_EQ(parts[1].data(), memory.data() + kPiece);
  EXPECT_EQ(parts[1].size(), 200u);
  EXPECT_FALSE(pieces->is_refused());
  device.faults().refuses_reading = true;
  EXPECT_TRUE(pieces->Register(across));
  EXPECT_FALSE(pieces->Register(memory.last(8192))) << "the last piece is refused";
  EXPECT_TRUE(pieces->is_refused());
  EXPECT_TRUE(pieces->Has(across));
  mapped->reset();
  EXPECT_EQ(device.lent_ranges(), 0u);
  EXPECT_FALSE(pieces->Has(across));
}

// The memory is larger than the bound, and no page of it exists.
TEST(LentPiecesTest, PiecesAboveTheBoundAreNotRegistered) {
  constexpr uint64_t kPiece = LentPieces::kPieceBytes;
  constexpr uint64_t kBound = LentPieces::kRegisteredBytesMax;
  const Fd file = MakeLent(kBound + 2 * kPiece), words = MakeLent(4096);
  auto mapped = transport::LentMemory::Map(file, words);
  ASSERT_TRUE(mapped.ok()) << mapped.status();
  const std::span<const std::byte> memory = (*mapped)->memory();
  EmulatedMemory device;
  auto pieces = LentPieces::Of(device, memory.first(1));
  ASSERT_NE(pieces, nullptr);
  // All but one, from the second piece on. Then only one more fits, whichever is asked for.
  EXPECT_TRUE(pieces->Register(memory.subspan(kPiece, kBound - kPiece)));
  EXPECT_EQ(device.lent_ranges(), kBound / kPiece - 1);
  EXPECT_FALSE(pieces->Register(memory.last(kPiece + 1))) << "both of the last pieces";
  EXPECT_EQ(device.lent_ranges(), kBound / kPiece);
  EXPECT_FALSE(pieces->Register(memory.first(1)));
  EXPECT_FALSE(pieces->Register(memory.last(1)));
  EXPECT_EQ(device.lent_ranges(), kBound / kPiece);
  // The device has refused nothing: pieces that are registered are still read.
  EXPECT_FALSE(pieces->is_refused());
  EXPECT_TRUE(pieces->Register(memory.subspan(kBound - 1, 2)));
  pieces = nullptr;
  EXPECT_EQ(device.lent_ranges(), 0u);
}

}  // namespace
}  // namespace cairn
