// SPDX-License-Identifier: Apache-2.0
// What the SSD tier gives, and what it costs those who do not need it, through the SDK and a cairnd
// of its own over the local transport.
//
// Reads: raw images that are on the drive only, in batches, beside plain O_DIRECT reads of the
// tier's own segments by as many threads, in turns. Hits: how long gets of images in memory take
// one at a time while another client puts steadily, of a daemon without a drive and of one that
// writes everything down, reclaims segments and scrubs.
//
//   cairn_tier_bench [--folder DIR] …   the tiers lie there; default build/bench

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/file.h"
#include "base/status.h"
#include "base/units.h"
#include "client/cpp/client.h"
#include "client/cpp/space.h"
#include "tests/bench/bench.h"
#include "tests/bench/sdk.h"
#include "tests/e2e/daemon/daemon_process.h"

namespace cairn::bench {
namespace {

namespace fs = std::filesystem;

constexpr KvShape kShape = {.layers = 32, .heads = 8, .dim = 128, .tokens = 128};
constexpr absl::Duration kTimeout = absl::Seconds(30);

// A daemon, and clients of one space of it.
class Store {
 public:
  explicit Store(const std::vector<std::string>& flags)
      : daemon_(Must(DaemonProcess::Start(flags))) {}

  struct Caller {
    std::unique_ptr<Client> client = nullptr;
    std::unique_ptr<Space> space = nullptr;
  };
  Caller Connect() const {
    ConnectOptions options;
    options.control = daemon_->endpoint("control");
    options.connections = 1;
    options.region_bytes = 256_MiB;
    Caller caller;
    caller.client = Must(Client::Connect(options));
    caller.space = Must(caller.client->OpenSpace(Identity("bench", kShape), "raw", kTimeout));
    return caller;
  }
  DaemonProcess& daemon() const { return *daemon_; }

 private:
  std::unique_ptr<DaemonProcess> daemon_;
};

// Puts and gets of images of one slice, in buffers of the caller's connection.
class Images {
 public:
  Images(const Store::Caller& caller, const GroupSlice& slice, int batch)
      : space_(*caller.space), slice_(slice) {
    source_ = FiniteSource(Must(space_.SourceBytes(slice)));
    const uint64_t bytes_max = Must(space_.ImageBytesMax(slice));
    for (int i = 0; i < batch; ++i) {
      buffers_.push_back(Must(caller.client->AllocateBuffer(bytes_max, kTimeout)));
    }
  }
  int batch() const { return static_cast<int>(buffers_.size()); }
  uint64_t image_bytes() const { return image_bytes_; }

  // Images first … first + batch - 1, each of a block of its own.
  void Put(const std::string& name, int first, bool is_durable) {
    std::vector<PutRequest> puts;
    for (int i = 0; i < batch(); ++i) {
      const BlockKey key = Key(name, first + i);
      Buffer& buffer = buffers_[static_cast<size_t>(i)];
      image_bytes_ = EncodeRaw(space_, slice_, key, source_, buffer.bytes());
      puts.push_back({.key = key,
                      .slice = slice_,
                      .is_durable = is_durable,
                      .source = ImageBytes{buffer.bytes().first(image_bytes_)}});
    }
    for (auto& result : space_.PutBatch(puts, kTimeout)) (void)Must(std::move(result));
  }
  // Of them, how many came from the drive.
  int Get(const std::string& name, int first) {
    std::vector<GetRequest> gets;
    for (int i = 0; i < batch(); ++i) {
      gets.push_back({.key = Key(name, first + i),
                      .lease = lease_,
                      .slice = slice_,
                      .target = ImageTarget{buffers_[static_cast<size_t>(i)].bytes()}});
    }
    int from_drive = 0;
    for (auto& result : space_.GetBatch(gets, kTimeout)) {
      from_drive += Must(std::move(result)).tier == Tier::kSsd ? 1 : 0;
    }
    return from_drive;
  }
  // Holds images first … first + count - 1, so that gets find them in memory.
  void Lease(const std::string& name, int count) {
    std::vector<BlockKey> keys;
    for (int i = 0; i < count; ++i) keys.push_back(Key(name, i));
    const MatchResult match =
        Must(space_.Match({.keys = keys, .slices = {&slice_, 1}, .timeout = kTimeout}));
    CAIRN_CHECK(match.block_count == keys.size(), "the leased images do not fit the tier");
    lease_ = match.lease;
  }

