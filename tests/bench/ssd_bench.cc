// SPDX-License-Identifier: Apache-2.0
// The engines that move bytes of drives beside fio: the same file, sizes, depth and memory in huge
// pages, at random places, in turns. The yardstick of each case is fio in the same round.
//
//   cairn_ssd_bench [--folder DIR] …   the file lies there; default build/bench

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/check.h"
#include "base/file.h"
#include "base/status.h"
#include "base/units.h"
#include "service/tier/ssd/io_engine.h"
#include "tests/bench/bench.h"

namespace cairn::bench {
namespace {

struct Pattern {
  const char* name;
  const char* fio;  // its --rw
  int reads_percent;
  // Writes may fill their budget while reads are there, as fio's do; else as the tier has it.
  bool is_unbounded;
};
constexpr Pattern kPatterns[] = {{"read", "randread", 100, true},
                                 {"write", "randwrite", 0, true},
                                 {"mixed", "randrw", 50, true},
                                 {"mixed, writes held back", "randrw", 50, false}};

struct Load {
  Pattern pattern;
  uint64_t bytes;  // of a transfer
  int depth;
};

struct Figure {
  double bytes_per_s = 0;
  double cpu_s_per_gb = 0;
};

struct Drive {
  std::string path;
  uint64_t file_bytes = 0;
  double seconds = 0;  // of a run
  Fd file;
  std::byte* memory = nullptr;  // of all slots, in huge pages
};

double CpuSecondsOfProcess() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// Keeps `depth` transfers with the engine until told to stop.
class Runner {
 public:
  Runner(IoEngine& engine, const Drive& drive, const Load& load)
      : engine_(engine), drive_(drive), load_(load) {
    for (int i = 0; i < load.depth; ++i) {
      slots_.push_back({.number = i, .random = std::mt19937_64(static_cast<uint64_t>(i))});
    }
  }
  Figure Run() {
    const double cpu_before = CpuSecondsOfProcess();
    const double seconds = Seconds([this] {
      left_ = load_.depth;
      for (Slot& slot : slots_) Next(slot);
      std::this_thread::sleep_for(std::chrono::duration<double>(drive_.seconds));
      is_over_ = true;
      for (int left = left_; left > 0; left = left_) left_.wait(left);
    });
    const auto bytes = static_cast<double>(moved_bytes_.load());
    return {bytes / seconds, (CpuSecondsOfProcess() - cpu_before) / (bytes / 1e9)};
  }

 private:
  struct Slot {
    int number;
    std::mt19937_64 random;
  };
  void Next(Slot& slot) {
    if (is_over_) {
      --left_;
      left_.notify_all();
      return;
    }
    const bool is_read = slot.random() % 100 < static_cast<uint64_t>(load_.pattern.reads_percent);
    std::byte* const memory = drive_.memory + static_cast<uint64_t>(slot.number) * load_.bytes;
    engine_.Submit({.kind = is_read ? IoKind::kRead : IoKind::kWrite,
                    .fd = drive_.file.get(),
                    .offset = slot.random() % (drive_.file_bytes / load_.bytes) * load_.bytes,
                    .parts = {std::span(memory, load_.bytes)}},
                   [this, &slot](absl::Status status) {
                     CAIRN_CHECK_OK(status);
                     moved_bytes_ += load_.bytes;
                     Next(slot);
                   });
  }

