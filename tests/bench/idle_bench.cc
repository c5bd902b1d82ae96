// SPDX-License-Identifier: Apache-2.0
// What a cairnd costs that nobody asks anything: the CPU time of all its threads, as a share of one
// core, with a client connected whose data connection is open.

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "client/cpp/client.h"
#include "client/cpp/space.h"
#include "tests/bench/bench.h"
#include "tests/e2e/daemon/daemon_process.h"
#include "tests/e2e/daemon/raw_client.h"

namespace cairn::bench {
namespace {

struct Row {
  std::string name;
  std::vector<double> percents;  // of a core, a round each
};

Row Measure(Wire wire, const Options& options) {
  const auto daemon = DaemonProcess::Start(WireFlags(wire));
  CAIRN_CHECK_OK(daemon);
  ConnectOptions connect;
  connect.control = (*daemon)->endpoint("control");
  connect.connections = 1;
  if (wire == Wire::kUcx) connect.data = (*daemon)->endpoint("data");
  const auto client = Client::Connect(connect);
  CAIRN_CHECK_OK(client);
  const std::chrono::seconds settling(options.quick ? 0 : 3), round(options.quick ? 1 : 10);
  std::this_thread::sleep_for(settling);
  Row row{absl::StrCat("cairnd, a client over ", WireName(wire)), {}};
  for (int i = 0; i < options.rounds; ++i) {
    std::fprintf(stderr, "\r%s: round %d of %d ", row.name.c_str(), i + 1, options.rounds);
    const double before = ProcessCpuSeconds((*daemon)->process().pid());
    const double took_seconds = Seconds([&] { std::this_thread::sleep_for(round); });
    const double cpu_seconds = ProcessCpuSeconds((*daemon)->process().pid()) - before;
    row.percents.push_back(100 * cpu_seconds / took_seconds);
  }
  std::fprintf(stderr, "\r%*s\r", 60, "");
  return row;
}

void Print(const std::vector<Row>& rows, const Options& options) {
  std::printf("idle: CPU of all threads, medians of %d rounds\n", options.rounds);
  std::printf("%-44s %16s\n", "case", "per cent of a core");
  for (const Row& row : rows) std::printf("%-44s %16.3f\n", row.name.c_str(), Median(row.percents));
  std::vector<Figures> figures;
  for (const Row& row : rows)
    figures.push_back({row.name, {{"core_percent", Median(row.percents)}}});
  WriteJson(options, "idle", figures);
}

int Main(int argc, char** argv) {
  const Options options = ParseOptions(argc, argv);
  std::vector<Row> rows;
  for (const Wire wire : kWires) rows.push_back(Measure(wire, options));
  Print(rows, options);
  return 0;
}

}  // namespace
}  // namespace cairn::bench

int main(int argc, char** argv) { return cairn::bench::Main(argc, argv); }
