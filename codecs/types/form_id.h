// SPDX-License-Identifier: Apache-2.0
#pragma once
// The list of tile forms. A form is a layout of the bytes of a tile;
// docs/internals/formats/image.md shows each of them. Each line of the list defines a form. The
// line generates the form's FormId, its number in a directory, and its entry in the table of
// codecs/forms/forms.cc. It also declares the kernels Encode<Name>Any() and Decode<Name>Any(),
// which code tiles of any shape.
//
// This header includes only the integer types of the standard library, so that kernels may include
// it.

#include <cstdint>

namespace cairn::codecs {

// FORM(Name, id, bits) or FORM_OF_BITS(Name, id). Ids are part of the image format; lines are in
// the order of ids.
//   bits  bits of a code; 0: the form has no such number. FORM_OF_BITS: the bits of the recipe
#define CAIRN_CODED_FORMS(FORM, FORM_OF_BITS)                                    \
  FORM_OF_BITS(Affine, 1)    /* codes between a (min, range) a group */          \
  FORM(Strips, 2, 0)         /* entropy-coded source bits */                     \
  FORM(Steps, 3, 0)          /* entropy-coded codes by the steps of a profile */ \
  FORM_OF_BITS(Patterned, 4) /* as Affine, of what patterns of a bank leave */   \
  FORM(Kept, 5, 8)           /* tokens at three precisions, one of them none */  \
  FORM(Mixed, 6, 0)          /* channels in classes */                           \
  FORM(Fp8, 7, 8)            /* 8-bit floats */                                  \
  FORM(Hot, 8, 0)            /* codes of a fixed width a channel */
// The list with the form that every tile may have: raw, for source elements.
#define CAIRN_TILE_FORMS(FORM, FORM_OF_BITS) \
  FORM(Raw, 0, 0)                            \
  CAIRN_CODED_FORMS(FORM, FORM_OF_BITS)

#define CAIRN_FORM(name, id, ...) k##name = id,
enum class FormId : uint8_t { CAIRN_TILE_FORMS(CAIRN_FORM, CAIRN_FORM) };
#undef CAIRN_FORM

#define CAIRN_FORM(name, id, ...) id,
inline constexpr uint8_t kFormIds[] = {CAIRN_TILE_FORMS(CAIRN_FORM, CAIRN_FORM)};
#undef CAIRN_FORM
inline constexpr uint32_t kFormCount = sizeof(kFormIds);

// Returns a form's number in a directory. The low byte is the id, and the high byte is the bits of
// a code.
[[nodiscard]] constexpr uint16_t FormNumber(FormId id, uint8_t bits) {
  return static_cast<uint16_t>(static_cast<uint32_t>(id) | static_cast<uint32_t>(bits) << 8);
}
[[nodiscard]] constexpr FormId FormIdOf(uint16_t form) { return static_cast<FormId>(form & 0xFF); }

// Defines kRawForm, kStripsForm, …, AffineForm(bits) and PatternedForm(bits).
#define CAIRN_FORM(name, id, bits) \
  inline constexpr uint16_t k##name##Form = FormNumber(FormId::k##name, bits);
#define CAIRN_FORM_OF_BITS(name, id)                          \
  [[nodiscard]] constexpr uint16_t name##Form(uint8_t bits) { \
    return FormNumber(FormId::k##name, bits);                 \
  }
CAIRN_TILE_FORMS(CAIRN_FORM, CAIRN_FORM_OF_BITS)
#undef CAIRN_FORM
#undef CAIRN_FORM_OF_BITS

// Returns the number of a form in an image whose recipe has `bits`.
[[nodiscard]] constexpr uint16_t FormInRecipe(FormId id, uint8_t bits) {
  switch (id) {
#define CAIRN_FORM(name, ...) \
  case FormId::k##name:       \
    return k##name##Form;
#define CAIRN_FORM_OF_BITS(name, ...) \
  case FormId::k##name:               \
    return name##Form(bits);
    CAIRN_TILE_FORMS(CAIRN_FORM, CAIRN_FORM_OF_BITS)
#undef CAIRN_FORM
#undef CAIRN_FORM_OF_BITS
  }
  return kRawForm;
}

static_assert(
    [] {
      for (uint32_t i = 0; i < kFormCount; ++i) {
        if (kFormIds[i] != i) return false;
      }
      return true;
    }(),
    "tables and lists of kernels have forms in the order of their ids");

}  // namespace cairn::codecs
