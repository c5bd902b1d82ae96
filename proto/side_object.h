// SPDX-License-Identifier: Apache-2.0
#pragma once
// Side objects: profiles and banks. They are immutable bytes that images name by their hash.
//
// Thread-safety: pure functions. A SideObjectContent is a value.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "codecs/image/image.h"
#include "codecs/image/inputs.h"
#include "codecs/types/error.h"

namespace cairn::proto {

// The numbers are those of cairn.v1.SideObjectKind.
enum class SideObjectKind : uint8_t {
  kProfile = 1,  // docs/internals/formats/profile.md
  kBank = 2,     // docs/internals/formats/bank.md
};

// Limit for the size of a side object. Clients send it in parts.
inline constexpr size_t kSideObjectBytesMax = size_t{32} << 20;

// Returns "profile" or "bank". Static storage.
[[nodiscard]] const char* Name(SideObjectKind kind);

// Returns the SHA-256 by which images name a side object.
[[nodiscard]] codecs::Digest SideObjectId(std::span<const std::byte> bytes);

// Returns the kind that the first bytes indicate, or nullopt if they indicate none.
[[nodiscard]] std::optional<SideObjectKind> KindOf(std::span<const std::byte> bytes);

// Returns the kind that the recipe needs, or that improves its compression.
[[nodiscard]] std::optional<SideObjectKind> KindFor(const codecs::Recipe& recipe);

// The parsed content of a side object.
class SideObjectContent {
 public:
  // Parses untrusted bytes. They must outlive the content and not change. Sets *content on kOk.
  static codecs::Error Parse(SideObjectKind kind, std::span<const std::byte> bytes,
                             SideObjectContent* content);

  [[nodiscard]] SideObjectKind kind() const { return kind_; }
  // The two functions below return null if the side object is of the other kind.
  [[nodiscard]] const codecs::Profile* profile() const {
    return kind_ == SideObjectKind::kProfile ? &profile_ : nullptr;
  }
  [[nodiscard]] const codecs::Bank* bank() const {
    return kind_ == SideObjectKind::kBank ? &bank_ : nullptr;
  }
  // Returns the description of the group of layers to which the side object belongs.
  [[nodiscard]] const codecs::SideObjectHead& head() const {
    return kind_ == SideObjectKind::kProfile ? profile_.head() : bank_.head();
  }
  // Returns the inputs of a decoder. They borrow from this object.
  [[nodiscard]] codecs::DecodeInputs inputs() const {
    return {.profile = profile(), .bank = bank()};
  }

 private:
  SideObjectKind kind_ = SideObjectKind::kProfile;
  codecs::Profile profile_;
  codecs::Bank bank_;
};

}  // namespace cairn::proto
