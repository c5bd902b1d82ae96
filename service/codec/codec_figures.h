// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the codec of a device counts. Of what it is asked to do each piece is made, or falls back
// once, for one reason.
//
// Thread-safety: Thread-safe.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/time/time.h"
#include "base/metric.h"
#include "codecs/recipe/recipe.h"

namespace cairn {

enum class CodecOp : uint8_t { kEncode, kDecode };
inline constexpr size_t kCodecOpCount = 2;

// Why the processor does what the device was asked to.
enum class CodecFallback : uint8_t {
  kSmall,        // not worth a launch
  kLarge,        // more than the device's memory for a batch, or than a plan, has room for
  kUnsupported,  // no kernel does it
  kFull,         // too many wait
  kLate,         // the device had not done it in time
  kLost,         // the device is out
  kNoRoom,       // the host had none for what was made
  kRefused,      // the kernels found a fault in it
  kStopping,
};
inline constexpr size_t kCodecFallbackCount = 9;

class CodecFigures {
 public:
  CodecFigures();

  void NoteAsked(CodecOp op) { of(op).asked.Add(); }
  void NoteBatch(CodecOp op, size_t images) {
    of(op).batch_images.Observe(static_cast<double>(images));
  }
  void NoteMade(CodecOp op, uint64_t source_bytes, uint64_t image_bytes);
  void NoteFallback(CodecOp op, CodecFallback reason) {
    of(op).fallbacks[static_cast<size_t>(reason)].Add();
  }
  // From the time that a batch is put on the device until that is seen to be over. `recipes`: of
  // its images.
  void NoteSeconds(CodecOp op, std::span<const codecs::RecipeId> recipes, absl::Duration seconds);
  // What was asked and not answered.
  uint64_t waiting(CodecOp op) const;
  void Report(MetricSink& sink) const;

 private:
  static constexpr size_t kRecipeCount = 12;  // by RecipeId; of 0 those of several
  struct Figures {
    Figures();
    Counter asked, made, source_bytes, image_bytes;
    std::array<Counter, kCodecFallbackCount> fallbacks;
    Histogram batch_images;
  };
  Figures& of(CodecOp op) { return figures_[static_cast<size_t>(op)]; }
  const Figures& of(CodecOp op) const { return figures_[static_cast<size_t>(op)]; }

  std::array<Figures, kCodecOpCount> figures_;
  std::array<std::array<Histogram, kRecipeCount>, kCodecOpCount> seconds_;
};

}  // namespace cairn
