// SPDX-License-Identifier: Apache-2.0
// Codes KV with a profile, offline: what `cairn:bits` makes of it, images and all.
//
//   profile_codec PROFILE BITS LEVEL TOKENS FROM TO
//
// FROM holds blocks of TOKENS tokens of the profile's whole group as source payload in bf16, one
// after another from position 0 on; TO gets what comes back. BITS are in tenths. Prints the bytes
// of all images, and the seconds of encoding and of decoding.

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <vector>

#include "codecs/backends.h"
#include "codecs/decode.h"
#include "codecs/encode.h"
#include "codecs/step_strips.h"
#include "proto/side_object.h"

namespace {

using namespace cairn::codecs;  // NOLINT(google-build-using-namespace): a program of one file

using Bytes = std::vector<std::byte>;
using Clock = std::chrono::steady_clock;

bool ReadFile(const char* path, Bytes* bytes) {
  std::ifstream file(path, std::ios::binary);
  std::vector<char> read{std::istreambuf_iterator<char>(file), {}};
  const auto* begin = reinterpret_cast<const std::byte*>(read.data());
  bytes->assign(begin, begin + read.size());
  return file.good() || file.eof();
}

bool ReadNumber(const std::string& text, uint32_t* number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *number);
  return error == std::errc() && end == text.data() + text.size();
}

int Fail(const char* what, Error error = Error::kOk) {
  std::fprintf(stderr, "profile_codec: %s: %s\n", what, std::string(Name(error)).c_str());
  return 1;
}

struct Totals {
  uint64_t image_bytes = 0;
  double encode_seconds = 0;
  double decode_seconds = 0;
};

double SecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// `block` becomes what comes back of it.
Error CodeBlock(const ImageSpec& spec, const Profile& profile, Bytes* image,
                std::span<std::byte> block, Totals* totals) {
  const Backend& backend = *CpuBackends().front();
  const auto begin = Clock::now();
  size_t bytes = 0;
  Error error = Encode(backend, spec, block, *image, &bytes, {.profile = &profile});
  if (error != Error::kOk) return error;
  totals->encode_seconds += SecondsSince(begin);
  totals->image_bytes += bytes;
  ImageView view;
  error = ParseImage(std::span(*image).first(bytes), &view);
  if (error == Error::kOk) error = VerifyTiles(view);
  if (error != Error::kOk) return error;
  std::fill(block.begin(), block.end(), std::byte{0});
  const auto parsed = Clock::now();
  error = Decode(backend, view, spec.slice, block, {.profile = &profile});
  totals->decode_seconds += SecondsSince(parsed);
  return error;
}

}  // namespace

int main(int argc, char** argv) {
  uint32_t bits = 0;
  uint32_t level = 0;
  uint32_t tokens = 0;
  Bytes profile_bytes;
  Bytes blocks;
  if (argc != 7 || !ReadNumber(argv[2], &bits) || !ReadNumber(argv[3], &level) ||
      !ReadNumber(argv[4], &tokens) || tokens > kTokensPerBlockMax) {
    return Fail("usage: PROFILE BITS LEVEL TOKENS FROM TO");
  }
  if (!ReadFile(argv[1], &profile_bytes)) return Fail(argv[1]);
  if (!ReadFile(argv[5], &blocks)) return Fail(argv[5]);
  Profile profile;
  Error error = ParseProfile(profile_bytes, &profile);
  if (error != Error::kOk) return Fail(argv[1], error);
  ImageSpec spec;
  const bool is_kv = profile.planes() == 2;
  spec.tile = {is_kv ? GroupKind::kKv : GroupKind::kLatent, DType::kBf16, profile.Dim(0),
               is_kv ? profile.Dim(1) : 0};
  spec.slice = {0, static_cast<uint16_t>(profile.layers()), 0,
                static_cast<uint16_t>(profile.heads())};
  spec.tokens = static_cast<uint16_t>(tokens);
  error = SetCairn(profile, cairn::proto::SideObjectId(profile_bytes), bits, level, &spec);
  if (error != Error::kOk) return Fail("the profile has no such rate", error);
  uint64_t block_bytes = 0;
  uint64_t image_bytes = 0;
  error = SourceBytes(spec.tile, spec.slice, tokens, &block_bytes);
  if (error == Error::kOk) error = MaxImageBytes(spec, &image_bytes);
  if (error != Error::kOk) return Fail("blocks of this profile", error);
  if (blocks.size() % block_bytes != 0) return Fail("FROM is not whole blocks");
  Bytes image(image_bytes);
  Totals totals;
  for (uint64_t at = 0; at < blocks.size(); at += block_bytes) {
    spec.first_position = at / block_bytes * tokens;
    error = CodeBlock(spec, profile, &image, std::span(blocks).subspan(at, block_bytes), &totals);
    if (error != Error::kOk) return Fail("coding", error);
  }
  std::ofstream out(argv[6], std::ios::binary);
  out.write(reinterpret_cast<const char*>(blocks.data()),
            static_cast<std::streamsize>(blocks.size()));
  if (!out.flush()) return Fail(argv[6]);
  std::printf("%llu %.3f %.3f\n", static_cast<unsigned long long>(totals.image_bytes),
              totals.encode_seconds, totals.decode_seconds);
  return 0;
}