  IoEngine& engine_;
  const Drive& drive_;
  const Load& load_;
  std::vector<Slot> slots_;
  std::atomic<bool> is_over_{false};
  std::atomic<int> left_{0};
  std::atomic<uint64_t> moved_bytes_{0};
};

Figure RunEngine(IoChoice choice, const Drive& drive, const Load& load) {
  IoLimits limits;
  if (load.pattern.is_unbounded) limits.inflight_beside_reads_bytes = limits.write_inflight_bytes;
  const auto engine = MakeIoEngine(choice, limits);
  CAIRN_CHECK_OK(engine);
  return Runner(**engine, drive, load).Run();
}

// Fields of fio's terse output, version 3.
constexpr size_t kReadKib = 5, kReadKibPerS = 6, kWriteKib = 46, kWriteKibPerS = 47;
constexpr size_t kUserPercent = 87, kSystemPercent = 88, kRunMs = 8, kWriteRunMs = 49;

Figure RunFio(const char* engine, const Drive& drive, const Load& load) {
  // glibc puts its large blocks into huge pages when asked to.
  const std::string command = absl::StrCat(
      "GLIBC_TUNABLES=glibc.malloc.hugetlb=1 fio --minimal --name=x --direct=1 --fallocate=none ",
      "--norandommap --randrepeat=0 --time_based --filename='", drive.path,
      "' --size=", drive.file_bytes, " --ioengine=", engine, " --bs=", load.bytes,
      " --iodepth=", load.depth, " --runtime=", static_cast<int>(drive.seconds * 1000),
      "ms --rw=", load.pattern.fio,
      load.pattern.reads_percent % 100 == 0
          ? ""
          : absl::StrCat(" --rwmixread=", load.pattern.reads_percent));
  std::string output;
  FILE* const fio = popen(command.c_str(), "r");
  CAIRN_CHECK(fio != nullptr);
  char part[4096];
  while (std::fgets(part, sizeof(part), fio) != nullptr) output += part;
  CAIRN_CHECK(pclose(fio) == 0, command);
  const std::vector<std::string> fields = absl::StrSplit(output, ';');
  CAIRN_CHECK(fields.size() > kSystemPercent && fields[0] == "3", output);
  const auto number = [&fields](size_t field) {
    std::string text = fields[field];
    if (!text.empty() && text.back() == '%') text.pop_back();
    double value = 0;
    CAIRN_CHECK(absl::SimpleAtod(text, &value), text);
    return value;
  };
  const double bytes = 1024 * (number(kReadKib) + number(kWriteKib));
  const double seconds = std::max(number(kRunMs), number(kWriteRunMs)) / 1000;
  const double cpu_seconds = (number(kUserPercent) + number(kSystemPercent)) / 100 * seconds;
  return {1024 * (number(kReadKibPerS) + number(kWriteKibPerS)), cpu_seconds / (bytes / 1e9)};
}

// The file, all of whose blocks are written, as a tier's segments are after their first pass.
Drive MakeDrive(const Options& options, uint64_t memory_bytes) {
  Drive drive;
  drive.path = absl::StrCat(options.folder, "/ssd_bench.data");
  drive.file_bytes = options.quick ? 64_MiB : 1_GiB;
  drive.seconds = options.quick ? 0.1 : 1;
  std::filesystem::create_directories(options.folder);
  drive.file = Fd(::open(drive.path.c_str(), O_RDWR | O_CREAT | O_DIRECT | O_CLOEXEC, 0600));
  CAIRN_CHECK(drive.file.is_valid(), absl::StrCat(drive.path, ": ", std::strerror(errno)));
  void* const memory = ::mmap(nullptr, memory_bytes + 2_MiB, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CAIRN_CHECK(memory != MAP_FAILED);
  const uintptr_t first = (reinterpret_cast<uintptr_t>(memory) + 2_MiB - 1) / 2_MiB * 2_MiB;
  drive.memory = reinterpret_cast<std::byte*>(first);
  ::madvise(drive.memory, memory_bytes, MADV_HUGEPAGE);
  std::mt19937_64 random;
  for (uint64_t at = 0; at < memory_bytes; at += sizeof(uint64_t)) {
    const uint64_t word = random();
    std::memcpy(drive.memory + at, &word, sizeof(word));
  }
  for (uint64_t at = 0; at < drive.file_bytes; at += 4_MiB) {
    CAIRN_CHECK(::pwrite(drive.file.get(), drive.memory, 4_MiB, static_cast<off_t>(at)) == 4_MiB);
  }
  CAIRN_CHECK(::fdatasync(drive.file.get()) == 0);
  return drive;
}

struct Row {
  std::string name;
  std::vector<double> rates, ratios, cpus;  // a round each
};

void Measure(const Drive& drive, const Load& load, const Options& options, const char* fio_engine,
             std::vector<Row>& rows) {
  std::vector<std::pair<std::string, std::function<Figure()>>> sides;
  if (fio_engine != nullptr) {
    sides.emplace_back("fio", [&] { return RunFio(fio_engine, drive, load); });
  }
  if (MakeIoEngine(IoChoice::kUring, {}).ok()) {
    sides.emplace_back("uring", [&] { return RunEngine(IoChoice::kUring, drive, load); });
  }
  sides.emplace_back("threads", [&] { return RunEngine(IoChoice::kThreads, drive, load); });
  const size_t first = rows.size();
  for (const auto& [name, run] : sides) {
    rows.push_back({absl::StrCat(load.pattern.name, ", ", FormatBytes(load.bytes), " x ",
                                 load.depth, ", ", name),
                    {},
                    {},
                    {}});
  }
  for (int round = 0; round < options.rounds; ++round) {
    std::fprintf(stderr, "\r%s: round %d of %d %10s", rows[first].name.c_str(), round + 1,
                 options.rounds, "");
    for (size_t i = 0; i < sides.size(); ++i) {
      const Figure figure = sides[i].second();
      Row& row = rows[first + i];
      row.rates.push_back(figure.bytes_per_s);
      row.ratios.push_back(figure.bytes_per_s / rows[first].rates.back());
      row.cpus.push_back(figure.cpu_s_per_gb);
    }
  }
  std::fprintf(stderr, "\r%80s\r", "");
}

void Print(const std::vector<Row>& rows, const Options& options, bool has_fio) {
  std::printf("drive: medians of %d alternated rounds; ratios to %s\n", options.rounds,
              has_fio ? "fio in the same round" : "the first engine: fio is not installed");
  std::printf("%-46s %8s %8s %10s\n", "case", "GB/s", "ratio", "CPU-s/GB");
  std::vector<Figures> figures;
  for (const Row& row : rows) {
    const double rate = Median(row.rates) / 1e9, ratio = Median(row.ratios);
    const double cpu = Median(row.cpus);
    std::printf("%-46s %8.2f %8.3f %10.3f\n", row.name.c_str(), rate, ratio, cpu);
    figures.push_back({row.name, {{"gb_per_s", rate}, {"ratio", ratio}, {"cpu_s_per_gb", cpu}}});
  }
  WriteJson(options, "drive", figures);
}

int Main(int argc, char** argv) {
  const Options options = ParseOptions(argc, argv);
  std::vector<Load> loads;
  for (const Pattern& pattern : kPatterns) {
    for (const auto& [bytes, depth] :
         {std::pair{256_KiB, 16}, {1_MiB, 8}, {4_MiB, 4}, {16_MiB, 2}}) {
      loads.push_back({pattern, bytes, depth});
    }
  }
  const Drive drive = MakeDrive(options, 32_MiB);
  const bool has_fio = std::system("fio --version > /dev/null 2>&1") == 0;
  const bool has_uring = MakeIoEngine(IoChoice::kUring, {}).ok();
  std::vector<Row> rows;
  for (const Load& load : loads) {
    const std::string name = absl::StrCat(load.pattern.name, ", ", FormatBytes(load.bytes));
    if (name.find(options.only) == std::string::npos) continue;
    Measure(drive, load, options, !has_fio ? nullptr : has_uring ? "io_uring" : "libaio", rows);
  }
  Print(rows, options, has_fio);
  ::unlink(drive.path.c_str());
  return 0;
}

}  // namespace
}  // namespace cairn::bench

int main(int argc, char** argv) { return cairn::bench::Main(argc, argv); }
