// SPDX-License-Identifier: Apache-2.0
// Match of 1,024 keys, alone and beside writers and readers, over an index of 100,000 blocks; and
// of many keys whose blocks came in 64 slices each, with how long it holds the index and what
// readers meanwhile wait.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "base/metric.h"
#include "base/status.h"
#include "base/units.h"
#include "service/index/block_index.h"
#include "tests/bench/bench.h"

namespace cairn::bench {
namespace {

constexpr uint32_t kTokens = 128;
constexpr codecs::Slice kWhole = {0, 32, 0, 8};

proto::BlockKey KeyOf(uint64_t number) {
  std::mt19937_64 random(number);
  proto::BlockKey key;
  for (size_t i = 0; i < key.size(); i += 8) {
    const uint64_t word = random();
    std::memcpy(&key[i], &word, 8);
  }
  return key;
}

// An index that has room for so many blocks of `ranks` images each. Its one tenant may lease half
// of lease_bytes_max, so that is all that the tier holds.
struct EmptyStore {
  EmptyStore(uint64_t blocks, uint64_t ranks, uint64_t capacity_bytes) {
    auto made = HostTier::Make(
        {.capacity_bytes = capacity_bytes, .staging_bytes = 4_MiB, .fault_in = false});
    CAIRN_CHECK_OK(made);
    host = made->get();
    tiers = std::make_unique<Tiers>(*std::move(made));
    index = std::make_unique<BlockIndex>(
        BlockIndex::Options{.blocks_max = blocks + 1024,
                            .images_max = (blocks + 1024) * ranks,
                            .lease_bytes_max = 2 * host->capacity_bytes()},
        *tiers, RealClock::Get());
  }
  std::unique_ptr<Tiers> tiers;
  HostTier* host = nullptr;
  std::unique_ptr<BlockIndex> index;
  std::vector<proto::BlockKey> keys;
};

struct Store : EmptyStore {
  // `ranks` images a block, side by side along the heads.
  Store(uint64_t blocks, uint64_t ranks)
      : EmptyStore(blocks, ranks, std::max(blocks * ranks * 4_KiB * 2, 64_MiB)) {
    for (uint64_t i = 0; i < blocks; ++i) {
      keys.push_back(KeyOf(i));
      for (uint64_t rank = 0; rank < ranks; ++rank) {
        Publish(i, rank, ranks);
      }
    }
  }
  void Publish(uint64_t i, uint64_t rank, uint64_t ranks) {
    codecs::Slice slice = kWhole;
    slice.head_count = static_cast<uint16_t>(slice.head_count / ranks);
    slice.head_first = static_cast<uint16_t>(rank * slice.head_count);
    const bool is_first = i % 1024 == 0;
    NewImage image = {.claim = {.name = {1, keys[i]},
                                .parent = is_first ? proto::BlockKey{} : keys[i - 1],
                                .first_position = (i % 1024) * kTokens,
                                .tokens = kTokens,
                                .group = 0,
                                .slice = slice},
                      .source_bytes = 8192,
                      .copy = {.recipe = codecs::AllRecipes().front(),
                               .extent = *host->Allocate(4000),
                               .side_object = {}}};
    CAIRN_CHECK_OK(index->Publish(std::move(image)));
  }
  MatchQuery Query(uint64_t chain, size_t count, bool wants_lease) const {
    const auto first = keys.begin() + static_cast<ptrdiff_t>(chain * 1024);
    return {.space_id = 1,
            .tokens_per_block = kTokens,
            .keys = {first, first + static_cast<ptrdiff_t>(count)},
            .wanted = {{.group = 0, .slice = kWhole}},
            .wants_lease = wants_lease,
            .session_id = 1,
            .tenant = "bench"};
  }
};

// Blocks of as many images as there may be, in a store of its own.
struct SlicedStore : EmptyStore {
  explicit SlicedStore(uint64_t blocks)
      : EmptyStore(blocks, kRanks, blocks * kRanks * 4_KiB + 64_MiB) {
    for (uint64_t i = 0; i < blocks; ++i) {
      keys.push_back(KeyOf(i));
      for (uint16_t rank = 0; rank < kRanks; ++rank) {
        NewImage image;
        image.claim.name = {1, keys.back()};
        image.claim.tokens = kTokens;
        image.claim.slice = {0, 32, rank, 1};
        image.copy.recipe = codecs::AllRecipes().front();
        image.source_bytes = 8192;
        image.copy.extent = *host->Allocate(4000);
        CAIRN_CHECK_OK(index->Publish(std::move(image)));
      }
    }
  }
  static constexpr uint16_t kRanks = codecs::kImagesPerBlockMax;
};

struct Row {
  std::string name;
  std::vector<double> micros;
};

double Percentile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(share * static_cast<double>(values.size() - 1))];
}

