// SPDX-License-Identifier: Apache-2.0
#pragma once
// Side objects: immutable bytes that images refer to by the hash of them.
//
// Thread-safety: pure functions; a SideObjectContent is a value.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "codecs/image/image.h"
#include "codecs/image/inputs.h"
#include "codecs/types/error.h"

namespace cairn::proto {

// The values are those of cairn.v1.SideObjectKind.
enum class SideObjectKind : uint8_t {
  kProfile = 1,  // docs/internals/formats/profile.md
  kBank = 2,     // docs/internals/formats/bank.md
};

// Of one, as it travels: what a control message has room for.
inline constexpr size_t kSideObjectBytesMax = size_t{32} << 20;

// "profile", "bank". Static storage.
[[nodiscard]] const char* Name(SideObjectKind kind);

// SHA-256: what an image names it by.
[[nodiscard]] codecs::Digest SideObjectId(std::span<const std::byte> bytes);

// Of what kind bytes say that they are, by how they begin.
[[nodiscard]] std::optional<SideObjectKind> KindOf(std::span<const std::byte> bytes);

// The kind that a recipe codes with, or does better with.
[[nodiscard]] std::optional<SideObjectKind> KindFor(const codecs::Recipe& recipe);

// What the bytes of one say.
class SideObjectContent {
 public:
  // Reads bytes, which must outlive it and not change; assumes malice. *content is set on kOk.
  static codecs::Error Parse(SideObjectKind kind, std::span<const std::byte> bytes,
                             SideObjectContent* content);

  [[nodiscard]] SideObjectKind kind() const { return kind_; }
  // Null for other kinds.
  [[nodiscard]] const codecs::Profile* profile() const {
    return kind_ == SideObjectKind::kProfile ? &profile_ : nullptr;
  }
  [[nodiscard]] const codecs::Bank* bank() const {
    return kind_ == SideObjectKind::kBank ? &bank_ : nullptr;
  }
  // The group of layers that it is of.
  [[nodiscard]] const codecs::SideObjectHead& head() const {
    return kind_ == SideObjectKind::kProfile ? profile_.head() : bank_.head();
  }
  // As coders take it. Borrows this.
  [[nodiscard]] codecs::DecodeInputs inputs() const {
    return {.profile = profile(), .bank = bank()};
  }

 private:
  SideObjectKind kind_ = SideObjectKind::kProfile;
  codecs::Profile profile_;
  codecs::Bank bank_;
};

}  // namespace cairn::proto
