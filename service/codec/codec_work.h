// SPDX-License-Identifier: Apache-2.0
#pragma once
// Requests to a device's codec.
//
// Thread-safety: Thread-compatible: handed from thread to thread.

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

// Allocates room for the result, in the arena. Called once the size is known, on the codec's thread
// and without locks held, unless the owner has already been told that the device does not do it.
using CodecRoom = absl::AnyInvocable<absl::StatusOr<Extent>(uint64_t bytes)>;

// A request to encode a payload in source form: to the bytes that codecs::Encode() makes. Large
// inputs must be in the arena.
struct EncodeWork {
  codecs::ImageSpec spec = {};
  std::span<const std::byte> source = {};
  CodecRoom room = {};
  // As in codecs::EncodeInputs.
  const SideObject* side_object = nullptr;  // named by the spec
  std::span<const float> query_magnitudes = {}, token_scores = {};
  std::span<const codecs::ImageView> parents = {};
  // Keeps everything that is borrowed above alive until the device no longer uses it. That may be
  // after the owner has been told to do the work itself, from the same bytes.
  std::shared_ptr<const void> keeps = {};
};

// A request to decode a slice of a verified image to source form: to the values that
// codecs::Decode() gives.
struct DecodeWork {
  codecs::ImageView view = {};
  codecs::Slice slice = {};                 // within the image's slice
  uint64_t source_bytes = 0;                // of the slice
  CodecRoom room = {};                      // called before the device begins
  const SideObject* side_object = nullptr;  // named by the image
  std::shared_ptr<const void> keeps = {};   // as in EncodeWork
};

// How a request ended.
struct Coded {
  absl::StatusOr<Extent> result;  // an error: the processor must do the work
  bool is_refused = false;        // at once, in the call of its owner
};

// Receives the result. Runs exactly once, without locks held: in the call that refuses the request,
// otherwise on the codec's thread or in Stop(). It must be short unless the request is refused.
using CodecDone = absl::AnyInvocable<void(Coded)>;

}  // namespace cairn
