// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "base/check.h"
#include "base/status.h"
#include "service/put/steps.h"
#include "service/step_timer.h"

namespace cairn {

absl::Status Publish(PutContext& context, Placed placed) {
  PutPath& path = *context.path_;
  const StepTimer timer(path.seconds(PutPath::Step::kPublish));
  const BlockName name = {context.put_.space_id, context.put_.key};
  uint64_t source_bytes = 0;
  CAIRN_CHECK(codecs::SourceBytes(context.spec_.tile, context.spec_.slice, context.spec_.tokens,
                                  &source_bytes) == codecs::Error::kOk);
  const uint64_t image_bytes = placed.image.size_bytes();
  NewImage image = {.claim = {.name = name,
                              .parent = context.put_.parent,
                              .first_position = context.put_.first_position,
                              .tokens = context.put_.tokens,
                              .group = context.put_.group,
                              .slice = context.spec_.slice},
                    .recipe = placed.recipe,
                    .source_bytes = source_bytes,
                    .extent = std::move(placed.image),
                    .side_object = std::move(placed.side_object),
                    .is_encode_pending = placed.is_encode_pending};
  // A session cannot end between the question and the deed, so after its end nothing appears.
  CAIRN_RETURN_IF_ERROR(path.sessions.IfOpen(context.session_id_, [&] {
    const absl::StatusOr<bool> is_published = path.index.Publish(std::move(image));
    context.is_duplicate_ = is_published.ok() && !*is_published;
    return is_published.status();
  }));
  context.image_bytes_ = image_bytes;
  if (!context.is_duplicate_) {
    path.source_bytes.Add(source_bytes);
    path.image_bytes.Add(image_bytes);
    path.index.Announce(name);
    const std::span<const float> squares = context.statistics_.of(proto::Statistic::kQuerySquares);
    if (!squares.empty()) {
      const SpaceEntry& space = *context.space_;
      path.spaces.query_squares().Add({space.id(), context.put_.group, space.tenant()},
                                      space.groups()[context.put_.group], context.spec_.slice,
                                      squares, context.put_.tokens);
    }
  }
  return absl::OkStatus();
}

}  // namespace cairn
