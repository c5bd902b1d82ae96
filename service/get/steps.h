// SPDX-License-Identifier: Apache-2.0
#pragma once
// The steps of Get(). Each takes what the one before has set.

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

// Images of one answer: their views, in the order of their pins.
using Views = absl::InlinedVector<codecs::ImageView, 4>;

// One get on its way. Thread-safety: Thread-compatible: handed from thread to thread.
struct GetRun {
  GetPath& path;
  OwnedGet get;
  GetDone done = nullptr;
  SpaceRef space = {};
  codecs::Slice slice = {};
  uint64_t source_bytes = 0;  // of the slice
  // Since Lookup(): of images that together cover the slice.
  ResidentPins pins = {};
  // Since Promote(), by image: what has read its bytes; null where they can be addressed.
  absl::InlinedVector<std::shared_ptr<const Promotion>, 4> reads = {};
  absl::Time promoted_at = absl::InfinitePast();
  absl::Duration promote = absl::ZeroDuration();
  // Since Verify(), by image.
  Views views = {};
  absl::Time verifying_at = absl::InfinitePast();  // on the monotonic clock
  // Since DecodeOnDevice(): the one pin, which a device that is late keeps.
  std::shared_ptr<const ResidentPin> shared_pin = nullptr;
  bool is_second = false;  // a copy failed that was not the only one, and another is looked for

  bool IsRead(size_t i) const { return i < reads.size() && reads[i] != nullptr; }
  const ResidentPin& PinOf(size_t i) const {
    return IsRead(i) ? reads[i]->pin() : shared_pin != nullptr ? *shared_pin : pins[i];
  }
};

// Pins images that cover the slice. NotFound: there are none.
absl::Status Lookup(GetRun& run);

// Some of the pinned bytes have to be read through their tier.
bool NeedsPromotion(const GetRun& run);
// Has them read, and returns. The get goes on in Resume(), on the path pool, or is answered as a
// miss at its deadline. Where a copy that is never the only one cannot be read, it is dropped, and
// the get begins anew with what else there is, once.
void Promote(std::unique_ptr<GetRun> run);
void Resume(std::unique_ptr<GetRun> run);

// What the get wants of an image that has `whole`.
codecs::Slice WantedOf(const GetRun& run, const codecs::Slice& whole);

// Once all bytes can be addressed: verifies them, and finishes the get with the answer.
void MakeAnswer(std::unique_ptr<GetRun> run);
// Parses every image and checks those of its tiles that the answer is made of. What was read for
// this has been verified by that.
absl::Status Verify(GetRun& run);
// Has the device decode the slice, if there is one that takes it: then the get goes on in
// ResumeDecoded(), on the path pool, and `run` is empty.
bool DecodeOnDevice(std::unique_ptr<GetRun>& run);
// With the decoded slice, or with why the device did not make it.
void ResumeDecoded(std::unique_ptr<GetRun> run, absl::StatusOr<Extent> source);
// Makes the answer, and takes of the run what keeps its payload. REQUIRES: Verify() was OK.
absl::StatusOr<Answer> Transcode(GetRun& run);
// Of what was verified: notes how long the answer took, and that it was read.
void NoteAnswer(GetRun& run, const absl::StatusOr<Answer>& answer);

// Counts how the get ended, and answers. Nothing of the run is left by then. `tier`: where damaged
// bytes were.
void Finish(std::unique_ptr<GetRun> run, absl::StatusOr<Answer> answer,
            TierId tier = TierId::kHost);

}  // namespace cairn
