// SPDX-License-Identifier: Apache-2.0
#pragma once
// Converts stored strips of `cairn` to quantization steps that are three or nine times as long, as
// reference::DemoteStepStrip() does. One warp per strip. The old codes are decoded channel by
// channel and stored in the tile's output slot, behind the room for the raw tile (WaitingCodes()).
// The new strip is encoded from there.

#include <cstdint>

#include "codecs/numbers/static_step.h"
#include "kernels/body/step_decode.h"
#include "kernels/body/step_encode.h"

namespace cairn::kernels {

// Returns a task that decodes one strip of a stored tile.
CAIRN_DEVICE TileTask StoredTask(const StripItem& item) {
  TileTask task{};
  task.source = item.task.source;
  task.bytes = item.task.stored_bytes;
  task.rows = item.task.stored_rows;
  task.head = item.task.head;
  task.token_first = static_cast<uint16_t>(item.token_first);
  return task;
}

// Decodes the codes of the stored strip into the slot. Returns false if the strip is invalid.
//   old  the plane, with the level at which the strip is stored
CAIRN_DEVICE bool LoadCodes(const StripItem& item, const PlaneRecord& old, const FoundSteps& strip,
                            StepWarp* own) {
  const uint32_t lane = ThreadIndex() % kWarpLanes, dim = old.dim;
  uint8_t* codes = WaitingCodes(item.task, item.plane, item.token_first);
  for (uint32_t at = lane; at < strip.shape.tokens; at += kWarpLanes) {
    own->places[at] = codes + 2 * at * dim;
  }
  SyncWarp();
  return MarkStepRows(strip, own->is_row) && DecodeStepCodes(old, strip, *own);
}

CAIRN_DEVICE void NarrowStrip(const EncodeReader& reader, const StripItem& item, StepWarp* own,
                              Fault* fault) {
  PlaneRecord old = item.plane;
  old.level = static_cast<uint8_t>(item.task.rules >> kRuleVariantShift);
  old.row_bytes = 2 * old.dim;  // size of a token's codes in the slot
  FoundSteps strip;
  strip.tables =
      reinterpret_cast<const StepTables*>(reader.plan + reader.header.old_tables_at) + old.tables;
  strip.head = item.task.head;
  if (!FindSteps(StoredTask(item), old, &strip)) {
    *fault = Fault::kBadTile;
    return;
  }
  const auto strip_at = static_cast<uint32_t>(strip.bytes - item.task.source);
  if (strip.parts.mode == codecs::StepStripMode::kRaw) {
    return LeaveSteps(item, {}, own->is_row, strip_at + static_cast<uint32_t>(strip.parts.low));
  }
  if (!LoadCodes(item, old, strip, own)) {
    *fault = Fault::kBadTile;
    return;
  }
  SyncWarp();
  const uint32_t by = item.plane.level - old.level;
  for (uint32_t i = ThreadIndex() % kWarpLanes; i < strip.shape.tokens * old.dim; i += kWarpLanes) {
    uint8_t* code = own->places[0] + 2 * i;
    if (IsMarked(own->is_row, i / old.dim)) continue;
    StoreGlobal(code, static_cast<int16_t>(codecs::Coarsen(LoadRecord<int16_t>(code), by)));
  }
  SyncWarp();
  const auto* tables =
      reinterpret_cast<const EncodeStepTables*>(reader.plan + reader.header.tables_at);
  const codecs::StepStripParts parts = WriteCodes(item, tables[old.tables], own->is_row);
  if (parts.bytes == 0) {
    *fault = Fault::kNotDemotable;
    return;
  }
  LeaveSteps(item, parts, own->is_row, strip_at + static_cast<uint32_t>(strip.parts.row_bits));
}

CAIRN_KERNEL CAIRN_BOUNDS(kBlockThreads, 2) NarrowSteps(EncodeArgs args) {
  CAIRN_SHARED(StepsDecodeShared, shared);
  StepWarp* own = &shared.warps[WarpOfBlock()];
  ForEachWarpStrip(args, [&](const EncodeReader& reader, const StripItem& item, Fault* fault) {
    NarrowStrip(reader, item, own, fault);
  });
}

}  // namespace cairn::kernels
