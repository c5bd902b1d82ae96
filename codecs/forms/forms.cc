// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "codecs/forms/form.h"

namespace cairn::codecs {
namespace {

constexpr auto kForms = [] {
  std::array<const Form*, 9> table{};
  const auto set = [&](TileLayoutId id, const Form* form) {
    table[static_cast<uint8_t>(id)] = form;
  };
  set(TileLayoutId::kRaw, &forms::kRaw);
  set(TileLayoutId::kAffine, &forms::kAffine);
  set(TileLayoutId::kPatterned, &forms::kPatterned);
  set(TileLayoutId::kStrips, &forms::kStrips);
  set(TileLayoutId::kStepStrips, &forms::kSteps);
  set(TileLayoutId::kHot, &forms::kHot);
  set(TileLayoutId::kKept, &forms::kKept);
  set(TileLayoutId::kMixed, &forms::kMixed);
  set(TileLayoutId::kFp8, &forms::kFp8);
  return table;
}();

}  // namespace

const Form* FormOf(uint16_t form) {
  const auto id = static_cast<uint8_t>(LayoutIdOf(form));
  return id < kForms.size() ? kForms[id] : nullptr;
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
