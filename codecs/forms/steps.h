// SPDX-License-Identifier: Apache-2.0
#pragma once
// Decodes tiles of the recipe `cairn`, which consist of strips. For encoders with a profile, also
// divides a source into strips. codecs/pack/step_strip.h describes a strip.
//
// Thread-safety: functions are Thread-safe; a StepStripDecoder is owned by one caller. Nothing
// allocates; up to 1 MiB of stack is used.

#include <cstdint>

#include "codecs/backend/backend.h"
#include "codecs/backend/step_scratch.h"
#include "codecs/backend/step_tile.h"
#include "codecs/forms/form.h"
#include "codecs/side/profile.h"

namespace cairn::codecs {

// Returns strip `index` of a tile, for backend operations that code with a profile.
[[nodiscard]] StepSource StepSourceOf(const TileSource& source, uint32_t index);

// Decodes tiles, several strips at once. Targets may stay unwritten until Flush().
class StepStripDecoder {
 public:
  // is_streamed: bypass the caches when writing targets. scratch: belongs to the image; must
  // outlive the decoder.
  StepStripDecoder(const Backend& backend, bool is_streamed, StepScratch* scratch)
      : backend_(backend), is_streamed_(is_streamed), scratch_(scratch) {}

  // Adds a tile to decode. Returns false if a strip of this tile or of an earlier one is invalid.
  // REQUIRES: the tile's image is codable with the profile.
  //   tile    its content must outlive Flush()
  //   target  room for the tile's elements, valid until Flush()
  [[nodiscard]] bool Add(const StoredTile& tile, const Profile& profile, uint8_t* target);
  [[nodiscard]] bool Flush();
  // Returns whether no strip waits for Flush().
  [[nodiscard]] bool IsEmpty() const { return count_ == 0; }

 private:
  [[nodiscard]] bool DecodeJobs();

  const Backend& backend_;
  bool is_streamed_;
  StepScratch* scratch_;
  uint32_t count_ = 0;
  uint32_t tile_count_ = 0;
  StepStripJob jobs_[kStripsAtOnce];
  StepTile tiles_[kStripsAtOnce];  // tiles of the jobs
};

}  // namespace cairn::codecs
