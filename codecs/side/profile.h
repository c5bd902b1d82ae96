// SPDX-License-Identifier: Apache-2.0
#pragma once
// A profile: the statistics of one group of a model's layers, which the recipe `cairn` codes with.
// A profile is a side object, and its id is the SHA-256 of its bytes.
// docs/internals/formats/profile.md shows the layout.
//
// Thread-safety: Profile is a value; functions are Thread-safe. They do not allocate or throw.

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
inline constexpr uint32_t kProfileBitsMin = 10;  // bits of a rate, in tenths
inline constexpr uint32_t kProfileBitsMax = 160;

// The pairs of channels of K that RoPE rotates.
struct RotaryPairs {
  RopeKind kind = RopeKind::kNone;
  uint32_t first = 0;
  uint32_t dims = 0;  // channels first ... first + dims - 1; 0 exactly if kind is kNone

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
  // Returns the bytes from which the profile was parsed. Borrowed.
  [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }
  [[nodiscard]] uint32_t planes() const { return head_.planes; }
  [[nodiscard]] uint32_t layers() const { return head_.layers; }
  [[nodiscard]] uint32_t heads() const { return head_.heads; }
  // REQUIRES for all functions below: the profile has the plane, head, channel, pair or table.
  [[nodiscard]] uint32_t Dim(uint32_t plane) const { return head_.dims[plane]; }

  // The channels of K that RoPE rotates, as pairs.
  [[nodiscard]] uint32_t PairCount() const { return pairs_.Count(); }
  [[nodiscard]] uint32_t PairFirst(uint32_t pair) const { return pairs_.First(pair); }
  [[nodiscard]] uint32_t PairSecond(uint32_t pair) const { return pairs_.Second(pair); }
  [[nodiscard]] uint64_t PairTurns(uint32_t pair) const;  // in 2^-64 turn per token
  [[nodiscard]] const uint8_t* Turns() const;             // turns of all pairs, at any alignment

  // Returns 256 * log2 of the multiplier; nullopt if the profile has no such rate.
  [[nodiscard]] std::optional<int16_t> MultiplierOf(uint32_t bits_in_tenths) const;

  [[nodiscard]] const CoderTable& Table(uint32_t plane, uint32_t table) const {
    return tables_[plane][table];
  }
  // Returns the tables of a plane. Borrowed.
  [[nodiscard]] ProfileTables Shared(uint32_t plane) const {
    return {tables_[plane], lookups_[plane], offsets_[plane], symbol_codes_[plane],
            has_exact_lookups_[plane]};
  }
  // Returns, for each table, the offsets of the codes of magnitude 1 and 2, in steps. Codes with
  // low bits have offsets of 0.
  [[nodiscard]] const float (*Offsets(uint32_t plane) const)[2] { return offsets_[plane]; }
  [[nodiscard]] ProfileChannel Channel(uint32_t plane, ProfileHead at, uint32_t channel) const;
  // Returns the channels of a head, for LoadChannel().
  [[nodiscard]] const std::byte* Channels(uint32_t plane, ProfileHead at) const;
  [[nodiscard]] static ProfileChannel LoadChannel(const std::byte* channels, uint32_t channel) {
    const std::byte* entry = channels + kProfileChannelBytes * channel;
    return {Load<float>(entry), Load<int16_t>(entry + 4), Load<int16_t>(entry + 6)};
  }

  [[nodiscard]] bool HasBasis() const { return has_basis_; }
  [[nodiscard]] float Scale(ProfileHead at, uint32_t channel) const;
  [[nodiscard]] float ScaleInverse(ProfileHead at, uint32_t channel) const;
  [[nodiscard]] float Vector(ProfileHead at, uint32_t channel, uint32_t component) const;

  // Return the basis of a head for all channels, in its stored form: fp32, fp32, and fp16
  // [channel][component].
  [[nodiscard]] const uint8_t* Scales(ProfileHead at) const;
  [[nodiscard]] const uint8_t* ScaleInverses(ProfileHead at) const;
  [[nodiscard]] const uint8_t* Vectors(ProfileHead at) const;

  // Returns the cache in which HotMultiplierOf() keeps its results.
  [[nodiscard]] HotRates& hot_rates() const { return hot_rates_; }

  // Returns true if the profile's group has tiles of this shape and contains the slice.
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

// Parses a profile from untrusted bytes. The profile borrows `bytes`, which must outlive it and not
// change. Sets *profile on kOk. Errors: kTruncated (also if there are more bytes than the header
// states), kBadMagic, kBadVersion, kBadHeader, kBadPadding, kBadProfile.
Error ParseProfile(std::span<const std::byte> bytes, Profile* profile);

}  // namespace cairn::codecs
