// SPDX-License-Identifier: Apache-2.0
// Clients that map the daemon's memory: what they get is read where it lies, what they make of it
// is right or a miss whenever the daemon takes it back, and what they hold of a dead daemon they
// let go.

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <thread>

#include "base/check.h"
#include "client/cpp/dial.h"
#include "tests/e2e/client/client_fixture.h"
#include "tests/support/from_environment.h"
#include "tests/support/random.h"
#include "tests/support/temp_dir.h"
#include "tests/support/wait.h"

namespace cairn {
namespace {

using Bytes = std::vector<std::byte>;
constexpr auto kBf16 = codecs::DType::kBf16;
constexpr char kLoans[] = "cairn_transport_loans_total";
constexpr char kNoMemory[] = "another process's memory cannot be written here";
constexpr char kInForce[] = "cairn_transport_loans{";

// Mappings of a daemon's memory in this process.
int Mapped() {
  std::ifstream maps("/proc/self/maps");
  int count = 0;
  for (std::string line; std::getline(maps, line);) {
    count += line.find("memfd:cairn-arena") != line.npos ? 1 : 0;
  }
  return count;
}

// A daemon, a client of it and a space.
class MapTest : public testing::Test {
 protected:
  void Start(std::vector<std::string> flags = {}, const std::string& recipe = "raw") {
    auto started = DaemonProcess::Start(std::move(flags));
    ASSERT_TRUE(started.ok()) << started.status();
    daemon_ = *std::move(started);
    Connect(recipe);
  }
  void Connect(const std::string& recipe = "raw", Dialer dialer = {}) {
    ConnectOptions options;
    options.control = daemon_->endpoint("control");
    options.timeout = kPatience;
    options.dialer = std::move(dialer);
    auto client = Client::Connect(options);
    ASSERT_TRUE(client.ok()) << client.status();
    client_ = *std::move(client);
    auto space = client_->OpenSpace(ToyIdentity(kBf16, "model-" + recipe), recipe, kPatience);
    ASSERT_TRUE(space.ok()) << space.status();
    space_ = *std::move(space);
  }
  BlockKey Key(uint64_t number) const {
    return space_->OpaqueKey(std::as_bytes(std::span(&number, 1)));
  }
  Bytes SourceOf(uint64_t number) const {
    return ToyValues(kBf16, *space_->SourceBytes({}), number + 1);
  }
  absl::Status Put(uint64_t number) {
    const Bytes source = SourceOf(number);
    return space_->Put({.key = Key(number), .source = SourceBytes{source}}, kPatience).status();
  }
  absl::Status Get(uint64_t number, Bytes* values, absl::Duration timeout = kPatience) {
    values->assign(*space_->SourceBytes({}), std::byte{0});
    return space_->Get({.key = Key(number), .target = SourceTarget{*values}}, timeout).status();
  }
  Bytes DecodedByDaemon(uint64_t number, const GroupSlice& slice) {
    Bytes values(*space_->SourceBytes(slice));
    EXPECT_TRUE(space_
                    ->Get({.key = Key(number),
                           .slice = slice,
                           .decode = Side::kDaemon,
                           .target = SourceTarget{values}},
                          kPatience)
                    .ok());
    return values;
  }
  // Puts blocks of `bytes` as another client, until `is_over`. Counts them in `puts`.
  void PutUntil(const std::atomic<bool>& is_over, std::atomic<uint64_t>& puts, size_t bytes) {
    ConnectOptions options;
    options.control = daemon_->endpoint("control");
    auto client = Client::Connect(options);
    CAIRN_CHECK(client.ok());
    auto space = (*client)->OpenSpace(ToyIdentity(kBf16, "others"), "raw", kPatience);
    CAIRN_CHECK(space.ok());
    const Bytes noise = ToyValues(kBf16, bytes, 999);
    for (uint64_t i = 0; !is_over.load(); ++i) {
      const BlockKey key = (*space)->OpaqueKey(std::as_bytes(std::span(&i, 1)));
      puts += (*space)->Put({.key = key, .source = SourceBytes{noise}}, kPatience).ok() ? 1 : 0;
    }
  }
  // Changes the first byte of `source` in the daemon's memory, wherever it lies. Returns false if
  // another process's memory cannot be written here.
  bool Damage(const Bytes& source) const {
    const std::string memory_path = "/proc/" + std::to_string(daemon_->process().pid()) + "/mem";
    std::ifstream maps("/proc/" + std::to_string(daemon_->process().pid()) + "/maps");
    std::fstream memory(memory_path, std::ios::in | std::ios::out | std::ios::binary);
    if (!memory.is_open()) return false;
    int damaged = 0;
    for (std::string line; std::getline(maps, line);) {
      uintptr_t begin = 0, end = 0;
      if (line.find("memfd:cairn-arena") == line.npos ||
          std::sscanf(line.c_str(), "%lx-%lx ", &begin, &end) != 2) {
        continue;
      }
      Bytes arena(8 << 20);  // extents are taken from the beginning
      memory.seekg(static_cast<std::streamoff>(begin));
      memory.read(reinterpret_cast<char*>(arena.data()),
                  static_cast<std::streamsize>(arena.size()));
      for (auto at = arena.begin();;) {
        at = std::search(at, arena.end(), source.begin(), source.begin() + 64);
        if (at == arena.end()) break;
        memory.seekp(static_cast<std::streamoff>(begin + static_cast<size_t>(at - arena.begin())));
        memory.put(static_cast<char>(*at ^ std::byte{1}));
        memory.flush();
        ++damaged;
        ++at;
      }
    }
    EXPECT_GT(damaged, 0);
    return true;
  }
  double Loans() const { return daemon_->Metric(kLoans); }

