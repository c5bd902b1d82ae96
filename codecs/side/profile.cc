// SPDX-License-Identifier: Apache-2.0
#include "codecs/side/profile.h"

#include "codecs/numbers/math.h"
#include "codecs/numbers/static_step.h"
#include "codecs/types/bytes.h"

namespace cairn::codecs {
namespace {

constexpr uint64_t kRateBytes = 4;
constexpr uint32_t kMeanMaxBits = 0x49800000;   // of 2^20
constexpr uint32_t kScaleMinBits = 0x35800000;  // of 2^-20
constexpr uint16_t kVectorMaxBits = 0x4000;     // of 2, as fp16
constexpr uint64_t kTablesBytes = uint64_t{kProfileTables} * kCoderSymbols;
constexpr uint64_t kOffsetsBytes = uint64_t{kProfileTables} * 2;

namespace field {                    // in addition to the fields of every side object
constexpr size_t kRope = 17;         // u8
constexpr size_t kBasis = 18;        // u8
constexpr size_t kReserved = 19;     // u8, 0
constexpr size_t kRotaryFirst = 32;  // u16
constexpr size_t kRotaryDims = 34;   // u16
constexpr size_t kRates = 36;        // u16
constexpr size_t kTail = 38;         // 26 bytes, 0
}  // namespace field

constexpr SideObjectFormat kFormat = {kProfileMagic,    kProfileVersion, kProfileHeaderBytes,
                                      kProfileBytesMax, kProfileDimMax,  field::kReserved,
                                      field::kTail};

bool IsLog(int32_t log) { return log >= -kProfileLogMax && log <= kProfileLogMax; }

bool IsScale(uint32_t bits) { return bits >= kScaleMinBits && bits <= kMeanMaxBits; }

}  // namespace

// Reads the parts one after another; `at_` is the start of the next one.
class ProfileParser {
 public:
  ProfileParser(std::span<const std::byte> bytes, Profile* profile)
      : bytes_(bytes), profile_(*profile) {}

  Error Header();
  Error Parts();

 private:
  // Takes the next part and checks its padding. Returns false if there are too few bytes.
  bool Take(uint64_t part_bytes, uint64_t* offset);
  bool Rates();
  bool Tables(uint32_t plane);
  bool Channels(uint32_t plane);
  bool Basis();

