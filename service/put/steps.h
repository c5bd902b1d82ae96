// SPDX-License-Identifier: Apache-2.0
#pragma once
// The steps of Put(). Each consumes the result of the one before.

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

// A verified image, in staging or already in the tier.
struct Encoded {
  Extent image;
  codecs::Recipe recipe;
  SideObjectRef side_object;  // null: none
  bool is_placed = false;
  bool is_encode_pending = false;  // stored raw
};

// The images of the previous block, from which ott continues.
struct Parents {
  CopyPins pins;
  std::vector<codecs::ImageView> views;
};

// The inputs of an encoder.
struct Sources {
  Extent payload;
  SideObjectRef side_object;
  Statistics statistics;  // only those that encoders read
  Parents parents;
};

// A running put. Thread-safety: Thread-compatible: handed from thread to thread.
struct PutRun {
  OwnedPut put;
  PutDone done;
  absl::Time began = absl::InfinitePast();  // start of Prepare(), on the monotonic clock
  codecs::ImageSpec spec;                   // of the image to make from the payload
  std::optional<Sources> sources;           // nullopt: nothing to encode
  // Instead of `sources`: a device that is late keeps them.
  std::shared_ptr<const Sources> shared;
  Encoded encoded;
};

// An image in a tier, owned, not visible yet.
struct Placed {
  Extent image;
  codecs::Recipe recipe;
  SideObjectRef side_object;
  bool is_encode_pending = false;
};

// Checks the payload, takes put.staging and decides how to encode it. `crc32c` is the CRC of the
// payload. If that is an image already, run.encoded is set afterwards.
absl::Status Prepare(PutRun& run, uint32_t crc32c);
// Starts encoding on the device, if there is one that accepts it: the put then continues in
// Resume(), on the path pool, and `run` is empty.
bool EncodeOnDevice(std::unique_ptr<PutRun>& run);
// Returns whether there is a device to ask.
bool IsForDevice(const PutRun& run);
// Encodes on this thread, if there is something to encode.
absl::Status Encode(PutRun& run);
// Continues after EncodeOnDevice(), with the image or with the reason why the device did not make
// it.
void Resume(std::unique_ptr<PutRun> run, absl::StatusOr<Extent> image);
absl::StatusOr<Placed> Place(OwnedPut& put, Encoded encoded);
// Sets put.is_duplicate and put.image_bytes.
absl::Status Publish(OwnedPut& put, Placed placed);

}  // namespace cairn
