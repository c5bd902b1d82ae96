// SPDX-License-Identifier: Apache-2.0
// Runs a fuzz harness over files. Each argument is a file or a folder to search for files. Every
// preset except `fuzz` links it in place of libFuzzer, so that each test run replays the corpus.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes);

namespace {

void Replay(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::vector<char> text((std::istreambuf_iterator<char>(file)), {});
  // Copy the input into a buffer of exactly its size, so that a sanitizer detects a read past its
  // end.
  const std::vector<std::uint8_t> input(text.begin(), text.end());
  LLVMFuzzerTestOneInput(input.data(), input.size());
}

}  // namespace

int main(int argc, char** argv) {
  std::size_t count = 0;
  for (int i = 1; i < argc; ++i) {
    const std::filesystem::path path(argv[i]);
    if (std::filesystem::is_regular_file(path)) {
      Replay(path);
      ++count;
    } else if (std::filesystem::is_directory(path)) {
      for (const auto& found : std::filesystem::recursive_directory_iterator(path)) {
        if (found.is_regular_file()) {
          Replay(found.path());
          ++count;
        }
      }
    } else {
      std::fprintf(stderr, "%s: not a file or a folder\n", argv[i]);
      return 2;
    }
  }
  std::printf("replayed %zu inputs\n", count);
  return count == 0 ? 1 : 0;
}
