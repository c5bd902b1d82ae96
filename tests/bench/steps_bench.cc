// SPDX-License-Identifier: Apache-2.0
// Where the time of one put and of one get goes, in microseconds: C++ SDK, one block of 1 or 4 MiB
// at a time, over `local`, with the recipes raw and exact. tests/bench/steps.py adds what Python
// takes.
//
// The client's steps are measured around the calls of its connection, the daemon's are its own
// metrics (cairn_put_step_seconds, cairn_get_step_seconds). Means, not medians, so that the steps
// sum up to the whole.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "client/cpp/client.h"
#include "client/cpp/dial.h"
#include "client/cpp/space.h"
#include "codecs/checksum/checksum.h"
#include "tests/bench/bench.h"
#include "tests/bench/sdk.h"
#include "tests/e2e/daemon/daemon_process.h"

namespace cairn::bench {
namespace {

constexpr uint32_t kHeads = 8, kDim = 64, kTokens = 128;
constexpr uint64_t kLayerBytes = uint64_t{2} * kHeads * kTokens * kDim * 2;  // K and V, bf16
constexpr size_t kArrays = 16;
constexpr absl::Duration kTimeout = absl::Seconds(30);

// When the request of the last call was made and its reply had come.
struct Moments {
  absl::Time made, come;
};

class TimedConnection final : public transport::Connection {
 public:
  TimedConnection(std::unique_ptr<transport::Connection> inner, Moments& moments)
      : inner_(std::move(inner)), moments_(moments) {}
  absl::StatusOr<std::unique_ptr<transport::Buffer>> Allocate(size_t bytes) override {
    return inner_->Allocate(bytes);
  }
  absl::Status Start(transport::Call* call) override {
    moments_.made = MonotonicNow();
    return inner_->Start(call);
  }
  void Poll(absl::Time until) override {
    inner_->Poll(until);
    moments_.come = MonotonicNow();
  }
  bool broken() const override { return inner_->broken(); }
  bool is_mapped() const override { return inner_->is_mapped(); }
  void Unmap() override { inner_->Unmap(); }
  int window() const override { return inner_->window(); }

 private:
  const std::unique_ptr<transport::Connection> inner_;
  Moments& moments_;
};

// Seconds of all requests of a kind so far, by step.
class DaemonSteps {
 public:
  DaemonSteps(const DaemonProcess& daemon, const std::string& verb) {
    const Scrape scrape = daemon.Metrics();
    const std::string steps = absl::StrCat("cairn_", verb, "_step_seconds_sum{step=\"");
    for (const auto& [series, value] : scrape) {
      if (series.starts_with(steps)) {
        seconds_[series.substr(steps.size(), series.rfind('"') - steps.size())] = value;
      }
      if (series.starts_with("cairn_data_request_seconds_sum{") &&
          series.find(absl::StrCat("op=\"", verb, "\"")) != series.npos) {
        seconds_["all"] += value;
      }
    }
  }
  double Since(const DaemonSteps& before, const std::string& step) const {
    const auto now = seconds_.find(step), then = before.seconds_.find(step);
    return (now == seconds_.end() ? 0 : now->second) -
           (then == before.seconds_.end() ? 0 : then->second);
  }

 private:
  std::map<std::string, double> seconds_;
};

using Steps = std::vector<std::pair<std::string, double>>;  // microseconds

class Blocks {
 public:
  Blocks(DaemonProcess& daemon, const std::string& recipe, uint32_t mib, size_t count)
      : daemon_(daemon), count_(count) {
    ConnectOptions options;
    options.control = daemon.endpoint("control");
    options.dialer =
        [this](
            const DialRequest& request) -> absl::StatusOr<std::unique_ptr<transport::Connection>> {
      CAIRN_ASSIGN_OR_RETURN(std::unique_ptr<transport::Connection> inner, DialTransport(request));
      return std::make_unique<TimedConnection>(std::move(inner), moments_);
    };
    client_ = Must(Client::Connect(options));
    const auto layers = static_cast<uint32_t>((uint64_t{mib} << 20) / kLayerBytes);
    const auto identity =
        Identity(absl::StrCat("steps-", recipe, "-", mib), {layers, kHeads, kDim, kTokens});
    space_ = Must(client_->OpenSpace(identity, recipe, kTimeout));
    for (size_t i = 0; i < kArrays; ++i) {
      sources_.push_back(NormalSource(uint64_t{mib} << 20, i + 1));
      targets_.emplace_back(sources_[0].size());
    }
    for (size_t i = 0; i < count; ++i) {
      const std::string name = absl::StrCat(i);
      keys_.push_back(space_->OpaqueKey(std::as_bytes(std::span(name))));
    }
  }

