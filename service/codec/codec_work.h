// SPDX-License-Identifier: Apache-2.0
#pragma once
// Requests to a device codec.
//
// Thread-safety: Thread-compatible. Requests are handed from thread to thread.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "codecs/image/image.h"
#include "service/index/side_objects.h"
#include "service/memory/arena.h"

namespace cairn {

// Allocates arena memory for the result. Called once the size is known, on the codec's thread,
// without locks held. Not called after the request has fallen back to its owner.
using CodecRoom = absl::AnyInvocable<absl::StatusOr<Extent>(uint64_t bytes)>;

// A request to encode a payload in source form. The result is what codecs::Encode() makes. Large
// inputs must be in the arena.
struct EncodeWork {
  codecs::ImageSpec spec = {};
  std::span<const std::byte> source = {};
  CodecRoom room = {};
  // As in codecs::EncodeInputs.
  const SideObject* side_object = nullptr;  // the side object that the spec names
  std::span<const float> query_magnitudes = {}, token_scores = {};
  std::span<const codecs::ImageView> parents = {};
  // Keeps the borrowed objects above alive until the device no longer uses them. Even after a
  // fallback, the device may still use them while the owner reads the same bytes.
  std::shared_ptr<const void> keeps = {};
};

// A request to decode a slice of a verified image to source form. The result is what
// codecs::Decode() makes.
struct DecodeWork {
  codecs::ImageView view = {};
  codecs::Slice slice = {};                 // within the image's slice
  uint64_t source_bytes = 0;                // bytes of the slice in source form
  CodecRoom room = {};                      // called before the device begins
  const SideObject* side_object = nullptr;  // the side object that the image names
  std::shared_ptr<const void> keeps = {};   // as in EncodeWork
};

// The outcome of a request.
struct Coded {
  absl::StatusOr<Extent> result;  // after an error, the CPU must do the work
  bool is_refused = false;        // refused during the owner's call
};

// Receives the result. Runs exactly once, without locks held: during the call that refuses the
// request, on the codec's thread, or in Stop(). It must be short, unless the request is refused.
using CodecDone = absl::AnyInvocable<void(Coded)>;

}  // namespace cairn
