// SPDX-License-Identifier: Apache-2.0
#include "base/log.h"
#include "base/status.h"
#include "codecs/image/image.h"
#include "proto/block_key.h"
#include "service/index/pinned_image.h"
#include "service/upkeep/upkeep.h"

namespace cairn {

bool Upkeep::VerifyOne(const ResidentPin& pin) {
  verified_images_.Add();
  codecs::ImageView view;
  const absl::StatusOr<SpaceRef> space = spaces_.Find(pin.facts().space_id);
  if (!space.ok()) {
    return true;  // nobody can ask for it any more
  }
  codecs::Error error = ParsePinned(pin, pin.bytes(), (*space)->fingerprint(), &view);
  if (error == codecs::Error::kOk) {
    error = codecs::VerifyTiles(view);
  }
  if (error == codecs::Error::kOk) {
    return true;
  }
  if (index_.Drop(pin)) {
    corrupt_images_.Add();
    LogWarn("upkeep", "image is damaged: dropped",
            {{"error", codecs::Name(error)},
             {"key", proto::Hex(std::span(pin.facts().key).first(4))},
             {"space", pin.facts().space_id},
             {"place", pin.place()}});
  }
  return false;
}

absl::Status Upkeep::Verify(uint64_t space_id,
                            const std::function<bool(const VerifyProgress&)>& progress) {
  VerifyProgress done;
  done.images_total =
      space_id == 0 ? index_.figures().image_count : index_.figures(space_id).image_count;
  absl::Time reported = MonotonicNow();
  uint64_t cursor = 0;
  ResidentPins pins;
  for (bool has_more = true; has_more;) {
    has_more = index_.Walk(space_id, &cursor, &pins);
    for (ResidentPin& pin : pins) {
      ++done.images_checked;
      done.bytes_checked += pin.copy().image_bytes;
      done.corrupt_images += VerifyOne(pin) ? 0 : 1;
      pin.Reset();
      if (MonotonicNow() - reported >= absl::Milliseconds(500)) {
        reported = MonotonicNow();
        if (!progress(done)) {
          return absl::CancelledError("verify: cancelled");
        }
      }
    }
  }
  // Images that came or went meanwhile.
  done.images_total = done.images_checked;
  progress(done);
  return absl::OkStatus();
}

}  // namespace cairn
