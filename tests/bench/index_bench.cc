// SPDX-License-Identifier: Apache-2.0
// Match of 1,024 keys, alone and beside writers and readers, over an index of 100,000 blocks.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
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

struct Store {
  // `ranks` images a block, side by side along the heads.
  Store(uint64_t blocks, uint64_t ranks) {
    auto made = HostTier::Make({.capacity_bytes = std::max(blocks * ranks * 4_KiB * 2, 64_MiB),
                                .staging_bytes = 4_MiB,
                                .fault_in = false});
    CAIRN_CHECK_OK(made);
    host = *std::move(made);
    index = std::make_unique<BlockIndex>(
        BlockIndex::Options{.blocks_max = blocks + 1024, .lease_bytes_max = host->capacity_bytes()},
        *host, RealClock::Get());
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
                      .recipe = codecs::AllRecipes().front(),
                      .source_bytes = 8192,
                      .extent = *host->Allocate(4000),
                      .side_object = {}};
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
  std::unique_ptr<HostTier> host;
  std::unique_ptr<BlockIndex> index;
  std::vector<proto::BlockKey> keys;
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
                           {"Lookup and unpin of one key", {}}};
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
  }
  Print(rows, options);
}

}  // namespace
}  // namespace cairn::bench

int main(int argc, char** argv) {
  cairn::bench::Main(cairn::bench::ParseOptions(argc, argv));
  return 0;
}
