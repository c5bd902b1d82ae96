// SPDX-License-Identifier: Apache-2.0
#pragma once
// Gathers KV from an engine's memory into a source payload, and scatters a payload to the engine's
// memory. The engine need not repack its KV. codecs/types/target_view.h defines views.
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

// The use of a view: a put reads every token, a get writes tokens and may skip some.
enum class ViewUse : uint8_t { kSource, kTarget };

// Checks views against a shape. Errors: InvalidArgument, naming the field that does not fit the
// shape or points outside the stated memory.
absl::Status Validate(const ViewShape& shape, const PlaneViews& views,
                      ViewUse use = ViewUse::kTarget);

// Returns views of a contiguous source payload: [layer, head, plane, token, dim].
PlaneViews ContiguousViews(const ViewShape& shape, std::byte* payload);

// Copies the tiles of one (layer, head) to `payload`, in the order of planes. REQUIRES:
// Validate(shape, views) is OK; `payload` has the size of those tiles.
void GatherHead(const ViewShape& shape, const PlaneViews& views, uint16_t layer, uint16_t head,
                std::span<std::byte> payload);

// Copy all heads of all layers. REQUIRES: Validate(shape, views) is OK; payload.size() is layers *
// heads * HeadBytes(shape).
void Gather(const ViewShape& shape, const PlaneViews& views, std::span<std::byte> payload);
void Scatter(const ViewShape& shape, const PlaneViews& views, std::span<const std::byte> payload);

}  // namespace cairn
