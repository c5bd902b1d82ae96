// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the benchmarks share: alternated rounds, medians, a table and a JSON file.
//
// A rate alone says little on a machine that others use, so each is quoted over a yardstick
// measured in the same round: every round runs every case once, and the ratio is the median of the
// rounds' ratios.

#include <sys/types.h>
#include <time.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace cairn::bench {

struct Options {
  int rounds = 5;
  bool quick = false;  // small sizes: shows that it runs, measures nothing
  std::string json_path;
  bool counts_cpu_time = false;        // of a bench of one thread
  std::string only;                    // cases whose names contain it, and the first, the yardstick
  std::string folder = "build/bench";  // of what is to lie on a drive
};

inline Options ParseOptions(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    const bool has_value = i + 1 < argc;
    if (flag == "--quick") {
      options.quick = true;
    } else if (flag == "--rounds" && has_value) {
      options.rounds = std::max(1, std::atoi(argv[++i]));
    } else if (flag == "--json" && has_value) {
      options.json_path = argv[++i];
    } else if (flag == "--only" && has_value) {
      options.only = argv[++i];
    } else if (flag == "--folder" && has_value) {
      options.folder = argv[++i];
    } else {
      std::fprintf(stderr,
                   "usage: %s [--rounds N] [--quick] [--only TEXT] [--folder DIR] [--json FILE]\n",
                   argv[0]);
      std::exit(flag == "--help" ? 0 : 2);
    }
  }
  return options;
}

inline double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

// Seconds that `run` takes.
inline double Seconds(const std::function<void()>& run) {
  const auto start = std::chrono::steady_clock::now();
  run();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Seconds of a core that `run` takes in this thread: others on the same core do not count.
inline double CpuSeconds(const std::function<void()>& run) {
  const auto now = [] {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) / 1e9;
  };
  const double start = now();
  run();
  return now() - start;
}

// CPU time of the live threads of a process. Threads that have ended are not counted.
inline double ProcessCpuSeconds(pid_t pid) {
  uint64_t sum_ns = 0;
  const std::string tasks = "/proc/" + std::to_string(pid) + "/task";
  for (const auto& task : std::filesystem::directory_iterator(tasks)) {
    std::ifstream file(task.path() / "schedstat");
    uint64_t ns = 0;
    file >> ns;
    sum_ns += ns;
  }
  return static_cast<double>(sum_ns) / 1e9;
}

struct Case {
  std::string name;
  std::function<void(uint64_t piece)> run;  // moves a piece of `bytes` of source
  double bytes = 0;
  uint64_t pieces = 1;                 // of the same size, timed one by one
  std::function<void()> prepare = {};  // before the pieces of a round, untimed
  std::vector<double> rates = {};      // bytes per second, a round each
  std::vector<double> ratios = {};     // over the yardstick of the same round
  double best = 0;                     // of all pieces
};

// Runs every case once a round; the first is the yardstick of the others.
inline void RunRounds(std::vector<Case>& cases, const Options& options) {
  const int rounds = options.rounds;
  const auto is_left_out = [&](const Case& c) {
    return c.name.find(options.only) == std::string::npos;
  };
  cases.erase(std::remove_if(cases.begin() + 1, cases.end(), is_left_out), cases.end());
  const auto prepare = [](const Case& c) {
    if (c.prepare) c.prepare();
  };
  for (Case& c : cases) {  // warm
    prepare(c);
    for (uint64_t i = 0; i < c.pieces; ++i) c.run(i);
  }
  for (int round = 0; round < rounds; ++round) {
    std::fprintf(stderr, "\rround %d of %d ", round + 1, rounds);
    for (Case& c : cases) {
      prepare(c);
      double all = 0;
      for (uint64_t i = 0; i < c.pieces; ++i) {
        const auto piece = [&] { c.run(i); };
        const double seconds = options.counts_cpu_time ? CpuSeconds(piece) : Seconds(piece);
        all += seconds;
        c.best = std::max(c.best, c.bytes / static_cast<double>(c.pieces) / seconds);
      }
      c.rates.push_back(c.bytes / all);
    }
    for (Case& c : cases) c.ratios.push_back(c.rates.back() / cases.front().rates.back());
  }
  std::fprintf(stderr, "\r                    \r");
}

// What one case came to, by names of figures.
struct Figures {
  std::string name;
  std::vector<std::pair<const char*, double>> figures;
};

// Writes {"title", "rounds", "cases": [{"name", figures…}…]} where options name a file. Names are
// plain text.
inline void WriteJson(const Options& options, const char* title, const std::vector<Figures>& rows) {
  if (options.json_path.empty()) return;
  std::ofstream file(options.json_path);
  file << "{\"title\": \"" << title << "\", \"rounds\": " << options.rounds << ", \"cases\": [";
  for (size_t i = 0; i < rows.size(); ++i) {
    file << (i == 0 ? "\n" : ",\n") << "  {\"name\": \"" << rows[i].name << '"';
    for (const auto& [name, value] : rows[i].figures) file << ", \"" << name << "\": " << value;
    file << '}';
  }
  file << "\n]}\n";
  if (!file.flush()) {
    std::fprintf(stderr, "%s: %s\n", options.json_path.c_str(), std::strerror(errno));
    std::exit(1);
  }
}

// Medians, and the best piece's rate over that of the yardstick: what a core gives that nobody
// disturbs, since a piece of a millisecond now and then finds it alone where a round does not.
inline void Print(const std::vector<Case>& cases, const Options& options, const char* title) {
  std::printf("%s, medians of %d alternated rounds; yardstick: %s\n", title, options.rounds,
              cases.front().name.c_str());
  std::printf("%-44s %10s %8s %8s\n", "case", "GB/s", "ratio", "best");
  std::vector<Figures> rows;
  for (const Case& c : cases) {
    const double rate = Median(c.rates) / 1e9;
    const double ratio = Median(c.ratios);
    const double best_ratio = c.best / cases.front().best;
    std::printf("%-44s %10.2f %8.3f %8.3f\n", c.name.c_str(), rate, ratio, best_ratio);
    rows.push_back({c.name, {{"gb_per_s", rate}, {"ratio", ratio}, {"best", best_ratio}}});
  }
  WriteJson(options, title, rows);
}

}  // namespace cairn::bench
