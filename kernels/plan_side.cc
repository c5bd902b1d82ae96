// SPDX-License-Identifier: Apache-2.0
#include "kernels/plan_side.h"

#include <cstring>
#include <span>

#include "codecs/side/bank.h"
#include "codecs/types/bytes.h"

namespace cairn::kernels {
namespace {

// Converts the address of a parsed part on the host to its address on the device.
const uint8_t* OnDevice(std::span<const std::byte> parsed, const uint8_t* part,
                        const std::byte* on_device) {
  return codecs::U8(on_device) + (part - codecs::U8(parsed.data()));
}

TurningPairs PairsOf(const codecs::Profile& profile, const std::byte* on_device) {
  const uint32_t count = profile.PairCount();
  if (count == 0) return {};
  const uint32_t first = profile.PairFirst(0);
  const uint32_t step = count > 1 ? profile.PairFirst(1) - first : 1;
  return {OnDevice(profile.bytes(), profile.Turns(), on_device), static_cast<uint16_t>(count),
          static_cast<uint16_t>(first), static_cast<uint16_t>(step),
          static_cast<uint16_t>(profile.PairSecond(0) - first)};
}

}  // namespace

void AddSide(const codecs::ImageSpec& spec, const codecs::DecodeInputs& side,
             const std::byte* on_device, PlaneRecords* records) {
  const uint32_t planes = codecs::PlaneCount(spec.tile.kind);
  for (uint32_t plane = 0; plane < planes && spec.recipe.NeedsBank(); ++plane) {
    (*records)[plane].side =
        OnDevice(side.bank->bytes(), side.bank->PatternsOf(plane, {}), on_device);
  }
  if (!spec.recipe.NeedsProfile()) return;
  const codecs::Profile& profile = *side.profile;
  for (uint32_t plane = 0; plane < planes; ++plane) {
    const uint8_t* channels = codecs::U8(profile.Channels(plane, {}));
    (*records)[plane].side = OnDevice(profile.bytes(), channels, on_device);
  }
  PlaneRecord& k = records->front();
  k.pairs = PairsOf(profile, on_device);
  if (!profile.HasBasis()) return;
  k.vectors = OnDevice(profile.bytes(), profile.Vectors({}), on_device);
  k.scales = OnDevice(profile.bytes(), profile.Scales({}), on_device);
  k.scale_inverses = OnDevice(profile.bytes(), profile.ScaleInverses({}), on_device);
}

void AddMagnitudes(const codecs::Profile& profile, const std::byte* on_device,
                   PlaneRecords* records) {
  if (profile.HasBasis()) return;  // its steps are for components
  const uint8_t* channels = codecs::U8(profile.Channels(0, {}));
  records->front().side = OnDevice(profile.bytes(), channels, on_device);
}

uint32_t HeadNumber(const codecs::DecodeInputs& side, codecs::ProfileHead at) {
  const uint32_t heads = side.profile != nullptr ? side.profile->heads() : side.bank->heads();
  return at.layer * heads + at.head;
}

void MakeTables(const codecs::Profile& profile, uint32_t plane, StepTables* tables) {
  for (uint32_t i = 0; i < codecs::kProfileTables * codecs::kCoderSlots; ++i) {
    const codecs::CoderTable& table = profile.Table(plane, i / codecs::kCoderSlots);
    tables->entries[i] = CoderEntry(table, i % codecs::kCoderSlots);
  }
  std::memcpy(tables->offsets, profile.Offsets(plane), sizeof(tables->offsets));
}

void MakeTables(const codecs::Profile& profile, uint32_t plane, EncodeStepTables* tables) {
  for (uint32_t i = 0; i < codecs::kProfileTables; ++i) {
    const codecs::CoderTable& table = profile.Table(plane, i);
    for (uint32_t symbol = 0; symbol < codecs::kCoderSymbols; ++symbol) {
      tables->of[i][symbol] = StepOfSymbol(table, symbol);
    }
    SymbolStep none = StepOfSymbol(table, codecs::LikeliestSymbol(table));
    none.step &= ~kStepEscape;  // it has no escape
    tables->of[i][kNoCodeSymbol] = none;
  }
}

}  // namespace cairn::kernels
