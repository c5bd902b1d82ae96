// SPDX-License-Identifier: Apache-2.0
#include "codecs/forms/form.h"

namespace cairn::codecs {
namespace {

#define CAIRN_FORM(name, ...) &forms::k##name,
constexpr const Form* kForms[] = {CAIRN_TILE_FORMS(CAIRN_FORM, CAIRN_FORM)};
#undef CAIRN_FORM

}  // namespace

const Form* FormOf(uint16_t form) {
  const auto id = static_cast<uint8_t>(FormIdOf(form));
  return id < kFormCount ? kForms[id] : nullptr;
}

std::optional<TileLayout> LayoutOf(const TileGeometry& geometry, const Recipe& recipe,
                                   uint16_t form, uint32_t rows, uint64_t bytes) {
  const bool is_written =
      form == kRawForm || (geometry.IsCodable() && form == CodedForm(geometry, recipe));
  if (!is_written || rows > geometry.rows) return std::nullopt;
  return FormOf(form)->layout(geometry, recipe, rows, bytes);
}

Error EncodeTile(const Backend& backend, const Recipe& recipe, const TileSource& source,
                 ImageWriter* writer) {
  if (source.geometry.IsCodable()) {
    const Form* form = FormOf(CodedForm(source.geometry, recipe));
    const Error error = form->encode(backend, recipe, source, writer);
    if (error != Error::kBadTile) return error;
  }
  return forms::kRaw.encode(backend, recipe, source, writer);
}

}  // namespace cairn::codecs
