// SPDX-License-Identifier: Apache-2.0
#include "codecs/backend/self_test.h"

#include <array>
#include <cstring>
#include <iterator>
#include <memory>
#include <span>
#include <vector>

#include "codecs/backend/backend_operation.h"
#include "codecs/backend/hot_tile.h"
#include "codecs/backend/reference/small_norm.h"
#include "codecs/backend/self_test_samples.h"
#include "codecs/backend/step_tile.h"
#include "codecs/checksum/checksum.h"
#include "codecs/numbers/float_guard.h"
#include "codecs/numbers/math.h"
#include "codecs/numbers/mixed.h"
#include "codecs/pack/dense.h"

namespace cairn::codecs {
namespace self_test {
namespace {

// The output of a backend's operation, for comparison.
class Result {
 public:
  void Add(const void* bytes, size_t count) {
    const auto* first = static_cast<const uint8_t*>(bytes);
    bytes_.insert(bytes_.end(), first, first + count);
  }
  void Add(const Buffer& buffer) { Add(buffer.data(), buffer.size()); }
  bool operator==(const Result&) const = default;
  [[nodiscard]] uint32_t crc() const { return Crc32c(std::as_bytes(std::span(bytes_))); }

 private:
  Buffer bytes_;
};

struct Rows {
  uint64_t words[kRowWords] = {};
};

AffineTile TileOf(DType dtype, uint8_t bits, bool is_per_channel) {
  AffineTile tile{};
  tile.tokens = kTokens;
  tile.dim = kDim;
  tile.group = is_per_channel ? kGroupTokens : kGroupChannels;
  tile.dtype = dtype;
  tile.bits = bits;
  return tile;
}

Rows RowsOf(const Samples& samples, size_t d) {
  Rows rows;
  samples.inputs_of->select_rows(TileOf(kDTypes[d], 8, true), samples.elements[d].data(),
                                 rows.words);
  return rows;
}

void TrySelectRows(const Backend& backend, const Samples& samples, Result* result) {
  for (size_t d = 0; d < kDTypes.size(); ++d) {
    Rows rows;
    OperationOf<&Backend::select_rows>(backend)(TileOf(kDTypes[d], 8, true),
                                                samples.elements[d].data(), rows.words);
    result->Add(&rows, sizeof(rows));
  }
}

// Calls visit(tile, index of the dtype, codes, params) for every width.
template <typename Visit>
void ForEachAffine(bool is_per_channel, Visit visit) {
  for (size_t d = 0; d < kDTypes.size(); ++d) {
    for (const uint8_t bits : std::array<uint8_t, 3>{8, 4, 2}) {
      const AffineTile tile = TileOf(kDTypes[d], bits, is_per_channel);
      const uint64_t groups = is_per_channel ? uint64_t{2} * kDim : uint64_t{2} * kTokens;
      Buffer codes(uint64_t{kTokens} * CodeRowBytes(kDim, bits));
      Buffer params(groups * sizeof(AffineParams));
      visit(tile, d, &codes, &params);
    }
  }
}

void TryEncodePerChannel(const Backend& backend, const Samples& samples, Result* result) {
  ForEachAffine(true, [&](AffineTile tile, size_t d, Buffer* codes, Buffer* params) {
    for (const bool is_clipped : {false, true}) {
      tile.is_clipped = is_clipped;
      const bool is_coded = OperationOf<&Backend::encode_per_channel>(backend)(
          tile, samples.elements[d].data(), RowsOf(samples, d).words, codes->data(),
          params->data());
      result->Add(&is_coded, sizeof(is_coded));
      if (!is_coded) continue;
      result->Add(*codes);
      result->Add(*params);
    }
  });
}

void TryEncodePerToken(const Backend& backend, const Samples& samples, Result* result) {
  ForEachAffine(false, [&](AffineTile tile, size_t d, Buffer* codes, Buffer* params) {
    for (const bool is_clipped : {false, true}) {
      tile.is_clipped = is_clipped;
      Rows rows = RowsOf(samples, d);
      OperationOf<&Backend::encode_per_token>(backend)(tile, samples.elements[d].data(), rows.words,
                                                       codes->data(), params->data());
      result->Add(&rows, sizeof(rows));
      result->Add(*codes);
      result->Add(*params);
    }
  });
}

// Writes params that an encoder may write, and codes with any bits.
void FillAffine(const Samples& samples, Buffer* codes, Buffer* params) {
  std::memcpy(codes->data(), samples.any_bits.data(), codes->size());
  for (size_t i = 0; i < params->size(); i += 2) {
    const uint32_t any = samples.any_bits[i] | uint32_t{samples.any_bits[i + 1]} << 8;
    const auto half = static_cast<uint16_t>(i % 4 == 0 ? any & 0xBFFF : any & 0x3FFF);
    std::memcpy(params->data() + i, &half, sizeof(half));
  }
}

template <auto kOperation, bool kIsPerChannel>
void TryDecode(const Backend& backend, const Samples& samples, Result* result) {
  ForEachAffine(kIsPerChannel, [&](AffineTile tile, size_t, Buffer* codes, Buffer* params) {
    FillAffine(samples, codes, params);
    for (const bool is_streamed : {false, true}) {
      tile.is_streamed = is_streamed;
      Buffer target(kElements * BytesOf(tile.dtype));
      OperationOf<kOperation>(backend)(tile, codes->data(), params->data(), target.data());
      result->Add(target);
    }
  });
}

void TryDecodePerChannel(const Backend& backend, const Samples& samples, Result* result) {
  TryDecode<&Backend::decode_per_channel, true>(backend, samples, result);
}

void TryDecodePerToken(const Backend& backend, const Samples& samples, Result* result) {
  TryDecode<&Backend::decode_per_token, false>(backend, samples, result);
}

void TryEncodeFp8(const Backend& backend, const Samples& samples, Result* result) {
  for (size_t d = 0; d < kDTypes.size(); ++d) {
    Buffer codes(kElements);
    Buffer scales(2 * kTokens);
    OperationOf<&Backend::encode_fp8>(backend)(TileOf(kDTypes[d], 8, true),
                                               samples.elements[d].data(), RowsOf(samples, d).words,
                                               codes.data(), scales.data());
    result->Add(codes);
    result->Add(scales);
  }
}

void TryDecodeFp8(const Backend& backend, const Samples& samples, Result* result) {
  for (const DType dtype : kDTypes) {
    Buffer codes(kElements);
    Buffer scales(2 * kTokens);
    FillAffine(samples, &codes, &scales);
    for (uint8_t& code : codes) code = (code & 0x7F) == 0x7F ? 0 : code;  // no NaN
    Buffer target(kElements * BytesOf(dtype));
    OperationOf<&Backend::decode_fp8>(backend)(TileOf(dtype, 8, true), codes.data(), scales.data(),
                                               target.data());
    result->Add(target);
  }
}

void TryDecodeMixed(const Backend& backend, const Samples& samples, Result* result) {
  std::array<ChannelClass, kDim> classes{};
  for (uint32_t c = 0; c < kDim; ++c) classes[c] = static_cast<ChannelClass>(c % 3);
  constexpr uint32_t kOfClass = kDim / 3;
  static_assert(kDim % 3 == 0);
  for (const DType dtype : kDTypes) {
    Buffer codes(uint64_t{kTokens} * CodeRowBytes(kOfClass, 4));
    Buffer params(uint64_t{(kTokens + 31) / 32} * 2 * kOfClass * sizeof(AffineParams));
    FillAffine(samples, &codes, &params);
    Buffer target(kElements * BytesOf(dtype));
    const MixedTile tile = {kTokens,
                            kDim,
                            32,
                            dtype,
                            false,
                            classes.data(),
                            samples.any_bits.data(),
                            codes.data(),
                            codes.data(),
                            params.data()};
    OperationOf<&Backend::decode_mixed>(backend)(tile, target.data());
    result->Add(target);
  }
}

void TryCopyStreamed(const Backend& backend, const Samples& samples, Result* result) {
  Buffer target(samples.any_bits.size());
  OperationOf<&Backend::copy_streamed>(backend)(samples.any_bits.data(), target.size(),
                                                target.data());
  result->Add(target);
}

void TryNarrowCodes(const Backend& backend, const Samples& samples, Result* result) {
  for (const auto& [from, to] : std::array<std::array<uint8_t, 2>, 3>{{{8, 4}, {8, 2}, {4, 2}}}) {
    Buffer target(uint64_t{kTokens} * CodeRowBytes(kDim, to));
    OperationOf<&Backend::narrow_codes>(backend)(TileOf(DType::kBf16, from, true), to,
                                                 samples.any_bits.data(), target.data());
    result->Add(target);
  }
}

void TryChoosePatterns(const Backend& backend, const Samples& samples, Result* result) {
  for (size_t d = 0; d < kDTypes.size(); ++d) {
    for (const uint32_t group : {0U, kGroupChannels}) {
      const PatternedTile tile = {
          kTokens, kDim, group, kDTypes[d], group == 0, samples.patterns.data(), kPatterns};
      Rows rows = RowsOf(samples, d);
      Rows predicted;
      Buffer numbers(kTokens);
      OperationOf<&Backend::choose_patterns>(backend)(tile, samples.elements[d].data(), rows.words,
                                                      numbers.data(), predicted.words);
      result->Add(&rows, sizeof(rows));
      result->Add(&predicted, sizeof(predicted));
      result->Add(numbers);
    }
  }
}

// Calls visit(shape, its source).
template <typename Visit>
void ForEachStripShape(const Samples& samples, Visit visit) {
  for (size_t d = 0; d < kDTypes.size(); ++d) {
    for (const bool is_fast : {false, true}) {
      visit(StripShape{kStripTokens, kDim, kDTypes[d], is_fast}, samples.elements[d]);
    }
  }
}

void TryEncodeStrip(const Backend& backend, const Samples& samples, Result* result) {
  ForEachStripShape(samples, [&](const StripShape& shape, const Buffer& source) {
    Buffer strip(RawStripBytes(shape));
    strip.resize(OperationOf<&Backend::encode_strip>(backend)(shape, source.data(), strip.data(),
                                                              strip.size()));
    result->Add(strip);
  });
}

void TryDecodeStrips(const Backend& backend, const Samples& samples, Result* result) {
  ForEachStripShape(samples, [&](const StripShape& shape, const Buffer& source) {
    Buffer strip(RawStripBytes(shape));
    strip.resize(samples.inputs_of->encode_strip(shape, source.data(), strip.data(), strip.size()));
    StripParts parts{};
    if (!ParseStrip(shape, strip.data(), strip.size(), &parts)) return;
    const uint64_t bytes = ElementCount(shape) * BytesOf(shape.dtype);
    Buffer target(kStripsAtOnce * bytes);
    for (uint32_t count = 1; count <= kStripsAtOnce; ++count) {
      StripJob jobs[kStripsAtOnce];
      for (uint32_t i = 0; i < count; ++i) {
        jobs[i] = {shape, parts, strip.data(), strip.data(), target.data() + i * bytes, false};
      }
      const bool is_valid = OperationOf<&Backend::decode_strips>(backend)(jobs, count);
      result->Add(&is_valid, sizeof(is_valid));
      result->Add(target);
    }
  });
}

// Calls visit(plane, index of the dtype, source) for K and V.
template <typename Visit>
void ForEachStep(const Samples& samples, Visit visit) {
  for (size_t d = 0; d < kDTypes.size(); ++d) {
    for (const uint32_t plane : {0U, 1U}) {
      const StepSource source = {.tokens = kStripTokens,
                                 .position = 1000,
                                 .bytes = samples.elements[d].data(),
                                 .v = samples.others[d].data()};
      visit(plane, kDTypes[d], source);
    }
  }
}

uint64_t StepRoom(DType dtype) { return RawStripBytes({kStripTokens, kDim, dtype, false}); }

void TryEncodeStepStrip(const Backend& backend, const Samples& samples, Result* result) {
  const auto tile = std::make_unique<StepTile>();
  ForEachStep(samples, [&](uint32_t plane, DType dtype, const StepSource& source) {
    MakeStepTile(samples.profile, {}, plane, {}, dtype, tile.get());
    Buffer strip(StepRoom(dtype));
    uint32_t rows = 0;
    strip.resize(OperationOf<&Backend::encode_step_strip>(backend)(*tile, source, strip.data(),
                                                                   strip.size(), &rows));
    result->Add(strip);
    result->Add(&rows, sizeof(rows));
  });
}

void TryDecodeStepStrips(const Backend& backend, const Samples& samples, Result* result) {
  const auto tile = std::make_unique<StepTile>();
  ForEachStep(samples, [&](uint32_t plane, DType dtype, const StepSource& source) {
    MakeStepTile(samples.profile, {}, plane, {}, dtype, tile.get());
    Buffer strip(StepRoom(dtype));
    uint32_t rows = 0;
    strip.resize(
        samples.inputs_of->encode_step_strip(*tile, source, strip.data(), strip.size(), &rows));
    StepStripParts parts{};
    const StripShape shape = {kStripTokens, kDim, dtype, false};
    if (!ParseStepStrip(shape, strip.data(), strip.size(), &parts)) return;
    const uint64_t bytes = ElementCount(shape) * BytesOf(dtype);
    Buffer target(kStripsAtOnce * bytes);
    StepStripJob jobs[kStripsAtOnce];
    for (uint32_t i = 0; i < kStripsAtOnce; ++i) {
      jobs[i] = {tile.get(),   kStripTokens, source.position,           parts,
                 strip.data(), strip.data(), target.data() + i * bytes, false};
    }
    const bool is_valid = OperationOf<&Backend::decode_step_strips>(backend)(jobs, kStripsAtOnce);
    result->Add(&is_valid, sizeof(is_valid));
    result->Add(target);
  });
}

void TryHotStrip(const Backend& backend, const Backend& encoder, const Samples& samples,
                 bool is_decoded, Result* result) {
  const auto tile = std::make_unique<HotTile>();
  ForEachStep(samples, [&](uint32_t plane, DType dtype, const StepSource& source) {
    MakeHotTile(samples.profile, {}, plane, 0, dtype, tile.get());
    Buffer codes(uint64_t{kStripTokens} * tile->row_bytes);
    Buffer corrections(HotCorrectionBytes(kDim));
    StripTokens rows{};
    OperationOf<&Backend::encode_hot_strip>(encoder)(*tile, source, codes.data(),
                                                     corrections.data(), &rows);
    if (!is_decoded) {
      result->Add(codes);
      result->Add(corrections);
      result->Add(&rows, sizeof(rows));
      return;
    }
    Buffer target(uint64_t{kStripTokens} * kDim * BytesOf(dtype));
    OperationOf<&Backend::decode_hot_strip>(backend)({tile.get(), kStripTokens, source.position,
                                                      codes.data(), corrections.data(),
                                                      target.data(), false});
    result->Add(target);
  });
}

void TryEncodeHotStrip(const Backend& backend, const Samples& samples, Result* result) {
  TryHotStrip(backend, backend, samples, false, result);
}

void TryDecodeHotStrip(const Backend& backend, const Samples& samples, Result* result) {
  TryHotStrip(backend, *samples.inputs_of, samples, true, result);
}

struct Trial {
  const char* operation;
  void (*run)(const Backend& backend, const Samples& samples, Result* result);
};

#define CAIRN_OPERATION(member, function) {#member, Try##function},
constexpr Trial kTrials[] = {CAIRN_BACKEND_OPERATIONS(CAIRN_OPERATION)};
#undef CAIRN_OPERATION

// The CRC32C of what the reference gives in each trial. If you change an operation, the samples or
// a trial, PassesEveryBackendOfThisCpu of tests/unit/codecs/backends_test.cc prints the new one.
constexpr uint32_t kExpected[std::size(kTrials)] = {
    0x80136b6b, 0xedd5bf22, 0xd5d6c881, 0xe04d56fd, 0x8af18d33, 0x50a450bb,
    0x2b3771ec, 0x8114817d, 0x56dcaca2, 0x74186b37, 0x13090737, 0x3f57e713,
    0xecb6a8a1, 0x8be21a06, 0xb110ca58, 0xcd4c3fb3, 0x2a20f19e};

}  // namespace
}  // namespace self_test

const char* UnexpectedOperation(const Backend& backend, uint32_t* crc) {
  const FloatGuard guard;
  const auto samples = std::make_unique<self_test::Samples>();
  // Each encoder comes before the decoder that reads its output.
  samples->inputs_of = &backend;
  for (size_t i = 0; i < std::size(self_test::kTrials); ++i) {
    self_test::Result given;
    self_test::kTrials[i].run(backend, *samples, &given);
    *crc = given.crc();
    if (*crc != self_test::kExpected[i]) return self_test::kTrials[i].operation;
  }
  return nullptr;
}

const char* FailedOperation(const Backend& backend) {
  // The reference is slow: it takes most of the time of the comparison below.
  uint32_t crc = 0;
  if (UnexpectedOperation(backend, &crc) == nullptr) return nullptr;
  const FloatGuard guard;
  const auto samples = std::make_unique<self_test::Samples>();
  samples->inputs_of = &ReferenceBackend();
  for (const self_test::Trial& trial : self_test::kTrials) {
    self_test::Result expected;
    self_test::Result given;
    trial.run(ReferenceBackend(), *samples, &expected);
    trial.run(backend, *samples, &given);
    if (given != expected) return trial.operation;
  }
  return nullptr;
}

}  // namespace cairn::codecs