  // Puts, gets and deletes every block.
  void Run(Steps* put, Steps* get) {
    *put =
        Measure("put", {"admit", "receive", "queue", "encode", "place", "publish"}, [&](size_t i) {
          (void)Must(space_->Put({.key = keys_[i], .source = Views(sources_, i)}, kTimeout));
        });
    *get = Measure("get", {"lookup", "queue", "transcode"}, [&](size_t i) {
      (void)Must(space_->Get({.key = keys_[i], .target = Views(targets_, i)}, kTimeout));
    });
    const size_t last = (count_ - 1) % kArrays;
    CAIRN_CHECK(targets_[last] == sources_[last]);
    CAIRN_CHECK(Must(space_->Delete(keys_, kTimeout)) == count_);
  }

  // Yardsticks: a pass over the same arrays, in time of the core.
  Steps Passes() {
    const auto each = [&](const auto& pass) {
      const double seconds = CpuSeconds([&] {
        for (size_t i = 0; i < count_; ++i) pass(sources_[i % kArrays], targets_[i % kArrays]);
      });
      return Micros(seconds);
    };
    uint32_t crc = 0;
    return {{"memcpy", each([](const auto& source, auto& target) {
               std::memcpy(target.data(), source.data(), source.size());
             })},
            {"CRC", each([&](const auto& source, auto&) { crc ^= codecs::Crc32c(source); })},
            {"copy and CRC in one pass", each([&](const auto& source, auto& target) {
               crc ^= codecs::CopyCrc32c(0, target.data(), source);
             })}};
  }

 private:
  using Arrays = std::vector<std::vector<std::byte>>;

  double Micros(double seconds) const { return seconds * 1e6 / static_cast<double>(count_); }

  static PlaneViews Views(Arrays& arrays, size_t i) {
    constexpr int64_t kToken = kDim * 2, kHead = kTokens * kToken, kLayer = kHeads * kHead;
    std::vector<std::byte>& bytes = arrays[i % kArrays];
    PlaneViews views;
    views.k = {.data = bytes.data(), .stride_bytes = {kLayer, kHead, kToken, 2}};
    views.v = {.data = bytes.data() + bytes.size() / 2, .stride_bytes = {kLayer, kHead, kToken, 2}};
    return views;
  }

  template <typename Call>
  Steps Measure(const std::string& verb, const std::vector<std::string>& daemon_steps,
                const Call& call) {
    const DaemonSteps before(daemon_, verb);
    absl::Duration prepare, away, finish;
    for (size_t i = 0; i < count_; ++i) {
      const absl::Time begun = MonotonicNow();
      call(i);
      prepare += moments_.made - begun;
      away += moments_.come - moments_.made;
      finish += MonotonicNow() - moments_.come;
    }
    const DaemonSteps after(daemon_, verb);
    const double in_daemon = after.Since(before, "all");
    Steps steps = {
        {"client: before the request", Micros(absl::ToDoubleSeconds(prepare))},
        {"socket and wake-ups on both sides", Micros(absl::ToDoubleSeconds(away) - in_daemon)}};
    double known = 0;
    for (const std::string& step : daemon_steps) {
      const double seconds = after.Since(before, step);
      known += seconds;
      steps.push_back({"daemon: " + step, Micros(seconds)});
    }
    steps.push_back({"daemon: between the steps", Micros(in_daemon - known)});
    steps.push_back({"client: after the reply", Micros(absl::ToDoubleSeconds(finish))});
    steps.push_back({"all", Micros(absl::ToDoubleSeconds(prepare + away + finish))});
    return steps;
  }

