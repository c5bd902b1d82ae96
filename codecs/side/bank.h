// SPDX-License-Identifier: Apache-2.0
#pragma once
// A bank: the patterns that the recipe `patternkv` subtracts from K and V, for one group of a
// model's layers. A bank is a side object, and its id is the SHA-256 of its bytes.
// docs/internals/formats/bank.md shows the layout.
//
// Thread-safety: Bank is a value; functions are Thread-safe. They do not allocate or throw.

#include <cstddef>
#include <cstdint>
#include <span>

#include "codecs/side/profile.h"
#include "codecs/side/side_object.h"
#include "codecs/types/error.h"
#include "codecs/types/shape.h"

namespace cairn::codecs {

inline constexpr uint32_t kBankMagic = 0x42564B43;  // "CKVB"
inline constexpr uint16_t kBankVersion = 1;
inline constexpr size_t kBankHeaderBytes = 64;
inline constexpr size_t kBankBytesMax = size_t{64} << 20;
inline constexpr uint32_t kBankDimMax = 1024;
inline constexpr uint32_t kBankPatternsMax = 256;  // maximum for a head and plane

class Bank {
 public:
  // Returns the number of patterns of each head and plane: 1..kBankPatternsMax.
  [[nodiscard]] uint32_t patterns() const { return patterns_; }
  [[nodiscard]] const SideObjectHead& head() const { return head_; }
  [[nodiscard]] uint32_t planes() const { return head_.planes; }
  [[nodiscard]] uint32_t layers() const { return head_.layers; }
  [[nodiscard]] uint32_t heads() const { return head_.heads; }
  // REQUIRES for the two functions below: the bank has the plane and the head.
  [[nodiscard]] uint32_t Dim(uint32_t plane) const { return head_.dims[plane]; }
  // Returns the bytes from which the bank was parsed. Borrowed.
  [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }
  // Returns patterns() * Dim(plane) fp16 numbers, one pattern after another. Borrowed from the
  // bank's bytes.
  [[nodiscard]] const uint8_t* PatternsOf(uint32_t plane, ProfileHead at) const;

  // Returns true if the bank's group has tiles of this shape and contains the slice.
  [[nodiscard]] bool Fits(const TileShape& shape, const Slice& slice) const {
    return head_.Fits(shape, slice);
  }

 private:
  friend Error ParseBank(std::span<const std::byte> bytes, Bank* bank);

  std::span<const std::byte> bytes_;
  SideObjectHead head_;
  uint32_t patterns_ = 0;
  uint64_t offsets_[2] = {0, 0};  // offsets of each plane's patterns
};

// Parses a bank from untrusted bytes. The bank borrows `bytes`, which must outlive it and not
// change. Sets *bank on kOk. Errors: kTruncated (also if there are more bytes than the header
// states), kBadMagic, kBadVersion, kBadHeader, kBadPadding, kBadBank.
Error ParseBank(std::span<const std::byte> bytes, Bank* bank);

}  // namespace cairn::codecs