  std::unique_ptr<DaemonProcess> daemon_;
  std::unique_ptr<Client> client_;
  std::unique_ptr<Space> space_;
};

TEST_F(MapTest, WhatIsGotIsLentAndGivenBack) {
  for (const char* recipe : {"raw", "exact", "kivi:4"}) {
    SCOPED_TRACE(recipe);
    Start({}, recipe);
    ASSERT_TRUE(Put(1).ok());
    Bytes first, second;
    ASSERT_TRUE(Get(1, &first).ok());
    EXPECT_EQ(Loans(), 1);
    EXPECT_EQ(Mapped(), 1);
    EXPECT_EQ(first == SourceOf(1), std::string_view(recipe) != "kivi:4");
    // The daemon decodes it: nothing is lent, and the values are the same.
    second.resize(first.size());
    ASSERT_TRUE(space_
                    ->Get({.key = Key(1), .decode = Side::kDaemon, .target = SourceTarget{second}},
                          kPatience)
                    .ok());
    EXPECT_EQ(first, second);
    EXPECT_EQ(Loans(), 1);
    EXPECT_TRUE(daemon_->AwaitMetric(kInForce, 0, absl::Seconds(5)));
    EXPECT_EQ(daemon_->Metric("cairn_transport_loans_late_total"), 0);
    space_.reset();
    client_.reset();
    EXPECT_EQ(Mapped(), 0);
  }
}

TEST_F(MapTest, ABatchIsOneMessageAndEachOfItsBlocksIsLent) {
  for (const char* map : {"--map=on", "--map=off"}) {
    Start({map});
    constexpr size_t kBlocks = 20, kAbsent = 13;
    std::vector<Bytes> values(kBlocks, Bytes(*space_->SourceBytes({})));
    std::vector<GetRequest> gets;
    for (size_t i = 0; i < kBlocks; ++i) {
      if (i != kAbsent) {
        ASSERT_TRUE(Put(i).ok());
      }
      gets.push_back({.key = Key(i), .target = SourceTarget{values[i]}});
    }
    const auto got = space_->GetBatch(gets, kPatience);
    for (size_t i = 0; i < kBlocks; ++i) {
      EXPECT_EQ(got[i].ok(), i != kAbsent) << got[i].status();
      EXPECT_TRUE(i == kAbsent || values[i] == SourceOf(i)) << i;
    }
    EXPECT_TRUE(absl::IsNotFound(got[kAbsent].status()));
    EXPECT_EQ(daemon_->Metric("cairn_transport_batches_total"), 1);
    EXPECT_EQ(Loans(), map == std::string_view("--map=on") ? kBlocks - 1 : 0);
    EXPECT_TRUE(daemon_->AwaitMetric(kInForce, 0, absl::Seconds(5)));
    space_.reset();
    client_.reset();
  }
}

TEST_F(MapTest, ImagesAreCopied) {
  Start();
  ASSERT_TRUE(Put(1).ok());
  Bytes image(*space_->ImageBytesMax({}));
  ASSERT_TRUE(space_->Get({.key = Key(1), .target = ImageTarget{image}}, kPatience).ok());
  EXPECT_EQ(Loans(), 0);
}

TEST_F(MapTest, OffMeansCopies) {
  Start({"--map=off"});
  ASSERT_TRUE(Put(1).ok());
  Bytes values;
  ASSERT_TRUE(Get(1, &values).ok());
  EXPECT_EQ(values, SourceOf(1));
  EXPECT_EQ(Mapped(), 0);
  EXPECT_EQ(Loans(), 0);
}

constexpr char kPlaced[] = "cairn_get_answers_total{how=\"placed\"}";

// The tiles of a slice lie apart, and are read where they lie.
TEST_F(MapTest, SlicesAreLentInSeveralPlaces) {
  for (const char* recipe : {"raw", "exact", "kivi:4"}) {
    for (const char* map : {"--map=on", "--map=off"}) {
      SCOPED_TRACE(absl::StrCat(recipe, map));
      Start({map}, recipe);
      ASSERT_TRUE(Put(1).ok());
      int slices = 0, places = 0;
      for (const GroupSlice& slice :
           {GroupSlice{.layer_first = 1, .layer_count = 2, .head_first = 1, .head_count = 2},
            GroupSlice{.layer_first = 0, .layer_count = kLayers, .head_first = 1, .head_count = 1},
            GroupSlice{.layer_first = 1, .layer_count = 1}}) {
        const bool is_whole_layer = slice.head_count == 0;
        Bytes values(*space_->SourceBytes(slice));
        ASSERT_TRUE(
            space_->Get({.key = Key(1), .slice = slice, .target = SourceTarget{values}}, kPatience)
                .ok());
        EXPECT_EQ(values, DecodedByDaemon(1, slice));
        ++slices;
        places += is_whole_layer ? 1 : static_cast<int>(slice.layer_count);
      }
      const bool is_mapped = map == std::string_view("--map=on");
      EXPECT_EQ(Loans(), is_mapped ? slices : 0);
      EXPECT_EQ(daemon_->Metric(kPlaced), is_mapped ? slices : 0);
      EXPECT_EQ(daemon_->Metric("cairn_transport_lent_places_total"), is_mapped ? places : 0);
      EXPECT_TRUE(daemon_->AwaitMetric(kInForce, 0, absl::Seconds(5)));
      space_.reset();
      client_.reset();
    }
  }
}

// Two ranks have put a half of the heads each; a reader with other ranks wants heads of both.
TEST_F(MapTest, ASliceOfSeveralImagesIsLent) {
  Start({}, "exact");
  const uint32_t half = kHeads / 2;
  const Bytes source = SourceOf(1);
  const size_t head_bytes = source.size() / (kLayers * kHeads);
  const auto part_of = [&](const GroupSlice& slice) {
    Bytes part;
    for (size_t layer = 0; layer < kLayers; ++layer) {
      const auto begin =
          source.begin() + static_cast<ptrdiff_t>((layer * kHeads + slice.head_first) * head_bytes);
      part.insert(part.end(), begin, begin + static_cast<ptrdiff_t>(slice.head_count * head_bytes));
    }
    return part;
  };
  for (const uint32_t first : {0U, half}) {
    const GroupSlice slice{.layer_count = kLayers, .head_first = first, .head_count = half};
    const Bytes part = part_of(slice);
    ASSERT_TRUE(
        space_->Put({.key = Key(1), .slice = slice, .source = SourceBytes{part}}, kPatience).ok());
  }
  const GroupSlice across{.layer_count = kLayers, .head_first = 1, .head_count = half};
  Bytes values(*space_->SourceBytes(across));
  ASSERT_TRUE(
      space_->Get({.key = Key(1), .slice = across, .target = SourceTarget{values}}, kPatience)
          .ok());
  EXPECT_EQ(values, part_of(across));
  EXPECT_EQ(Loans(), 1);
  EXPECT_EQ(daemon_->Metric(kPlaced), 1);
  EXPECT_EQ(daemon_->Metric("cairn_transport_lent_places_total"), 2 * kLayers);
}

// Blocks that were read from a drive are lent as soon as they have been read: a whole one, a slice
// of a whole one, and a slice that was read alone into staging. A daemon with the smallest staging
// lends nothing of it.
TEST_F(MapTest, WhatWasJustReadFromADriveIsLent) {
  constexpr uint32_t kLargeTokens = 256;
  constexpr char kWritten[] = "cairn_write_downs_total{outcome=\"written\"}";
  const TempDir folder;
  std::vector<std::string> flags = {"--ssd=" + folder.File("ssd") + "=256MiB", "--ssd-io=threads",
                                    "--staging-bytes=256MiB"};
  const GroupSlice slice{.layer_count = kLayers, .head_first = 1, .head_count = 1};
  const auto open = [&] {
    Start(flags);
    proto::SpaceIdentity identity = ToyIdentity(kBf16, "large");
    identity.tokens_per_block = kLargeTokens;
    auto space = client_->OpenSpace(identity, "raw", kPatience);
    ASSERT_TRUE(space.ok()) << space.status();
    space_ = *std::move(space);
  };
  ASSERT_NO_FATAL_FAILURE(open());
  for (uint64_t number = 0; number < 3; ++number) ASSERT_TRUE(Put(number).ok());
  ASSERT_TRUE(daemon_->AwaitMetric(kWritten, 3, kPatience));
  const Bytes expected = DecodedByDaemon(1, slice);
  Bytes sliced(expected.size());
  for (const char* staging : {"--staging-bytes=256MiB", "--staging-bytes=192MiB"}) {
    SCOPED_TRACE(staging);
    flags.back() = staging;
    const bool is_small = staging == std::string_view("--staging-bytes=192MiB");
    space_.reset();
    client_.reset();
    daemon_->process().Signal(SIGKILL);
    ASSERT_TRUE(daemon_->process().Wait(kPatience).ok());
    ASSERT_NO_FATAL_FAILURE(open());
    Bytes values;
    ASSERT_TRUE(Get(0, &values).ok());
    EXPECT_EQ(values, SourceOf(0));
    EXPECT_EQ(daemon_->Metric("cairn_promotions_total{outcome=\"copied\"}"), 1);
    EXPECT_EQ(Loans(), 1);
    ASSERT_TRUE(
        space_->Get({.key = Key(1), .slice = slice, .target = SourceTarget{sliced}}, kPatience)
            .ok());
    EXPECT_EQ(sliced, expected);
    EXPECT_EQ(daemon_->Metric("cairn_promotions_total{outcome=\"sliced\"}"), 1);
    EXPECT_EQ(Loans(), is_small ? 1 : 2);
    EXPECT_EQ(daemon_->Metric("cairn_loans_refused_total"), is_small ? 1 : 0);
    // Once slices of the image's size were read, the next get reads it whole.
    for (uint32_t i = 0; i < kHeads; ++i) {
      ASSERT_TRUE(
          space_->Get({.key = Key(1), .slice = slice, .target = SourceTarget{sliced}}, kPatience)
              .ok());
      EXPECT_EQ(sliced, expected);
    }
    EXPECT_EQ(daemon_->Metric("cairn_promotions_total{outcome=\"copied\"}"), 2);
    EXPECT_EQ(daemon_->Metric(kPlaced), 1);
    EXPECT_EQ(Loans(), is_small ? 2 : 2 + kHeads);
    EXPECT_TRUE(daemon_->AwaitMetric(kInForce, 0, absl::Seconds(5)));
    EXPECT_EQ(daemon_->Metric("cairn_transport_loans_late_total"), 0);
  }
}

// The daemon does not read what is lent: the client finds the damage, and a copy tells the daemon.
TEST_F(MapTest, DamageInTheDaemonsMemoryIsFoundAndDropped) {
  Start();
  ASSERT_TRUE(Put(1).ok());
  const Bytes source = SourceOf(1);
  if (!Damage(source)) GTEST_SKIP() << kNoMemory;
  Bytes values;
  EXPECT_EQ(Get(1, &values).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(daemon_->Metric("cairn_corrupt_tiles_total"), 1);
  EXPECT_EQ(Loans(), 1);
  ASSERT_TRUE(Put(1).ok());
  EXPECT_TRUE(Get(1, &values).ok());
  EXPECT_EQ(values, source);
}

// A slice in more places than may be lent is copied for a client that would have taken a loan. Such
// a copy is not verified either.
TEST_F(MapTest, DamageInACopyInsteadOfALoanIsFoundAndDropped) {
  Start();
  proto::SpaceIdentity identity = ToyIdentity(kBf16, "deep");
  identity.groups.front().layers.resize(300);
  std::iota(identity.groups.front().layers.begin(), identity.groups.front().layers.end(), 0U);
  auto space = client_->OpenSpace(identity, "raw", kPatience);
  ASSERT_TRUE(space.ok()) << space.status();
  space_ = *std::move(space);
  ASSERT_TRUE(Put(1).ok());
  if (!Damage(SourceOf(1))) GTEST_SKIP() << kNoMemory;
  const GroupSlice slice = {.head_first = 0, .head_count = 1};
  Bytes values(*space_->SourceBytes(slice));
  const auto got =
      space_->Get({.key = Key(1), .slice = slice, .target = SourceTarget{values}}, kPatience);
  EXPECT_EQ(got.status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Loans(), 0);
  EXPECT_EQ(daemon_->Metric("cairn_corrupt_tiles_total"), 1);
}

TEST_F(MapTest, WhatADeadDaemonHadIsLetGo) {
  Start();
  ASSERT_TRUE(Put(1).ok());
  Bytes values;
  ASSERT_TRUE(Get(1, &values).ok());
  ASSERT_EQ(Mapped(), 1);
  daemon_->process().Signal(SIGKILL);
  // No call is made: the session's stream says it.
  EXPECT_TRUE(WaitFor([] { return Mapped() == 0; }));
  EXPECT_FALSE(Get(1, &values, absl::Milliseconds(200)).ok());
}

// --- loans that are taken back

// Where a client stops, as by SIGSTOP or for want of a processor: when it has been told of the
// loan, and when it first writes to a page of its target, which is after it has verified some of
// the block. Pages are closed, and opened by the handler of the fault.
class Stops {
 public:
  static inline std::atomic<int64_t> told_us{0}, fault_us{0};
  static inline std::byte* target = nullptr;
  static inline size_t target_bytes = 0;

  static void Pause(int64_t us) {
    const timespec pause{us / 1'000'000, (us % 1'000'000) * 1000};
    nanosleep(&pause, nullptr);
  }
  static void OnFault(int, siginfo_t* info, void*) {
    auto* at = static_cast<std::byte*>(info->si_addr);
    if (at < target || at >= target + target_bytes) _exit(99);
    Pause(fault_us.load());
    mprotect(target, target_bytes, PROT_READ | PROT_WRITE);
  }
};

class StoppingConnection final : public transport::Connection {
 public:
  explicit StoppingConnection(std::unique_ptr<transport::Connection> real)
      : real_(std::move(real)) {}
  absl::StatusOr<std::unique_ptr<transport::Buffer>> Allocate(size_t bytes) override {
    return real_->Allocate(bytes);
  }
  absl::Status Start(transport::Call* call) override { return real_->Start(call); }
  void Poll(absl::Time until) override {
    real_->Poll(until);
    if (const int64_t us = Stops::told_us.exchange(0); us > 0) Stops::Pause(us);
  }
  bool broken() const override { return real_->broken(); }
  bool is_mapped() const override { return real_->is_mapped(); }
  void Unmap() override { real_->Unmap(); }
  int window() const override { return real_->window(); }

 private:
  const std::unique_ptr<transport::Connection> real_;
};

int StopCount(int cheap) { return FromEnvironment("CAIRN_STOPS", cheap); }

TEST_F(MapTest, AClientThatStopsGetsItsValuesOrAMiss) {
  Start({"--host-bytes=16MiB"});
  Connect("raw",
          [](const DialRequest& request) -> absl::StatusOr<std::unique_ptr<transport::Connection>> {
            auto real = DialTransport(request);
            if (!real.ok()) return real.status();
            return std::make_unique<StoppingConnection>(*std::move(real));
          });
  struct sigaction action {
  }, before{};
  action.sa_sigaction = &Stops::OnFault;
  action.sa_flags = SA_SIGINFO;
  ASSERT_EQ(sigaction(SIGSEGV, &action, &before), 0);
  const size_t bytes = *space_->SourceBytes({});
  Stops::target_bytes = (bytes + 4095) / 4096 * 4096;
  Stops::target = static_cast<std::byte*>(mmap(nullptr, Stops::target_bytes, PROT_READ | PROT_WRITE,
                                               MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  const GroupSlice slice{.layer_count = kLayers, .head_first = 1, .head_count = 1};
  const size_t slice_bytes = *space_->SourceBytes(slice);
  ASSERT_TRUE(Put(1).ok());
  const Bytes sliced = DecodedByDaemon(1, slice);
  // Others put all the time: what is not lent any more is written over.
  std::atomic<bool> is_over{false};
  std::atomic<uint64_t> puts{0};
  std::thread writer([&] { PutUntil(is_over, puts, bytes); });
  std::mt19937_64 random = SeededRandom();
  int hits = 0, misses = 0;
  for (int i = 0; i < StopCount(60); ++i) {
    ASSERT_TRUE(Put(1).ok());
    // The get's deadline is the loan's: it stops for less or for longer than that.
    const int kind = static_cast<int>(random() % 3);
    const auto stop_us = static_cast<int64_t>(random() % 60'000);
    Stops::told_us = kind == 0 ? stop_us : 0;
    Stops::fault_us = kind == 0 ? 0 : stop_us;
    // At the first page the first tile is verified and nothing decoded; later it is within.
    const size_t page = kind == 1 ? 0 : random() % (Stops::target_bytes / 4096);
    ASSERT_EQ(mprotect(Stops::target + page * 4096, 4096, PROT_NONE), 0);
    // Every second block is asked for as a slice whose tiles lie apart, and fills less of the
    // target.
    const bool is_slice = random() % 2 == 0;
    const std::span<std::byte> target(Stops::target, is_slice ? slice_bytes : bytes);
    const absl::Status got = space_
                                 ->Get({.key = Key(1),
                                        .slice = is_slice ? slice : GroupSlice{},
                                        .target = SourceTarget{target}},
                                       absl::Milliseconds(20))
                                 .status();
    ASSERT_EQ(mprotect(Stops::target, Stops::target_bytes, PROT_READ | PROT_WRITE), 0);
    if (got.ok()) {
      ++hits;
      const Bytes source = is_slice ? sliced : SourceOf(1);
      ASSERT_EQ(std::memcmp(target.data(), source.data(), target.size()), 0) << i << " " << kind;
    } else {
      ++misses;
    }
  }
  is_over = true;
  writer.join();
  ASSERT_EQ(sigaction(SIGSEGV, &before, nullptr), 0);
  munmap(Stops::target, Stops::target_bytes);
  EXPECT_GT(puts.load(), 100u);
  EXPECT_GT(hits, 0);
  EXPECT_GT(misses, 0);
  EXPECT_GT(daemon_->Metric("cairn_transport_loans_late_total"), 0);
  EXPECT_TRUE(daemon_->AwaitMetric(kInForce, 0, absl::Seconds(5)));
}

}  // namespace
}  // namespace cairn
