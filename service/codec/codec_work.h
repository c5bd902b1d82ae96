// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a device is asked to code.
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

// Room for what is made, in the arena. Called once its bytes are known, on the codec's thread and
// with no lock held, unless the owner was told before that the device does not do it.
using CodecRoom = absl::AnyInvocable<absl::StatusOr<Extent>(uint64_t bytes)>;

// A payload in source form, of which an image is to be made: byte for byte the one that
// codecs::Encode() makes. What is large of it lies in the arena.
struct EncodeWork {
  codecs::ImageSpec spec = {};
  std::span<const std::byte> source = {};
  CodecRoom room = {};
  // As codecs::EncodeInputs has them.
  const SideObject* side_object = nullptr;  // that the spec names
  std::span<const float> query_magnitudes = {}, token_scores = {};
  std::span<const codecs::ImageView> parents = {};
  // Keeps all that is borrowed above until the device has let go of it, which may be later than its
  // owner is told that the device does not do it: that one goes on with the same bytes.
  std::shared_ptr<const void> keeps = {};
};

// An image, verified, of which a slice is to be decoded to source form: to the values that
// codecs::Decode() gives.
struct DecodeWork {
  codecs::ImageView view = {};
  codecs::Slice slice = {};                 // inside the image's
  uint64_t source_bytes = 0;                // of the slice
  CodecRoom room = {};                      // called before the device begins
  const SideObject* side_object = nullptr;  // that the image names
  std::shared_ptr<const void> keeps = {};   // as of EncodeWork
};

// Runs exactly once, on the codec's thread or in Stop(), with no lock held: hand over what takes
// longer than memory work. What was made, or why the device did not: the processor is to do it.
using CodecDone = absl::AnyInvocable<void(absl::StatusOr<Extent>)>;

}  // namespace cairn
