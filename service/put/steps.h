// SPDX-License-Identifier: Apache-2.0
#pragma once
// The steps of Put(). Each consumes the product of the one before.

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "codecs/image/image.h"
#include "codecs/recipe/recipe.h"
#include "service/index/pin.h"
#include "service/index/side_objects.h"
#include "service/memory/arena.h"
#include "service/put/put.h"

namespace cairn {

// An image that is checked: what it says it is, byte for byte. In staging, or in the tier already.
struct Encoded {
  Extent image;
  codecs::Recipe recipe;
  SideObjectRef side_object;  // the one that it names, if any
  bool is_placed = false;
  bool is_encode_pending = false;  // kept raw
};

// The images of the block before, for ott, which goes on with what they have.
struct Parents {
  ResidentPins pins;
  std::vector<codecs::ImageView> views;
};

// All that an image is made of.
struct Sources {
  Extent payload;
  SideObjectRef side_object;
  Statistics statistics;  // those that encoders read
  Parents parents;
};

// One put on its way. Thread-safety: Thread-compatible: handed from thread to thread.
struct PutRun {
  OwnedPut put;
  PutDone done;
  absl::Time began = absl::InfinitePast();  // Prepare(), on the monotonic clock
  codecs::ImageSpec spec;                   // what the payload is to become
  std::optional<Sources> sources;           // nothing: there is nothing to encode
  std::shared_ptr<const Sources> shared;    // instead: a device that is late keeps them
  Encoded encoded;
};

// An image in a tier, owned, not yet visible.
struct Placed {
  Extent image;
  codecs::Recipe recipe;
  SideObjectRef side_object;
  bool is_encode_pending = false;
};

// Checks what landed, takes put.staging, and decides what becomes of it. `crc32c` is of the
// payload. Where that is an image, run.encoded is whole afterwards.
absl::Status Prepare(PutRun& run, uint32_t crc32c);
// Has the device encode, if there is one that takes it: then the put goes on in Resume(), on the
// path pool, and `run` is empty.
bool EncodeOnDevice(std::unique_ptr<PutRun>& run);
// Whether there is a device, and it is to be asked.
bool IsForDevice(const PutRun& run);
// Encodes what is to be encoded, in this thread.
absl::Status Encode(PutRun& run);
// After EncodeOnDevice(): with the image, or with why the device did not make it.
void Resume(std::unique_ptr<PutRun> run, absl::StatusOr<Extent> image);
absl::StatusOr<Placed> Place(OwnedPut& put, Encoded encoded);
// Sets put.is_duplicate and put.image_bytes.
absl::Status Publish(OwnedPut& put, Placed placed);

}  // namespace cairn
