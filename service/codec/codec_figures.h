// SPDX-License-Identifier: Apache-2.0
#pragma once
// The metrics of a device codec. Each request is counted once: as done by the device, or as a
// fallback to the CPU with one reason.
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

// Why the CPU does the work instead of the device.
enum class CodecFallback : uint8_t {
  kSmall,        // too small to be worth a launch
  kLarge,        // too large for the memory of a batch, or for a plan
  kUnsupported,  // there is no kernel for it
  kFull,         // too many requests wait
  kLate,         // the device was not done in time
  kLost,         // the device has failed
  kNoRoom,       // no host memory for the result
  kRefused,      // the kernels found the image invalid
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
  // Records the time between the launch of a batch and the poll that saw its completion. `recipes`
  // are the recipes of the batch's images.
  void NoteSeconds(CodecOp op, std::span<const codecs::RecipeId> recipes, absl::Duration seconds);
  // The number of requests that have not been answered yet.
  uint64_t waiting(CodecOp op) const;
  void Report(MetricSink& sink) const;

 private:
  static constexpr size_t kRecipeCount = 12;  // per RecipeId; 0 is for batches of several recipes
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
