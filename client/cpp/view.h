// SPDX-License-Identifier: Apache-2.0
#pragma once
// KV where an engine keeps it: gathered into source payload and scattered out of it, without a
// repacking pass of the engine's own. codecs/types/target_view.h says what a view is.
//
// Thread-safety: pure functions.

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "codecs/types/target_view.h"

namespace cairn {

using PlaneView = codecs::TargetPlane;
using PlaneViews = codecs::TargetView;
using codecs::HeadBytes;
using codecs::kTokenSkipped;
using codecs::ViewShape;

// What the views are for: a put reads them and needs every token, a get writes them.
enum class ViewUse : uint8_t { kSource, kTarget };

// InvalidArgument names the view's field that cannot be of this shape, or that leads outside the
// memory which the view states.
absl::Status Validate(const ViewShape& shape, const PlaneViews& views,
                      ViewUse use = ViewUse::kTarget);

// Views of contiguous source payload: [layer, head, plane, token, dim].
PlaneViews ContiguousViews(const ViewShape& shape, std::byte* payload);

// Copies the tiles of one (layer, head) to `payload`, which holds those tiles alone, in plane
// order. REQUIRES: Validate(shape, views) is OK; payload has their bytes.
void GatherHead(const ViewShape& shape, const PlaneViews& views, uint16_t layer, uint16_t head,
                std::span<std::byte> payload);

// All heads of all layers. REQUIRES: as above; payload.size() is layers * heads * HeadBytes(shape).
void Gather(const ViewShape& shape, const PlaneViews& views, std::span<std::byte> payload);
void Scatter(const ViewShape& shape, const PlaneViews& views, std::span<const std::byte> payload);

}  // namespace cairn
