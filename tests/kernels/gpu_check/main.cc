// SPDX-License-Identifier: Apache-2.0
// Whether kernels give the CPU's bytes on a device, and how fast: conformance, then a table.
//
// - gpu_check                    both, in less than eight minutes
// - gpu_check --small            both, of images so small that figures mean nothing
// - gpu_check --sanitize         conformance, then each case once, small: for compute-sanitizer
// - gpu_check --seconds N        both, in less than that
// - gpu_check --gtest_filter=…   less of the conformance
//
// Its exit status is 0, or 1 where bytes differ or CUDA fails.
// Without a device it says `unavailable: …`, and exits with status 77.
#include <gtest/gtest.h>
#include <unistd.h>

#include <charconv>
#include <csignal>
#include <cstdio>
#include <string>
#include <string_view>

#include "tests/kernels/device/device.h"
#include "tests/kernels/device/device_bytes.h"
#include "tests/kernels/gpu_check/bench.h"
#include "tests/kernels/gpu_check/table.h"

namespace cairn::kernels {
namespace {

constexpr int kUnavailable = 77;
constexpr int kUsage = 2;
constexpr size_t kGuardBytes = 256;

struct Options {
  bool is_small = false, is_sanitized = false;
  unsigned seconds_max = 480;
  std::string command = "gpu_check";
};

bool ParseSeconds(std::string_view text, Options* options) {
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), options->seconds_max);
  return error == std::errc{} && end == text.data() + text.size() && options->seconds_max != 0;
}

// False where there is an option that is none.
bool Parse(int argc, char** argv, Options* options) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == "--small") {
      options->is_small = true;
    } else if (word == "--sanitize") {
      options->is_sanitized = true;
    } else if (word == "--seconds" && i + 1 < argc && ParseSeconds(argv[i + 1], options)) {
      ++i;
    } else {
      std::fprintf(stderr, "unknown option %s\n", argv[i]);
      return false;
    }
    options->command += " " + std::string(word);
  }
  return true;
}

// The layers, heads and blocks of an 8B model; or what an emulated device does in a second.
Scale ScaleOf(const Options& options, uint64_t free_bytes) {
  if (options.is_small || options.is_sanitized) {
    return {.layers = 2,
            .heads = 2,
            .tokens = 40,
            .dim = 32,
            .images = 3,
            .batches = {1, 2},
            .copy_bytes = size_t{1} << 20,
            .rounds = options.is_sanitized ? 0U : 1U};
  }
  Scale scale{.layers = 32,
              .heads = 8,
              .tokens = 128,
              .dim = 128,
              .images = 64,
              .batches = {1, 8, 64},
              .copy_bytes = size_t{1} << 30,
              .rounds = 7};
  // Two caches, images to decode and encoded ones, slots; and the copy's.
  constexpr uint64_t kImageBytes = uint64_t{17} << 20;
  while (scale.images > 8 && 6 * scale.images * kImageBytes + 2 * scale.copy_bytes > free_bytes) {
    scale.images /= 2;
    scale.batches.back() = scale.images;
    scale.copy_bytes /= 2;
  }
  return scale;
}

// Ends the program when its time is up: a kernel may wait for ever.
void StartTimer(unsigned seconds) {
  std::signal(SIGALRM, [](int) {
    constexpr std::string_view kText = "failed: time is up\n";
    const ssize_t written = write(STDOUT_FILENO, kText.data(), kText.size());
    _exit(written < 0 ? 2 : 1);
  });
  alarm(seconds);
}

// Runs all tests as they are launched by default, and again with one block a launch: on a large
// device few blocks have a second task else.
class BlocksOfRounds final : public testing::EmptyTestEventListener {
 public:
  static constexpr int kRounds = 2;

 private:
  void OnTestIterationStart(const testing::UnitTest&, int round) override {
    device::SetBlocks(round == 0 ? device::Blocks::kMany : device::Blocks::kOne);
  }
  void OnTestIterationEnd(const testing::UnitTest& tests, int round) override {
    device::SetBlocks(device::Blocks::kMany);
    if (round != 0 && tests.Failed()) std::puts("a test failed with one block a launch");
  }
};

bool RunConformance(Conformance* found) {
  testing::GTEST_FLAG(brief) = true;
  testing::GTEST_FLAG(fail_fast) = true;  // a device that faulted does nothing more
  testing::GTEST_FLAG(repeat) = BlocksOfRounds::kRounds;
  testing::UnitTest& all = *testing::UnitTest::GetInstance();
  all.listeners().Append(new BlocksOfRounds);
  if (RUN_ALL_TESTS() != 0) return false;
  found->tests = all.successful_test_count();
  for (int i = 0; i < all.total_test_suite_count(); ++i) {
    const testing::TestSuite& suite = *all.GetTestSuite(i);
    for (int j = 0; j < suite.total_test_count(); ++j) {
      const testing::TestInfo& test = *suite.GetTestInfo(j);
      // As the fixture of attention notes it.
      for (int at = 0; at < test.result()->test_property_count(); ++at) {
        if (test.result()->GetTestProperty(at).key() != std::string_view("refused")) continue;
        found->refused.push_back(std::string(suite.name()) + "." + test.name());
      }
    }
  }
  return true;
}

int Main(int argc, char** argv) {
  const auto start = std::chrono::steady_clock::now();
  testing::InitGoogleTest(&argc, argv);
  Options options;
  if (!Parse(argc, argv, &options)) return kUsage;
  const device::Description& found = device::Find();
  if (found.name.empty()) {
    std::puts(found.unavailable.c_str());
    return kUnavailable;
  }
  // Under compute-sanitizer it takes what it takes.
  if (!options.is_sanitized) StartTimer(options.seconds_max);
  // compute-sanitizer sees what guards would hide.
  DeviceBytes::SetGuard(options.is_sanitized ? 0 : kGuardBytes);
  Conformance conformance;
  if (!RunConformance(&conformance)) {
    std::puts("conformance failed: nothing is timed");
    return 1;
  }
  const Scale scale = ScaleOf(options, found.free_bytes);
  // A recipe takes seconds.
  const Deadline deadline = start + std::chrono::seconds(options.seconds_max) * 3 / 4;
  const Measured measured = RunBench(scale, deadline);
  if (!measured.fault.empty()) {
    std::printf("failed: %s\n", measured.fault.c_str());
    return 1;
  }
  if (options.is_sanitized) {
    std::printf("%s: %s\nThe benchmark ran once. %s\n", found.name.c_str(),
                SummaryOf(conformance).c_str(), RefusalsOf(measured).c_str());
  } else {
    std::fputs(TableOf(found, options.command, conformance, scale, measured).c_str(), stdout);
  }
  return 0;
}

}  // namespace
}  // namespace cairn::kernels

int main(int argc, char** argv) { return cairn::kernels::Main(argc, argv); }
