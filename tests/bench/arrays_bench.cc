// SPDX-License-Identifier: Apache-2.0
// What a user of the C++ SDK sees: KV arrays in, KV arrays out, over every transport, with the
// recipes raw, exact and cairn:2.3, one block at a time and 16 at once, and what it costs in CPU
// time of the client and the daemon together. tests/bench/arrays.py measures the same in Python.
//
// Every round runs every case once, each with a memcpy of the same arrays beside it.

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "client/cpp/client.h"
#include "client/cpp/space.h"
#include "tests/bench/bench.h"
#include "tests/bench/sdk.h"
#include "tests/e2e/daemon/daemon_process.h"
#include "tests/e2e/daemon/raw_client.h"

namespace cairn::bench {
namespace {

constexpr uint32_t kHeads = 8, kDim = 64, kTokens = 128;
constexpr uint64_t kLayerBytes = uint64_t{2} * kHeads * kTokens * kDim * 2;  // K and V, bf16
constexpr uint64_t kBatch = 16;
constexpr absl::Duration kTimeout = absl::Seconds(30);

// K and V of a block: [layers, heads, tokens, dim] each, elements of a normal distribution as bf16.
struct Arrays {
  explicit Arrays(uint32_t layers) : bytes(layers * kLayerBytes) {}
  void Fill(uint64_t seed) {
    std::mt19937 random(static_cast<uint32_t>(seed));
    std::normal_distribution<float> normal;
    for (size_t i = 0; i < bytes.size(); i += 2) {
      const float value = normal(random);
      std::memcpy(&bytes[i], reinterpret_cast<const std::byte*>(&value) + 2, 2);
    }
  }
  PlaneViews views() {
    constexpr int64_t kToken = kDim * 2, kHead = kTokens * kToken, kLayer = kHeads * kHead;
    PlaneViews views;
    views.k = {.data = bytes.data(), .stride_bytes = {kLayer, kHead, kToken, 2}};
    views.v = {.data = bytes.data() + bytes.size() / 2, .stride_bytes = {kLayer, kHead, kToken, 2}};
    return views;
  }
  std::vector<std::byte> bytes;
};

struct Measured {
  std::vector<double> rates, ratios, cpu;  // bytes/s, over memcpy, CPU-seconds per GB
};

// One space of one daemon, and the blocks that a round puts and gets.
class Load {
 public:
  Load(Client& client, pid_t daemon, const std::string& recipe, uint32_t mib, uint64_t total_bytes)
      : daemon_(daemon), layers_(static_cast<uint32_t>((uint64_t{mib} << 20) / kLayerBytes)) {
    const auto identity =
        Identity(absl::StrCat("arrays-", recipe, "-", mib), {layers_, kHeads, kDim, kTokens});
    space_ = Must(client.OpenSpace(identity, recipe, kTimeout));
    for (uint64_t i = 0; i < kBatch; ++i) {
      sources_.emplace_back(layers_).Fill(i + 1);
      targets_.emplace_back(layers_);
    }
    for (uint64_t i = 0; i < total_bytes / sources_[0].bytes.size(); ++i) {
      const std::string name = absl::StrCat(i);
      keys_.push_back(space_->OpaqueKey(std::as_bytes(std::span(name))));
    }
    if (recipe.starts_with("cairn")) AwaitProfile();
  }

  double bytes() const { return static_cast<double>(keys_.size() * sources_[0].bytes.size()); }
  bool is_lossless = true;

  // Appends a round's figures. Blocks are put `at_once` at a time, read back and deleted.
  void Round(uint64_t at_once, Measured& put, Measured& get) {
    const double memcpy_rate =
        bytes() / Seconds([&] {
          for (size_t i = 0; i < keys_.size(); ++i) {
            std::memcpy(targets_[i % kBatch].bytes.data(), sources_[i % kBatch].bytes.data(),
                        sources_[0].bytes.size());
          }
        });
    for (Arrays& target : targets_)
      std::fill(target.bytes.begin(), target.bytes.end(), std::byte{});
    Measure(put, memcpy_rate, [&] { PutAll(at_once); });
    Measure(get, memcpy_rate, [&] { GetAll(at_once); });
    const size_t last = (keys_.size() - 1) % kBatch;
    CAIRN_CHECK(!is_lossless || targets_[last].bytes == sources_[last].bytes);
    CAIRN_CHECK(Must(space_->Delete(keys_, kTimeout)) == keys_.size());
  }

 private:
  void Measure(Measured& measured, double memcpy_rate, const std::function<void()>& run) {
    const auto cpu = [&] { return ProcessCpuSeconds(getpid()) + ProcessCpuSeconds(daemon_); };
    const double cpu_before = cpu();
    const double rate = bytes() / Seconds(run);
    measured.rates.push_back(rate);
    measured.ratios.push_back(rate / memcpy_rate);
    measured.cpu.push_back((cpu() - cpu_before) / (bytes() / 1e9));
  }