  std::span<const std::byte> bytes_;
  Profile& profile_;
  uint64_t at_ = kProfileHeaderBytes;
  bool has_clean_padding_ = true;
};

Error ProfileParser::Header() {
  Profile& p = profile_;
  if (const Error error = ParseSideObjectHead(bytes_, kFormat, &p.head_); error != Error::kOk) {
    return error;
  }
  const std::byte* base = bytes_.data();
  p.pairs_.kind = Load<RopeKind>(base + field::kRope);
  const auto basis = Load<uint8_t>(base + field::kBasis);
  p.has_basis_ = basis == 1;
  p.pairs_.first = Load<uint16_t>(base + field::kRotaryFirst);
  p.pairs_.dims = Load<uint16_t>(base + field::kRotaryDims);
  p.rate_count_ = Load<uint16_t>(base + field::kRates);
  const bool turns = p.pairs_.kind != RopeKind::kNone;
  const bool is_valid =
      p.pairs_.kind <= RopeKind::kInterleaved && basis <= 1 && turns == (p.pairs_.dims != 0) &&
      p.pairs_.dims % 2 == 0 && p.pairs_.first + p.pairs_.dims <= p.head_.dims[0] &&
      (turns || p.pairs_.first == 0) && p.rate_count_ >= 1 && p.rate_count_ <= kProfileRatesMax;
  return is_valid ? Error::kOk : Error::kBadHeader;
}

bool ProfileParser::Take(uint64_t part_bytes, uint64_t* offset) {
  // At most 2^16 heads of 2^21 bytes: no overflow is possible.
  const uint64_t aligned = AlignSection(part_bytes);
  if (bytes_.size() - at_ < aligned) return false;
  *offset = at_;
  has_clean_padding_ &= IsZero(bytes_.data() + at_ + part_bytes, aligned - part_bytes);
  at_ += aligned;
  return true;
}

bool ProfileParser::Rates() {
  uint32_t previous = kProfileBitsMin - 1;
  for (uint32_t i = 0; i < profile_.rate_count_; ++i) {
    const std::byte* rate = bytes_.data() + profile_.rates_ + i * kRateBytes;
    const auto bits = Load<uint16_t>(rate);
    const int32_t multiplier = Load<int16_t>(rate + 2);
    if (bits <= previous || bits > kProfileBitsMax || multiplier < -kProfileMultiplierMax ||
        multiplier > kProfileMultiplierMax) {
      return false;
    }
    previous = bits;
  }
  return true;
}

bool ProfileParser::Tables(uint32_t plane) {
  uint64_t tables = 0;
  uint64_t offsets = 0;
  if (!Take(kTablesBytes, &tables) || !Take(kOffsetsBytes, &offsets)) return false;
  uint32_t faults = 0;
  for (uint32_t i = 0; i < kProfileTables; ++i) {
    uint16_t frequencies[kCoderSymbols];
    for (uint32_t s = 0; s < kCoderSymbols; ++s) {
      frequencies[s] = Load<uint8_t>(bytes_.data() + tables + i * kCoderSymbols + s);
    }
    const bool is_table = MakeCoderTable(frequencies, &profile_.tables_[plane][i]);
    faults |= is_table ? 0 : 1;
    if (!is_table) continue;
    profile_.lookups_[plane][i] = MakeCoderLookup(profile_.tables_[plane][i]);
    profile_.has_exact_lookups_[plane] &= profile_.lookups_[plane][i].is_exact;
  }
  for (uint32_t i = 0; i < kProfileTables; ++i) {
    float* of = profile_.offsets_[plane][i];
    for (uint32_t magnitude = 0; magnitude < 2; ++magnitude) {
      const auto offset = Load<int8_t>(bytes_.data() + offsets + uint64_t{2} * i + magnitude);
      faults |= offset == -128 ? 1 : 0;
      of[magnitude] = static_cast<float>(offset) * 0.00390625F;
    }
    for (uint32_t symbol = 0; symbol < kEscapeSymbol; ++symbol) {
      profile_.symbol_codes_[plane][i][symbol] = StepCodeOf(static_cast<int32_t>(symbol) - 7, of);
    }
  }
  return faults == 0;
}

bool ProfileParser::Channels(uint32_t plane) {
  const uint64_t count =
      uint64_t{profile_.head_.layers} * profile_.head_.heads * profile_.head_.dims[plane];
  if (!Take(count * kProfileChannelBytes, &profile_.channels_[plane])) return false;
  uint32_t faults = 0;
  for (uint64_t i = 0; i < count; ++i) {
    const std::byte* channel = bytes_.data() + profile_.channels_[plane] + i * kProfileChannelBytes;
    faults |= (Load<uint32_t>(channel) & 0x7FFFFFFF) > kMeanMaxBits ? 1 : 0;
    faults |= IsLog(Load<int16_t>(channel + 4)) ? 0 : 1;
    faults |= IsLog(Load<int16_t>(channel + 6)) ? 0 : 1;
  }
  return faults == 0;
}

bool ProfileParser::Basis() {
  const uint64_t count =
      uint64_t{profile_.head_.layers} * profile_.head_.heads * profile_.head_.dims[0];
  if (!Take(count * sizeof(float), &profile_.scale_) ||
      !Take(count * sizeof(float), &profile_.inverse_) ||
      !Take(count * profile_.head_.dims[0] * sizeof(uint16_t), &profile_.vectors_)) {
    return false;
  }
  const std::byte* base = bytes_.data();
  uint32_t faults = 0;
  for (uint64_t i = 0; i < count; ++i) {
    faults |= IsScale(Load<uint32_t>(base + profile_.scale_ + 4 * i)) ? 0 : 1;
    faults |= IsScale(Load<uint32_t>(base + profile_.inverse_ + 4 * i)) ? 0 : 1;
  }
  for (uint64_t i = 0; i < count * profile_.head_.dims[0]; ++i) {
    const auto vector = Load<uint16_t>(base + profile_.vectors_ + 2 * i);
    faults |= (vector & 0x7FFF) > kVectorMaxBits ? 1 : 0;
  }
  return faults == 0;
}

Error ProfileParser::Parts() {
  Profile& p = profile_;
  if (!Take(uint64_t{p.pairs_.dims} / 2 * sizeof(uint64_t), &p.turns_) ||
      !Take(p.rate_count_ * kRateBytes, &p.rates_) || !Rates()) {
    return Error::kBadProfile;
  }
  for (uint32_t plane = 0; plane < p.head_.planes; ++plane) {
    if (!Tables(plane)) return Error::kBadProfile;
  }
  for (uint32_t plane = 0; plane < p.head_.planes; ++plane) {
    if (!Channels(plane)) return Error::kBadProfile;
  }
  if (p.has_basis_ && !Basis()) return Error::kBadProfile;
  if (at_ != bytes_.size()) return Error::kBadProfile;
  return has_clean_padding_ ? Error::kOk : Error::kBadPadding;
}

Error ParseProfile(std::span<const std::byte> bytes, Profile* profile) {
  Profile parsed;
  parsed.bytes_ = bytes;
  ProfileParser parser(bytes, &parsed);
  if (const Error error = parser.Header(); error != Error::kOk) return error;
  if (const Error error = parser.Parts(); error != Error::kOk) return error;
  *profile = parsed;
  return Error::kOk;
}

uint64_t Profile::PairTurns(uint32_t pair) const {
  return Load<uint64_t>(bytes_.data() + turns_ + sizeof(uint64_t) * pair);
}

const uint8_t* Profile::Turns() const { return U8(bytes_.data()) + turns_; }

std::optional<int16_t> Profile::MultiplierOf(uint32_t bits_in_tenths) const {
  for (uint32_t i = 0; i < rate_count_; ++i) {
    const std::byte* rate = bytes_.data() + rates_ + i * kRateBytes;
    if (Load<uint16_t>(rate) == bits_in_tenths) return Load<int16_t>(rate + 2);
  }
  return std::nullopt;
}

const std::byte* Profile::Channels(uint32_t plane, ProfileHead at) const {
  return bytes_.data() + channels_[plane] +
         HeadIndex(at) * head_.dims[plane] * kProfileChannelBytes;
}

ProfileChannel Profile::Channel(uint32_t plane, ProfileHead at, uint32_t channel) const {
  return LoadChannel(Channels(plane, at), channel);
}

float Profile::Scale(ProfileHead at, uint32_t channel) const {
  return Load<float>(bytes_.data() + scale_ + (HeadIndex(at) * head_.dims[0] + channel) * 4);
}

float Profile::ScaleInverse(ProfileHead at, uint32_t channel) const {
  return Load<float>(bytes_.data() + inverse_ + (HeadIndex(at) * head_.dims[0] + channel) * 4);
}

float Profile::Vector(ProfileHead at, uint32_t channel, uint32_t component) const {
  const uint64_t index = (HeadIndex(at) * head_.dims[0] + channel) * head_.dims[0] + component;
  return Fp16ToFloat(Load<uint16_t>(bytes_.data() + vectors_ + 2 * index));
}

const uint8_t* Profile::Scales(ProfileHead at) const {
  return U8(bytes_.data()) + scale_ + HeadIndex(at) * head_.dims[0] * 4;
}

const uint8_t* Profile::ScaleInverses(ProfileHead at) const {
  return U8(bytes_.data()) + inverse_ + HeadIndex(at) * head_.dims[0] * 4;
}

const uint8_t* Profile::Vectors(ProfileHead at) const {
  return U8(bytes_.data()) + vectors_ + HeadIndex(at) * head_.dims[0] * head_.dims[0] * 2;
}

}  // namespace cairn::codecs
