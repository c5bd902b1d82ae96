// SPDX-License-Identifier: Apache-2.0
// The index with millions of blocks that are on the drive only: what a block takes of memory, how
// long the index takes to know them all again, and how long it is held while Match, promotion,
// eviction from memory, reclaim of segments and recovery go on together.
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/metric.h"
#include "base/status.h"
#include "tests/bench/bench.h"
#include "tests/bench/index_scale_store.h"

namespace cairn::bench {
namespace {

struct ScaleOptions {
  Options common;
  uint64_t records = 1'000'000;
  uint16_t tokens = 16;
};

uint64_t ResidentBytes() {
  std::ifstream file("/proc/self/statm");
  uint64_t all = 0, resident = 0;
  file >> all >> resident;
  return resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

uint64_t AllocatedBytes() {
  const struct mallinfo2 info = mallinfo2();
  return info.uordblks + info.hblkhd;
}

// Microseconds of each call of one kind.
class Timings {
 public:
  void Add(double seconds) { micros_.push_back(1e6 * seconds); }
  double At(double share) {
    if (micros_.empty()) {
      return 0;
    }
    std::sort(micros_.begin(), micros_.end());
    return micros_[static_cast<size_t>(share * static_cast<double>(micros_.size() - 1))];
  }
  Figures Print(const std::string& name) {
    const double p50 = At(0.5), p99 = At(0.99), most = At(1);
    std::printf("%-44s %9zu %10.2f %10.2f %10.2f\n", name.c_str(), micros_.size(), p50, p99, most);
    return {name, {{"p50_us", p50}, {"p99_us", p99}, {"max_us", most}}};
  }

 private:
  std::vector<double> micros_;
};

void MatchOne(Store& store, uint64_t chain, bool wants_lease, Timings& timings) {
  const MatchQuery query = store.QueryOf(chain, wants_lease);
  absl::StatusOr<MatchAnswer> answer = absl::UnknownError("");
  timings.Add(Seconds([&] { answer = store.index->Match(query); }));
  CAIRN_CHECK_OK(answer);
  if (answer->lease.has_value()) {
    store.index->Release("bench", {*answer->lease});
  }
}

std::vector<Figures> TimeMatches(Store& store, const ScaleOptions& options) {
  const uint64_t chains = options.records * 9 / 10 / store.chain_blocks;
  Timings plain, leased;
  std::mt19937_64 random(1);
  for (int i = 0; i < (options.common.quick ? 20 : 500); ++i) {
    MatchOne(store, random() % chains, false, plain);
    MatchOne(store, random() % chains, true, leased);
  }
  return {plain.Print("Match 1,024 keys, nothing else"),
          leased.Print("Match 1,024 keys, leased, nothing else")};
}

// Recovery of the last tenth, Match, promotion with eviction, and reclaim of the first twentieth,
// at once. Reclaim's calls are timed by the thread's clock: others on the core do not count.
std::vector<Figures> TimeTogether(Store& store, const ScaleOptions& options) {
  const uint64_t known = options.records * 9 / 10, reclaimed = options.records / 20;
  const uint64_t chains = known / store.chain_blocks;
  std::atomic<int> busy{2};
  double batch = 0;
  Timings match, leased, promotions, reclaims, looks;
  std::thread recovers([&] {
    batch = store.Recover(known, options.records).longest_batch;
    --busy;
  });
  std::thread reclaimer([&] {
    for (uint64_t number = 0; number < reclaimed; ++number) {
      const ImageFacts facts = store.FactsOf(number);
      const uint64_t offset = ModelTier::OffsetOf(number);
      reclaims.Add(CpuSeconds(
          [&] { store.index->EvictCopy(TierId::kSsd, facts, offset, EvictionReason::kCapacity); }));
    }
    --busy;
  });
  std::thread promoter([&] {
    std::mt19937_64 random(2);
    while (busy > 0) {
      const uint64_t number = random() % known;
      promotions.Add(CpuSeconds([&] { store.Promote(number); }));
    }
  });
  std::thread reader([&] {
    std::mt19937_64 random(3);
    while (busy > 0) {
      const proto::BlockKey key = KeyOf(random() % known);
      looks.Add(Seconds([&] { store.index->Contains(store.space_id, {key}, {}); }));
    }
  });
  std::mt19937_64 random(4);
  while (busy > 0) {
    MatchOne(store, random() % chains, false, match);
    MatchOne(store, random() % chains, true, leased);
  }
  for (std::thread* thread : {&recovers, &reclaimer, &promoter, &reader}) {
    thread->join();
  }
  std::printf("%-44s longest batch of 1,024: %.2f ms of the thread\n", "recovery beside all that",
              1e3 * batch);
  return {match.Print("Match 1,024 keys, beside all"),
          leased.Print("Match 1,024 keys, leased, beside all"),
          promotions.Print("promotion (thread's time), beside all"),
          reclaims.Print("reclaim of one (thread's time), beside all"),
          looks.Print("Contains of one key, beside all")};
}

class Holds final : public MetricSink {
 public:
  void AddCounter(std::string_view, std::string_view, MetricLabels, uint64_t) override {}
  void AddGauge(std::string_view, std::string_view, MetricLabels, double) override {}
  void AddHistogram(std::string_view name, std::string_view, MetricLabels,
                    const HistogramSnapshot& value) override {
    if (name != "cairn_index_hold_seconds") {
      return;
    }
    std::printf("holds of the index by calls that look at many, %llu in all:",
                static_cast<unsigned long long>(value.count));
    for (size_t i = 0; i < value.counts.size(); ++i) {
      if (value.counts[i] > 0) {
        std::printf(" %s %g ms: %llu;", i < value.bounds.size() ? "up to" : "over",
                    1e3 * value.bounds[std::min(i, value.bounds.size() - 1)],
                    static_cast<unsigned long long>(value.counts[i]));
      }
    }
    std::printf("\n");
  }
};

void Main(const ScaleOptions& options) {
  const uint64_t resident = ResidentBytes(), allocated = AllocatedBytes();
  Store store(options.records, options.tokens);
  const uint64_t known = options.records * 9 / 10;
  Store::Recovery recovery;
  const double seconds = Seconds([&] { recovery = store.Recover(0, known); });
  malloc_trim(0);
  CAIRN_CHECK(store.index->figures().image_count == known);
  const auto per_image = [&](uint64_t now, uint64_t before) {
    return static_cast<double>(now - before) / static_cast<double>(known);
  };
  const double resident_each = per_image(ResidentBytes(), resident);
  const double allocated_each = per_image(AllocatedBytes(), allocated);
  std::printf("%llu images of chains of %llu blocks of %u tokens, on the drive only\n",
              static_cast<unsigned long long>(known),
              static_cast<unsigned long long>(store.chain_blocks), store.tokens);
  std::printf("bytes an image, the drive's own map included: %.1f resident, %.1f allocated\n",
              resident_each, allocated_each);
  std::printf(
      "recovery: %.2f s, of them %.2f of the thread in the index; longest batch of 1,024: %.2f "
      "ms\n",
      seconds, recovery.all, 1e3 * recovery.longest_batch);
  std::printf("%-44s %9s %10s %10s %10s\n", "case", "calls", "p50 us", "p99 us", "max us");
  std::vector<Figures> rows = {{"recovery",
                                {{"resident_bytes_each", resident_each},
                                 {"allocated_bytes_each", allocated_each},
                                 {"seconds", seconds},
                                 {"index_cpu_seconds", recovery.all},
                                 {"longest_batch_ms", 1e3 * recovery.longest_batch}}}};
  for (Figures& row : TimeMatches(store, options)) {
    rows.push_back(std::move(row));
  }
  for (Figures& row : TimeTogether(store, options)) {
    rows.push_back(std::move(row));
  }
  Holds holds;
  store.index->Report(holds);
  WriteJson(options.common, "index_scale", rows);
}

// Takes --records and --tokens out of the arguments; the others are bench.h's.
ScaleOptions ParseScale(int argc, char** argv) {
  ScaleOptions options;
  std::vector<char*> others;
  for (int i = 0; i < argc; ++i) {
    const std::string_view flag = argv[i];
    if (flag == "--records" && i + 1 < argc) {
      options.records = std::strtoull(argv[++i], nullptr, 10);
    } else if (flag == "--tokens" && i + 1 < argc) {
      options.tokens = static_cast<uint16_t>(std::atoi(argv[++i]));
    } else {
      others.push_back(argv[i]);
    }
  }
  options.common = ParseOptions(static_cast<int>(others.size()), others.data());
  if (options.common.quick) {
    options.records = std::min<uint64_t>(options.records, 50'000);
  }
  const bool is_valid = options.tokens >= 16 && options.tokens <= 256 &&
                        options.records >= 2 * kChainTokens / options.tokens;
  if (!is_valid) {
    std::fprintf(stderr, "--tokens: 16 to 256; --records: at least two chains\n");
    std::exit(2);
  }
  return options;
}

}  // namespace
}  // namespace cairn::bench

int main(int argc, char** argv) {
  cairn::bench::Main(cairn::bench::ParseScale(argc, argv));
  return 0;
}