  // The daemon mines a profile of the first blocks; what comes later is coded with it.
  void AwaitProfile() {
    is_lossless = false;
    PutAll(kBatch);
    for (int tries = 0; Must(space_->ListSideObjects(kTimeout)).empty(); ++tries) {
      CAIRN_CHECK(tries < 600, "no profile was mined within a minute");
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    (void)Must(space_->Delete(keys_, kTimeout));
  }

  void PutAll(uint64_t at_once) {
    for (size_t first = 0; first < keys_.size(); first += at_once) {
      std::vector<PutRequest> puts;
      for (size_t i = first; i < std::min(keys_.size(), first + at_once); ++i) {
        puts.push_back({.key = keys_[i], .source = sources_[i % kBatch].views()});
      }
      if (puts.size() == 1) {
        (void)Must(space_->Put(puts[0], kTimeout));
        continue;
      }
      for (auto& result : space_->PutBatch(puts, kTimeout)) (void)Must(std::move(result));
    }
  }
  void GetAll(uint64_t at_once) {
    for (size_t first = 0; first < keys_.size(); first += at_once) {
      std::vector<GetRequest> gets;
      for (size_t i = first; i < std::min(keys_.size(), first + at_once); ++i) {
        gets.push_back({.key = keys_[i], .target = targets_[i % kBatch].views()});
      }
      if (gets.size() == 1) {
        (void)Must(space_->Get(gets[0], kTimeout));
        continue;
      }
      for (auto& result : space_->GetBatch(gets, kTimeout)) (void)Must(std::move(result));
    }
  }

  const pid_t daemon_;
  const uint32_t layers_;
  std::unique_ptr<Space> space_;
  std::vector<Arrays> sources_, targets_;
  std::vector<BlockKey> keys_;
};

struct Row {
  std::string name;
  Load* load = nullptr;
  uint64_t at_once = 1;
  Measured put, get;
};

void PrintRows(const std::vector<Row>& rows, const Options& options) {
  std::printf("arrays: C++ SDK, medians of %d alternated rounds\n%-32s %26s   %26s\n",
              options.rounds, "", "put", "get");
  std::printf("%-32s %8s %8s %8s   %8s %8s %8s\n", "case", "GB/s", "/memcpy", "CPU-s/GB", "GB/s",
              "/memcpy", "CPU-s/GB");
  std::vector<Figures> figures;
  for (const Row& row : rows) {
    std::printf("%-32s", row.name.c_str());
    Figures& figure = figures.emplace_back(Figures{row.name, {}});
    const std::pair<const Measured*, std::array<const char*, 3>> parts[] = {
        {&row.put, {"put_gb_per_s", "put_ratio", "put_cpu_s_per_gb"}},
        {&row.get, {"get_gb_per_s", "get_ratio", "get_cpu_s_per_gb"}}};
    for (const auto& [measured, names] : parts) {
      const double values[] = {Median(measured->rates) / 1e9, Median(measured->ratios),
                               Median(measured->cpu)};
      std::printf(" %8.2f %8.3f %8.2f  ", values[0], values[1], values[2]);
      for (size_t i = 0; i < 3; ++i) figure.figures.push_back({names[i], values[i]});
    }
    std::printf("\n");
  }
  WriteJson(options, "arrays", figures);
}

int Main(int argc, char** argv) {
  const Options options = ParseOptions(argc, argv);
  const uint64_t total_bytes = options.quick ? uint64_t{32} << 20 : uint64_t{256} << 20;
  std::vector<std::unique_ptr<DaemonProcess>> daemons;
  std::vector<std::unique_ptr<Client>> clients;
  std::vector<std::unique_ptr<Load>> loads;
  std::vector<Row> rows;
  std::vector<std::pair<Wire, bool>> ways = {{Wire::kLocal, true}};
  for (const Wire wire : kWires) ways.push_back({wire, false});
  for (const auto& [wire, is_mapped] : ways) {
    std::vector<std::string> flags = WireFlags(wire);
    flags.push_back("--host-bytes=2GiB");
    flags.push_back(is_mapped ? "--map=on" : "--map=off");
    DaemonProcess& daemon = *daemons.emplace_back(Must(DaemonProcess::Start(flags)));
    ConnectOptions connect;
    connect.control = daemon.endpoint("control");
    if (wire == Wire::kUcx) connect.data = daemon.endpoint("data");
    Client& client = *clients.emplace_back(Must(Client::Connect(connect)));
    for (const char* recipe : {"raw", "exact", "cairn:2.3"}) {
      for (const uint32_t mib : {1, 4}) {
        const pid_t pid = daemon.process().pid();
        Load& load =
            *loads.emplace_back(std::make_unique<Load>(client, pid, recipe, mib, total_bytes));
        for (const uint64_t at_once : {uint64_t{1}, kBatch}) {
          rows.push_back({absl::StrCat(WireName(wire), is_mapped ? " mapped " : " ", recipe, " ",
                                       mib, " MiB, ", at_once, " at once"),
                          &load,
                          at_once,
                          {},
                          {}});
        }
      }
    }
  }
  for (int round = -1; round < options.rounds; ++round) {  // the first warms up
    std::fprintf(stderr, "\rround %d of %d ", round + 1, options.rounds);
    for (Row& row : rows) {
      Measured put, get;
      const bool counts = round >= 0;
      row.load->Round(row.at_once, counts ? row.put : put, counts ? row.get : get);
    }
  }
  std::fprintf(stderr, "\r                    \r");
  PrintRows(rows, options);
  return 0;
}

}  // namespace
}  // namespace cairn::bench

int main(int argc, char** argv) { return cairn::bench::Main(argc, argv); }