  // Elements of a normal distribution as bf16.
  static std::vector<std::byte> NormalSource(uint64_t bytes, uint64_t seed) {
    std::vector<std::byte> source(bytes);
    std::mt19937 random(static_cast<uint32_t>(seed));
    std::normal_distribution<float> normal;
    for (size_t i = 0; i < bytes; i += 2) {
      const float value = normal(random);
      std::memcpy(&source[i], reinterpret_cast<const std::byte*>(&value) + 2, 2);
    }
    return source;
  }

  DaemonProcess& daemon_;
  const size_t count_;
  Moments moments_;
  std::unique_ptr<Client> client_;
  std::unique_ptr<Space> space_;
  Arrays sources_, targets_;
  std::vector<BlockKey> keys_;
};

// A column of a table, over all rounds.
struct Column {
  std::string name;
  std::vector<std::string> steps;
  std::vector<std::vector<double>> micros;  // by step

  void Add(const Steps& round) {
    steps.resize(round.size());
    micros.resize(round.size());
    for (size_t i = 0; i < round.size(); ++i) {
      steps[i] = round[i].first;
      micros[i].push_back(round[i].second);
    }
  }
};

void PrintTable(const char* title, const std::vector<Column>& columns,
                std::vector<Figures>* figures) {
  std::printf("%-36s", title);
  for (const Column& column : columns) std::printf(" %12s", column.name.c_str());
  std::printf("\n");
  for (size_t i = 0; i < columns[0].steps.size(); ++i) {
    std::printf("  %-34s", columns[0].steps[i].c_str());
    for (const Column& column : columns) std::printf(" %12.0f", Median(column.micros[i]));
    std::printf("\n");
  }
  for (const Column& column : columns) {
    Figures& figure = figures->emplace_back(Figures{absl::StrCat(title, " ", column.name), {}});
    for (size_t i = 0; i < column.steps.size(); ++i) {
      figure.figures.push_back({column.steps[i].c_str(), Median(column.micros[i])});
    }
  }
}

int Main(int argc, char** argv) {
  const Options options = ParseOptions(argc, argv);
  const uint64_t bytes = options.quick ? uint64_t{16} << 20 : uint64_t{256} << 20;
  const std::unique_ptr<DaemonProcess> daemon =
      Must(DaemonProcess::Start({"--host-bytes=512MiB", "--map=on"}));
  std::vector<std::unique_ptr<Blocks>> cases;
  std::vector<Column> puts, gets, passes;
  for (const char* recipe : {"raw", "exact"}) {
    for (const uint32_t mib : {1, 4}) {
      const std::string name = absl::StrCat(recipe, " ", mib, " MiB");
      cases.push_back(std::make_unique<Blocks>(*daemon, recipe, mib, (bytes >> 20) / mib));
      for (std::vector<Column>* columns : {&puts, &gets, &passes}) {
        columns->push_back({name, {}, {}});
      }
    }
  }
  for (int round = -1; round < options.rounds; ++round) {  // the first warms up
    for (size_t i = 0; i < cases.size(); ++i) {
      Steps put, get;
      cases[i]->Run(&put, &get);
      const Steps pass = cases[i]->Passes();
      if (round < 0) continue;
      puts[i].Add(put);
      gets[i].Add(get);
      passes[i].Add(pass);
    }
  }
  std::printf("steps of one call: C++ SDK over local, microseconds, medians of %d rounds\n",
              options.rounds);
  std::vector<Figures> figures;
  PrintTable("put", puts, &figures);
  PrintTable("get", gets, &figures);
  PrintTable("one pass over the arrays", passes, &figures);
  WriteJson(options, "steps", figures);
  return 0;
}

}  // namespace
}  // namespace cairn::bench

int main(int argc, char** argv) { return cairn::bench::Main(argc, argv); }