// Time of each of `count` matches of 1,024 keys, on chains at random.
std::vector<double> TimeMatches(Store& store, int count, bool wants_lease) {
  std::mt19937_64 random(7);
  std::vector<double> micros;
  const uint64_t chains = store.keys.size() / 1024;
  for (int i = 0; i < count; ++i) {
    const MatchQuery query = store.Query(random() % chains, 1024, wants_lease);
    absl::StatusOr<MatchAnswer> result = absl::UnknownError("");
    micros.push_back(1e6 * Seconds([&] { result = store.index->Match(query); }));
    CAIRN_CHECK(result.ok() && result->blocks.size() == 1024);
    if (result->lease.has_value()) {
      store.index->Release("bench", {*result->lease});
    }
  }
  return micros;
}

std::vector<double> TimeLookups(Store& store, int count) {
  std::mt19937_64 random(8);
  std::vector<double> micros;
  for (int i = 0; i < count; ++i) {
    const BlockName name = {1, store.keys[random() % store.keys.size()]};
    micros.push_back(1e6 * Seconds([&] {
                       const auto pins = store.index->Lookup(name, 0, kWhole);
                       CAIRN_CHECK(!pins.empty());
                     }));
  }
  return micros;
}

// How long the index was held by those who work in holds.
class Holds final : public MetricSink {
 public:
  explicit Holds(const BlockIndex& index) { index.Report(*this); }
  void AddCounter(std::string_view, std::string_view, MetricLabels, uint64_t) override {}
  void AddGauge(std::string_view, std::string_view, MetricLabels, double) override {}
  void AddHistogram(std::string_view name, std::string_view, MetricLabels,
                    const HistogramSnapshot& value) override {
    if (name == "cairn_index_hold_seconds") {
      seen_ = value;
    }
  }
  // Since `before`.
  void Print(const std::string& name, const Holds& before) const {
    const double count = static_cast<double>(seen_.count - before.seen_.count);
    uint64_t long_ones = 0;
    for (size_t i = 0; i < seen_.counts.size(); ++i) {
      if (i == seen_.bounds.size() || seen_.bounds[i] > 1e-3) {
        long_ones += seen_.counts[i] - before.seen_.counts[i];
      }
    }
    std::printf("%-44s %.0f holds of the index, %.3f ms on average, %llu over 1 ms\n", name.c_str(),
                count, 1e3 * (seen_.sum - before.seen_.sum) / count,
                static_cast<unsigned long long>(long_ones));
  }

 private:
  HistogramSnapshot seen_;
};

// Matches `count` keys while a reader looks others up. The longest look-up tells what a match holds
// the index for, or what the machine is otherwise busy with.
void TimeSlicedMatches(SlicedStore& store, size_t count, int matches, bool wants_lease, Row& match,
                       Row& reader) {
  const Holds before(*store.index);
  MatchQuery query;
  query.space_id = 1;
  query.tokens_per_block = kTokens;
  query.keys = {store.keys.begin(), store.keys.begin() + static_cast<ptrdiff_t>(count)};
  query.wanted = {{.group = 0, .slice = {0, 32, 0, SlicedStore::kRanks}}};
  query.wants_lease = wants_lease;
  query.session_id = 1;
  query.tenant = "bench";
  std::atomic<bool> is_over{false};
  std::thread victim([&] {
    std::mt19937_64 random(9);
    while (!is_over.load(std::memory_order_relaxed)) {
      const BlockName name = {1, store.keys[random() % store.keys.size()]};
      reader.micros.push_back(1e6 * Seconds([&] {
                                const auto pins = store.index->Lookup(name, 0, {0, 32, 7, 1});
                                CAIRN_CHECK(pins.size() == 1);
                              }));
    }
  });
  for (int i = 0; i < matches; ++i) {
    absl::StatusOr<MatchAnswer> result = absl::UnknownError("");
    match.micros.push_back(1e6 * Seconds([&] { result = store.index->Match(query); }));
    CAIRN_CHECK(result.ok() && result->blocks.size() == count);
    if (result->lease.has_value()) {
      store.index->Release("bench", {*result->lease});
    }
  }
  is_over = true;
  victim.join();
  Holds(*store.index).Print(match.name, before);
}