 private:
  BlockKey Key(const std::string& name, int number) const {
    const std::string text = absl::StrCat(name, "/", number);
    return space_.OpaqueKey(std::as_bytes(std::span(text)));
  }

  Space& space_;
  const GroupSlice slice_;
  std::vector<std::byte> source_;
  std::vector<Buffer> buffers_;
  uint64_t image_bytes_ = 0;
  LeaseToken lease_{};
};

// --- Reads -------------------------------------------------------------------

// Whether something was written there: zeros of a preallocated file never touch the drive.
bool IsWritten(const std::string& path, off_t at) {
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  uint64_t word = 0;
  return ::pread(file.get(), &word, sizeof(word), at) == sizeof(word) && word != 0;
}

// Reads pieces of the tier's segments as plainly as can be: a thread and a piece of memory each for
// as many at a time as the batch has. Bytes a second.
double ReadSegments(const std::string& tier, uint64_t piece_bytes, int threads, uint64_t bytes) {
  std::vector<std::pair<std::string, off_t>> places;
  for (const auto& entry : fs::directory_iterator(tier + "/segments")) {
    for (uint64_t at = 0; at + piece_bytes <= entry.file_size(); at += piece_bytes) {
      const std::string path = entry.path().string();
      if (IsWritten(path, static_cast<off_t>(at + piece_bytes - sizeof(uint64_t)))) {
        places.emplace_back(path, static_cast<off_t>(at));
      }
    }
  }
  CAIRN_CHECK(!places.empty(), absl::StrCat("no segments in ", tier));
  const size_t count = std::max<size_t>(static_cast<size_t>(threads), bytes / piece_bytes);
  std::atomic<size_t> next{0};
  const auto read = [&] {
    void* const memory =
        ::mmap(nullptr, piece_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CAIRN_CHECK(memory != MAP_FAILED);
    for (size_t i = next++; i < count; i = next++) {
      const auto& [path, at] = places[i * 7919 % places.size()];
      const Fd file(::open(path.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC));
      CAIRN_CHECK(file.is_valid(), path);
      CAIRN_CHECK(::pread(file.get(), memory, piece_bytes, at) ==
                  static_cast<ssize_t>(piece_bytes));
    }
    ::munmap(memory, piece_bytes);
  };
  const double seconds = Seconds([&] {
    std::vector<std::thread> readers;
    for (int i = 0; i < threads; ++i) readers.emplace_back(read);
    for (std::thread& reader : readers) reader.join();
  });
  return static_cast<double>(count * piece_bytes) / seconds;
}

struct ReadRow {
  std::string name;
  std::vector<double> plain, gets, ratios;  // bytes a second, a round each
  double from_drive = 0;                    // share of the gets
};

ReadRow MeasureReads(const std::string& folder, uint32_t layers, int batch,
                     const Options& options) {
  const std::string tier = folder + "/tier_bench_reads";
  fs::remove_all(tier);
  fs::create_directories(tier);
  const uint64_t total_bytes = options.quick ? 64_MiB : 1_GiB;
  // A drive that takes images of 16 MiB: at most 1/256 of it each.
  const Store store(
      {"--host-bytes=256MiB", absl::StrCat("--ssd=", tier, "=8GiB"), "--ssd-scrub-rate=0"});
  const Store::Caller caller = store.Connect();
  Images images(caller, {.layer_count = layers}, batch);
  int count = 0;
  for (; static_cast<uint64_t>(count) * images.image_bytes() < total_bytes; count += batch) {
    images.Put("read", count, true);
  }
  ReadRow row;
  row.name = absl::StrCat(images.image_bytes() >> 10, " KiB, ", batch, " at once");
  int got = 0, from_drive = 0;
  for (int round = 0; round < options.rounds; ++round) {
    std::fprintf(stderr, "\rreads, %s: round %d of %d ", row.name.c_str(), round + 1,
                 options.rounds);
    row.plain.push_back(ReadSegments(tier, layers * 512_KiB, batch, total_bytes));
    const double seconds = Seconds([&] {
      for (int i = 0; i < count; i += batch) from_drive += images.Get("read", i);
    });
    got += count;
    row.gets.push_back(static_cast<double>(count) * static_cast<double>(images.image_bytes()) /
                       seconds);
    row.ratios.push_back(row.gets.back() / row.plain.back());
  }
  std::fprintf(stderr, "\r%60s\r", "");
  row.from_drive = static_cast<double>(from_drive) / got;
  fs::remove_all(tier);
  return row;
}

// --- Hits --------------------------------------------------------------------

constexpr int kLeased = 16;  // images that are asked for, a MiB each
constexpr uint64_t kPutBytesPerS = 64_MiB;

// Puts steadily until told to stop, however long the puts take.
class Writer {
 public:
  explicit Writer(const Store& store)
      : caller_(store.Connect()),
        images_(caller_, {.layer_count = 2}, 1),
        thread_([this] { Run(); }) {}
  ~Writer() {
    is_over_ = true;
    thread_.join();
  }

 private:
  void Run() {
    auto next = std::chrono::steady_clock::now();
    for (int i = 0; !is_over_; ++i) {
      images_.Put("write", i, false);
      next += std::chrono::nanoseconds(1'000'000'000 * images_.image_bytes() / kPutBytesPerS);
      std::this_thread::sleep_until(next);
    }
  }

  const Store::Caller caller_;
  Images images_;
  std::atomic<bool> is_over_{false};
  std::thread thread_;
};

struct HitRow {
  std::string name;
  std::unique_ptr<Store> store = nullptr;
  Store::Caller reader = {};
  std::unique_ptr<Images> images = nullptr;
  std::unique_ptr<Writer> writer = nullptr;    // null: nobody puts
  std::vector<double> p50_s = {}, p99_s = {};  // of gets from memory, a round each
  uint64_t from_drive = 0;                     // gets that are not in these
};

HitRow MakeHits(const std::string& name, const std::vector<std::string>& flags, bool has_writer) {
  HitRow row;
  row.name = name;
  row.store = std::make_unique<Store>(flags);
  row.reader = row.store->Connect();
  row.images = std::make_unique<Images>(row.reader, GroupSlice{.layer_count = 2}, 1);
  for (int i = 0; i < kLeased; ++i) row.images->Put("hit", i, false);
  row.images->Lease("hit", kLeased);
  if (has_writer) row.writer = std::make_unique<Writer>(*row.store);
  return row;
}

void MeasureHits(HitRow& row, double seconds) {
  // While nobody asked for them they may have left memory for the drive.
  for (int i = 0; i < kLeased; ++i) row.images->Get("hit", i);
  std::vector<double> times;
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  for (int i = 0; std::chrono::steady_clock::now() < end; ++i) {
    int from_drive = 0;
    const double time = Seconds([&] { from_drive = row.images->Get("hit", i % kLeased); });
    row.from_drive += static_cast<uint64_t>(from_drive);
    if (from_drive == 0) times.push_back(time);
  }
  CAIRN_CHECK(times.size() > 1000 || seconds < 1, "images that are asked for left memory");
  std::sort(times.begin(), times.end());
  row.p50_s.push_back(times[times.size() / 2]);
  row.p99_s.push_back(times[times.size() * 99 / 100]);
}

// One daemon at a time has a writer, so that the others' rows have the machine to themselves.
std::vector<HitRow> MeasureAllHits(const std::string& folder, const Options& options) {
  const std::string tier = folder + "/tier_bench_hits";
  fs::remove_all(tier);
  fs::create_directories(tier);
  const double seconds = options.quick ? 0.2 : 5;
  // With a budget that is full after ten seconds of writing, so that segments are reclaimed.
  const std::vector<std::string> plain = {"--host-bytes=256MiB"};
  const std::vector<std::string> with_ssd = {
      "--host-bytes=256MiB", absl::StrCat("--ssd=", tier, "=768MiB"), "--ssd-scrub-rate=64MiB"};
  std::vector<HitRow> rows;
  for (int round = 0; round < options.rounds; ++round) {
    std::fprintf(stderr, "\rhits: round %d of %d ", round + 1, options.rounds);
    const auto measure = [&](size_t at, const char* name, const std::vector<std::string>& flags,
                             bool has_writer) {
      HitRow row = MakeHits(name, flags, has_writer);
      // Until it is as it goes on: memory full and, where there is a drive, every segment used.
      if (has_writer && !options.quick) std::this_thread::sleep_for(std::chrono::seconds(15));
      MeasureHits(row, seconds);
      if (rows.size() <= at) rows.push_back({.name = name});
      rows[at].p50_s.push_back(row.p50_s.back());
      rows[at].p99_s.push_back(row.p99_s.back());
      rows[at].from_drive += row.from_drive;
      if (at == 2) {
        std::fprintf(stderr, "(%.0f MB written down, %.0f MB scrubbed) ",
                     row.store->daemon().Metric("cairn_ssd_written_bytes_total") / 1e6,
                     row.store->daemon().Metric("cairn_scrubbed_bytes_total") / 1e6);
      }
    };
    measure(0, "nobody puts", plain, false);
    measure(1, "puts, without a drive", plain, true);
    measure(2, "puts, drive with upkeep, reclaim and scrubber", with_ssd, true);
  }
  std::fprintf(stderr, "\r%80s\r", "");
  fs::remove_all(tier);
  return rows;
}

void Print(const std::vector<ReadRow>& reads, const std::vector<HitRow>& hits,
           const Options& options) {
  std::vector<Figures> figures;
  std::printf("gets from the drive, medians of %d alternated rounds\n", options.rounds);
  std::printf("%-30s %12s %10s %8s %12s\n", "case", "plain GB/s", "get GB/s", "ratio",
              "from drive");
  for (const ReadRow& row : reads) {
    const double plain = Median(row.plain) / 1e9, get = Median(row.gets) / 1e9;
    const double ratio = Median(row.ratios);
    std::printf("%-30s %12.2f %10.2f %8.3f %11.1f%%\n", row.name.c_str(), plain, get, ratio,
                100 * row.from_drive);
    figures.push_back({row.name,
                       {{"plain_gb_per_s", plain},
                        {"get_gb_per_s", get},
                        {"ratio", ratio},
                        {"from_drive", row.from_drive}}});
  }
  std::printf("hits of 1 MiB in memory, one at a time, medians of %d rounds\n", options.rounds);
  std::printf("%-46s %10s %10s %12s\n", "case", "p50 ms", "p99 ms", "not in it");
  for (const HitRow& row : hits) {
    const double p50 = 1000 * Median(row.p50_s), p99 = 1000 * Median(row.p99_s);
    const auto from_drive = static_cast<double>(row.from_drive);
    std::printf("%-46s %10.3f %10.3f %12.0f\n", row.name.c_str(), p50, p99, from_drive);
    figures.push_back({row.name, {{"p50_ms", p50}, {"p99_ms", p99}, {"from_drive", from_drive}}});
  }
  WriteJson(options, "tier", figures);
}

int Main(int argc, char** argv) {
  const Options options = ParseOptions(argc, argv);
  fs::create_directories(options.folder);
  const std::string folder = fs::absolute(options.folder).string();
  std::vector<ReadRow> reads;
  for (const auto& [layers, batch] : {std::pair{2U, 8}, {8U, 4}, {32U, 2}}) {
    reads.push_back(MeasureReads(folder, layers, batch, options));
  }
  Print(reads, MeasureAllHits(folder, options), options);
  return 0;
}

}  // namespace
}  // namespace cairn::bench

int main(int argc, char** argv) { return cairn::bench::Main(argc, argv); }
