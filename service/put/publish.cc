// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "base/check.h"
#include "base/metric.h"
#include "base/status.h"
#include "service/put/steps.h"

namespace cairn {

absl::Status Publish(OwnedPut& put, Placed placed) {
  PutPath& path = *put.path;
  const StepTimer timer(path.seconds(PutPath::Step::kPublish));
  const BlockName name = {put.put.space_id, put.put.key};
  uint64_t source_bytes = 0;
  CAIRN_CHECK(codecs::SourceBytes(put.spec.tile, put.spec.slice, put.spec.tokens, &source_bytes) ==
              codecs::Error::kOk);
  const uint64_t image_bytes = placed.image.size_bytes();
  NewImage image = {.claim = {.name = name,
                              .parent = put.put.parent,
                              .first_position = put.put.first_position,
                              .tokens = put.put.tokens,
                              .group = put.put.group,
                              .slice = put.spec.slice},
                    .source_bytes = source_bytes,
                    .copy = {.recipe = placed.recipe,
                             .extent = std::move(placed.image),
                             .side_object = std::move(placed.side_object)},
                    .is_encode_pending = placed.is_encode_pending,
                    .expires_unix_s = ExpiryAt(put.space->coding().policy(), path.clock.Now())};
  // A session cannot end between the question and the deed, so after its end nothing appears.
  CAIRN_RETURN_IF_ERROR(path.sessions.IfOpen(put.session_id, [&] {
    const absl::StatusOr<bool> is_published = path.index.Publish(std::move(image));
    put.is_duplicate = is_published.ok() && !*is_published;
    return is_published.status();
  }));
  put.image_bytes = image_bytes;
  if (!put.is_duplicate) {
    path.source_bytes.Add(source_bytes);
    path.image_bytes.Add(image_bytes);
    path.index.Announce(name);
    const std::span<const float> squares = put.statistics.of(proto::Statistic::kQuerySquares);
    if (!squares.empty()) {
      put.space->coding().AddQuerySquares(put.put.group, put.spec.slice, squares, put.put.tokens);
    }
  }
  return absl::OkStatus();
}

}  // namespace cairn