void Print(const std::vector<Row>& rows, const Options& options) {
  std::printf("index of 100,000 blocks, %d rounds\n%-44s %10s %10s %10s\n", options.rounds, "case",
              "p50 us", "p99 us", "max us");
  std::vector<Figures> figures;
  for (const Row& row : rows) {
    const double p50 = Percentile(row.micros, 0.5), p99 = Percentile(row.micros, 0.99);
    std::printf("%-44s %10.2f %10.2f %10.2f\n", row.name.c_str(), p50, p99,
                Percentile(row.micros, 1));
    figures.push_back({row.name, {{"p50_us", p50}, {"p99_us", p99}}});
  }
  WriteJson(options, "index", figures);
}

void Main(const Options& options) {
  const uint64_t blocks = options.quick ? 4096 : 100 * 1024;
  const int matches = options.quick ? 20 : 200;
  Store whole(blocks, 1);
  Store ranked(blocks / 4, 8);
  std::vector<Row> rows = {{"Match 1,024 keys", {}},
                           {"Match 1,024 keys, leased", {}},
                           {"Match 1,024 keys of 8 slices each", {}},
                           {"Match 1,024 keys beside 2 readers", {}},
                           {"Lookup and unpin of one key", {}},
                           {"Match 4,096 keys of 64 slices", {}},
                           {"Lookup beside it", {}},
                           {"Match 4,096 keys of 64 slices, leased", {}},
                           {"Lookup beside it and its release", {}},
                           {"Match 16,100 keys of 64 slices", {}},
                           {"Lookup beside that", {}},
                           {"Match 16,100 keys of 64 slices, leased", {}},
                           {"Lookup beside that and its release", {}}};
  const size_t many = options.quick ? 1024 : 16'100, some = options.quick ? 256 : 4096;
  SlicedStore sliced(many);
  for (int round = 0; round < options.rounds; ++round) {
    const auto add = [&](size_t row, const std::vector<double>& micros) {
      rows[row].micros.insert(rows[row].micros.end(), micros.begin(), micros.end());
    };
    add(0, TimeMatches(whole, matches, false));
    add(1, TimeMatches(whole, matches, true));
    add(2, TimeMatches(ranked, matches / 4, false));
    std::atomic<bool> is_over{false};
    std::vector<std::thread> readers;
    for (int i = 0; i < 2; ++i) {
      readers.emplace_back([&] {
        while (!is_over.load(std::memory_order_relaxed)) {
          TimeLookups(whole, 100);
        }
      });
    }
    add(3, TimeMatches(whole, matches, false));
    is_over = true;
    for (std::thread& reader : readers) {
      reader.join();
    }
    add(4, TimeLookups(whole, matches * 20));
    TimeSlicedMatches(sliced, some, matches / 10, false, rows[5], rows[6]);
    TimeSlicedMatches(sliced, some, matches / 10, true, rows[7], rows[8]);
    TimeSlicedMatches(sliced, many, matches / 40 + 1, false, rows[9], rows[10]);
    TimeSlicedMatches(sliced, many, matches / 40 + 1, true, rows[11], rows[12]);
  }
  Print(rows, options);
}

}  // namespace
}  // namespace cairn::bench

int main(int argc, char** argv) {
  cairn::bench::Main(cairn::bench::ParseOptions(argc, argv));
  return 0;
}
