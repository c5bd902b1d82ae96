// SPDX-License-Identifier: Apache-2.0
#pragma once
// The steps of Get(). Each uses the results of those before.

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "codecs/image/image.h"
#include "service/get/get.h"
#include "service/get/promotions.h"

namespace cairn {

// The images of one answer: their views, in the order of their pins.
using Views = absl::InlinedVector<codecs::ImageView, 4>;

// A running get. Thread-safety: Thread-compatible: handed from thread to thread.
struct GetRun {
  GetPath& path;
  OwnedGet get;
  GetDone done = nullptr;
  SpaceRef space = {};
  codecs::Slice slice = {};
  uint64_t source_bytes = 0;  // of the slice
  // Set by Lookup(): pins of images that together cover the slice.
  CopyPins pins = {};
  // Set by Promote(), by image: the read of its bytes; null if they are addressable.
  absl::InlinedVector<std::shared_ptr<const Promotion>, 4> reads = {};
  absl::Time promoted_at = absl::InfinitePast();
  absl::Duration promote = absl::ZeroDuration();
  // Set by Verify(), by image.
  Views views = {};
  absl::Time verifying_at = absl::InfinitePast();  // on the monotonic clock
  // Set by DecodeOnDevice(): the only pin, which a late device keeps.
  std::shared_ptr<const CopyPin> shared_pin = nullptr;
  bool is_retry = false;  // a spare copy failed; this is the second and last attempt

  bool IsRead(size_t i) const { return i < reads.size() && reads[i] != nullptr; }
  const CopyPin& PinOf(size_t i) const {
    return IsRead(i) ? reads[i]->pin() : shared_pin != nullptr ? *shared_pin : pins[i];
  }
};

// Pins images that cover the slice. Errors: NotFound if there are none.
absl::Status Lookup(GetRun& run);

// Returns whether some of the pinned images must be read through their tier.
bool NeedsPromotion(const GetRun& run);
// Starts reading them and returns. The get continues in Resume(), on the path pool, or is answered
// with a miss at its deadline. If a copy fails that is never the only one, it is dropped and the
// get starts once more with the remaining copies.
void Promote(std::unique_ptr<GetRun> run);
void Resume(std::unique_ptr<GetRun> run);

// Returns the part that the get needs of an image with the slice `whole`.
codecs::Slice WantedOf(const GetRun& run, const codecs::Slice& whole);

// Once all bytes are addressable: verifies them and finishes the get with the answer.
void MakeAnswer(std::unique_ptr<GetRun> run);
// Parses every image and verifies the tiles that the answer needs. Bytes that were read for this
// get have been verified already.
absl::Status Verify(GetRun& run);
// Starts decoding the slice on the device, if there is one that accepts it: the get then continues
// in ResumeDecoded(), on the path pool, and `run` is empty.
bool DecodeOnDevice(std::unique_ptr<GetRun>& run);
// Continues with the decoded slice, or with the reason why the device did not decode it.
void ResumeDecoded(std::unique_ptr<GetRun> run, absl::StatusOr<Extent> source);
// Makes the answer, which takes over the owner of its payload. REQUIRES: Verify() was OK.
absl::StatusOr<Answer> Transcode(GetRun& run);
// After verification: records the time of the answer, and that the block was read.
void NoteAnswer(GetRun& run, const absl::StatusOr<Answer>& answer);

// Counts the outcome and answers. Destroys the run. `tier`: where damaged bytes were.
void Finish(std::unique_ptr<GetRun> run, absl::StatusOr<Answer> answer,
            TierId tier = TierId::kHost);

}  // namespace cairn
