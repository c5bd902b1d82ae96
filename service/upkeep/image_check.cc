// SPDX-License-Identifier: Apache-2.0
#include "service/upkeep/image_check.h"

#include "absl/status/statusor.h"
#include "base/log.h"
#include "base/status.h"
#include "codecs/image/image.h"
#include "proto/block_key.h"
#include "service/index/pin.h"

namespace cairn {

bool ImageCheck::Check(const CopyPin& pin, std::span<const std::byte> bytes) {
  checked_.Add();
  codecs::ImageView view;
  const absl::StatusOr<SpaceRef> space = spaces_.Find(pin.facts().space_id);
  if (!space.ok()) {
    return true;  // nobody can request it any more
  }
  codecs::Error error = ParsePinned(pin, bytes, (*space)->fingerprint(), &view);
  if (error == codecs::Error::kOk) {
    error = codecs::VerifyTiles(view);
  }
  if (error == codecs::Error::kOk) {
    return true;
  }
  Drop(pin, codecs::Name(error));
  return false;
}

void ImageCheck::Drop(const CopyPin& pin, std::string_view what) {
  if (!index_.Drop(pin)) {
    return;
  }
  corrupt_.Add();
  LogWarn("upkeep", "image is damaged: dropped",
          {{"error", what},
           {"key", proto::Hex(std::span(pin.facts().key).first(4))},
           {"space", pin.facts().space_id},
           {"place", pin.place()}});
}

void ImageCheck::Report(MetricSink& sink) const {
  const MetricLabel where[] = {{"where", where_}};
  sink.AddCounter("cairn_corrupt_tiles_total",
                  "Tiles (on the wire: payloads) whose bytes did not match their CRC, by where.",
                  where, corrupt_.Value());
}

}  // namespace cairn
