// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the tests that replay golden vectors share: files, and the sources that manifests name.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "codecs/checksum/checksum.h"
#include "codecs/image/image.h"
#include "tests/support/codec_calls.h"
#include "tests/support/hostile_float.h"

namespace cairn::codecs {

inline const std::filesystem::path kFolder = CAIRN_GOLDEN_FOLDER;

inline Bytes ReadFile(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
  const auto* begin = reinterpret_cast<const std::byte*>(bytes.data());
  return {begin, begin + bytes.size()};
}

inline uint32_t Hex(const std::string& text) {
  return static_cast<uint32_t>(std::stoul(text, nullptr, 16));
}

// Of the image of a source that is kept, where one is.
inline std::filesystem::path KeptPath(const std::string& folder, const std::string& source,
                                      std::string recipe) {
  std::erase(recipe, ':');
  std::replace(recipe.begin(), recipe.end(), '/', '-');
  return kFolder / folder / (source + "." + recipe + ".img");
}

// Calls visit(first word, rest of the line) for the lines of folder/manifest.txt, until a fatal
// failure. Returns how many there were.
template <typename Visit>
int ForEachLine(const std::string& folder, Visit visit) {
  std::ifstream manifest(kFolder / folder / "manifest.txt");
  EXPECT_TRUE(manifest) << kFolder;
  int count = 0;
  for (std::string text; !testing::Test::HasFatalFailure() && std::getline(manifest, text);
       ++count) {
    std::istringstream line(text);
    std::string what;
    line >> what;
    visit(what, line);
  }
  return count;
}

struct Source {
  std::string name;
  ImageSpec spec;  // all but the recipe
  Bytes bytes;
};

// Of what follows the word `source` in a manifest.
inline Source LoadSource(std::istringstream& line) {
  Source source;
  uint32_t kind = 0;
  uint32_t dtype = 0;
  size_t bytes = 0;
  std::string crc;
  ImageSpec& spec = source.spec;
  line >> source.name >> kind >> dtype >> spec.slice.layer_count >> spec.slice.head_count >>
      spec.tokens >> spec.tile.k_dim >> spec.tile.v_dim >> spec.first_position >> bytes >> crc;
  spec.tile.kind = static_cast<GroupKind>(kind);
  spec.tile.dtype = static_cast<DType>(dtype);
  spec.slice.layer_first = 2;
  spec.slice.head_first = 1;
  spec.group = 3;
  for (size_t i = 0; i < spec.space.size(); ++i) {
    spec.space[i] = static_cast<uint8_t>(i);
    spec.key[i] = static_cast<uint8_t>(32 + i);
  }
  source.bytes = ReadFile(kFolder / "image" / (source.name + ".bin"));
  EXPECT_EQ(source.bytes.size(), bytes);
  EXPECT_EQ(Crc32c(source.bytes), Hex(crc));
  return source;
}

}  // namespace cairn::codecs
