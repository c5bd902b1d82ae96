// SPDX-License-Identifier: Apache-2.0
#pragma once
// A profile: the statistics of one group of a model's layers that the recipe `cairn` codes with. It
// is a side object, named by the SHA-256 of its bytes; docs/internals/formats/profile.md draws
// them.
//
// Thread-safety: Profile is a value; functions are Thread-safe. Nothing allocates or throws.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "codecs/pack/lanes32.h"
#include "codecs/pack/lanes32_lookup.h"
#include "codecs/side/hot_rates.h"
#include "codecs/side/profile_channel.h"
#include "codecs/side/side_object.h"
#include "codecs/types/bytes.h"
#include "codecs/types/error.h"
#include "codecs/types/shape.h"

namespace cairn::codecs {

inline constexpr uint32_t kProfileMagic = 0x50564B43;  // "CKVP"
inline constexpr uint16_t kProfileVersion = 1;
inline constexpr size_t kProfileHeaderBytes = 64;
inline constexpr size_t kProfileBytesMax = size_t{32} << 20;
inline constexpr uint32_t kProfileRatesMax = 64;
inline constexpr uint32_t kProfileBitsMin = 10;  // of a rate, in tenths
inline constexpr uint32_t kProfileBitsMax = 160;

// Which channels of K turn with position, two by two.
struct RotaryPairs {
  RopeKind kind = RopeKind::kNone;
  uint32_t first = 0;
  uint32_t dims = 0;  // channels first ... first + dims - 1; 0 exactly where kind is kNone

  [[nodiscard]] uint32_t Count() const { return dims / 2; }
  [[nodiscard]] uint32_t First(uint32_t pair) const {
    return first + (kind == RopeKind::kInterleaved ? 2 * pair : pair);
  }
  [[nodiscard]] uint32_t Second(uint32_t pair) const {
    return First(pair) + (kind == RopeKind::kInterleaved ? 1 : Count());
  }
};

class Profile {
 public:
  [[nodiscard]] const SideObjectHead& head() const { return head_; }
  // What was parsed. Borrowed.
  [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }
  [[nodiscard]] uint32_t planes() const { return head_.planes; }
  [[nodiscard]] uint32_t layers() const { return head_.layers; }
  [[nodiscard]] uint32_t heads() const { return head_.heads; }
  // REQUIRES of all below: what is asked for is there.
  [[nodiscard]] uint32_t Dim(uint32_t plane) const { return head_.dims[plane]; }

  // K: which channels turn, as pairs.
  [[nodiscard]] uint32_t PairCount() const { return pairs_.Count(); }
  [[nodiscard]] uint32_t PairFirst(uint32_t pair) const { return pairs_.First(pair); }
  [[nodiscard]] uint32_t PairSecond(uint32_t pair) const { return pairs_.Second(pair); }
  [[nodiscard]] uint64_t PairTurns(uint32_t pair) const;  // 2^-64 turn a token
  [[nodiscard]] const uint8_t* Turns() const;             // all of them, at any alignment

  // 256 * log2; none where the profile has no such rate.
  [[nodiscard]] std::optional<int16_t> MultiplierOf(uint32_t bits_in_tenths) const;

  [[nodiscard]] const CoderTable& Table(uint32_t plane, uint32_t table) const {
    return tables_[plane][table];
  }
  // Borrowed.
  [[nodiscard]] ProfileTables Shared(uint32_t plane) const {
    return {tables_[plane], lookups_[plane], offsets_[plane], symbol_codes_[plane],
            has_exact_lookups_[plane]};
  }
  // Of the codes of magnitude 1 and 2, in steps: of each table, and none of codes with low bits.
  [[nodiscard]] const float (*Offsets(uint32_t plane) const)[2] { return offsets_[plane]; }
  [[nodiscard]] ProfileChannel Channel(uint32_t plane, ProfileHead at, uint32_t channel) const;
  // All of a head, as LoadChannel() reads them.
  [[nodiscard]] const std::byte* Channels(uint32_t plane, ProfileHead at) const;
  [[nodiscard]] static ProfileChannel LoadChannel(const std::byte* channels, uint32_t channel) {
    const std::byte* entry = channels + kProfileChannelBytes * channel;
    return {Load<float>(entry), Load<int16_t>(entry + 4), Load<int16_t>(entry + 6)};
  }

  [[nodiscard]] bool HasBasis() const { return has_basis_; }
  [[nodiscard]] float Scale(ProfileHead at, uint32_t channel) const;
  [[nodiscard]] float ScaleInverse(ProfileHead at, uint32_t channel) const;
  [[nodiscard]] float Vector(ProfileHead at, uint32_t channel, uint32_t component) const;

  // The same of all channels, as they are stored: fp32, fp32, and fp16 [channel][component].
  [[nodiscard]] const uint8_t* Scales(ProfileHead at) const;
  [[nodiscard]] const uint8_t* ScaleInverses(ProfileHead at) const;
  [[nodiscard]] const uint8_t* Vectors(ProfileHead at) const;

  // For HotMultiplierOf(), which keeps there what it found.
  [[nodiscard]] HotRates& hot_rates() const { return hot_rates_; }

  // The group that it was made for has tiles of this shape, and this slice is of it.
  [[nodiscard]] bool Fits(const TileShape& shape, const Slice& slice) const {
    return head_.Fits(shape, slice);
  }

 private:
  friend Error ParseProfile(std::span<const std::byte> bytes, Profile* profile);
  friend class ProfileParser;

  [[nodiscard]] uint64_t HeadIndex(ProfileHead at) const {
    return uint64_t{at.layer} * head_.heads + at.head;
  }

  std::span<const std::byte> bytes_;
  SideObjectHead head_;
  RotaryPairs pairs_;
  uint32_t rate_count_ = 0;
  bool has_basis_ = false;
  uint64_t turns_ = 0;  // offsets of the parts
  uint64_t rates_ = 0;
  uint64_t channels_[2] = {0, 0};
  uint64_t scale_ = 0;
  uint64_t inverse_ = 0;
  uint64_t vectors_ = 0;
  CoderTable tables_[2][kProfileTables];
  CoderLookup lookups_[2][kProfileTables];
  bool has_exact_lookups_[2] = {true, true};
  float offsets_[2][kProfileTables + 1][2] = {};
  alignas(64) float symbol_codes_[2][kProfileTables][kCoderSymbols] = {};
  mutable HotRates hot_rates_;
};

// Reads a profile that borrows `bytes`, which must outlive it and not change; assumes malice.
// *profile is set on kOk. kTruncated (which more bytes than stated are too), kBadMagic,
// kBadVersion, kBadHeader, kBadPadding, kBadProfile.
Error ParseProfile(std::span<const std::byte> bytes, Profile* profile);

}  // namespace cairn::codecs
