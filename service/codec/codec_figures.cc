// SPDX-License-Identifier: Apache-2.0
#include "service/codec/codec_figures.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "kernels/plan.h"

namespace cairn {
namespace {

constexpr std::string_view kOpNames[kCodecOpCount] = {"encode", "decode"};
constexpr std::string_view kReasons[kCodecFallbackCount] = {
    "small", "large", "unsupported", "full", "late", "lost", "no_room", "refused", "stopping"};
// Indexed by RecipeId.
constexpr std::string_view kRecipes[] = {"mixed", "raw",       "kivi",      "exact",
                                         "cairn", "cairn-hot", "patternkv", "ott",
                                         "arkv",  "mixkvq",    "logquant",  "fp8"};
constexpr double kBatchBounds[] = {1, 2, 4, 8, 16, 32, kernels::kPlanImagesMax};

template <size_t... kIndices>
std::array<Histogram, sizeof...(kIndices)> Latencies(std::index_sequence<kIndices...>) {
  return {((void)kIndices, Histogram(LatencyBounds()))...};
}

}  // namespace

CodecFigures::Figures::Figures() : batch_images(kBatchBounds) {}

CodecFigures::CodecFigures()
    : seconds_{Latencies(std::make_index_sequence<kRecipeCount>()),
               Latencies(std::make_index_sequence<kRecipeCount>())} {
  static_assert(std::size(kRecipes) == kRecipeCount);
}

void CodecFigures::NoteMade(CodecOp op, uint64_t source_bytes, uint64_t image_bytes) {
  of(op).made.Add();
  of(op).source_bytes.Add(source_bytes);
  of(op).image_bytes.Add(image_bytes);
}

void CodecFigures::NoteSeconds(CodecOp op, std::span<const codecs::RecipeId> recipes,
                               absl::Duration seconds) {
  const bool is_mixed = std::ranges::adjacent_find(recipes, std::not_equal_to<>()) != recipes.end();
  const size_t recipe = is_mixed || recipes.empty() ? 0 : static_cast<size_t>(recipes.front());
  seconds_[static_cast<size_t>(op)][recipe].Observe(seconds);
}

uint64_t CodecFigures::waiting(CodecOp op) const {
  // Read the completed counts first, so that the difference cannot be negative.
  uint64_t over = of(op).made.Value();
  for (const Counter& fallbacks : of(op).fallbacks) {
    over += fallbacks.Value();
  }
  return of(op).asked.Value() - over;
}

void CodecFigures::Report(MetricSink& sink) const {
  for (size_t op = 0; op < kCodecOpCount; ++op) {
    const Figures& figures = figures_[op];
    const MetricLabel label[] = {{"op", kOpNames[op]}};
    sink.AddCounter("cairn_gpu_codec_made_total", "Images that the device encoded or decoded.",
                    label, figures.made.Value());
    for (size_t reason = 0; reason < kCodecFallbackCount; ++reason) {
      const MetricLabel labels[] = {{"op", kOpNames[op]}, {"reason", kReasons[reason]}};
      sink.AddCounter(
          "cairn_gpu_codec_fallbacks_total",
          "Images that the processor encoded or decoded instead of the device, by reason.", labels,
          figures.fallbacks[reason].Value());
    }
    sink.AddCounter("cairn_gpu_codec_asked_total",
                    "Images that the device was asked to encode, or to decode slices of.", label,
                    figures.asked.Value());
    sink.AddGauge("cairn_gpu_codec_waiting", "Requests to the device without an answer yet.", label,
                  static_cast<double>(waiting(static_cast<CodecOp>(op))));
    sink.AddCounter("cairn_gpu_codec_source_bytes_total",
                    "Source bytes that the device encoded and decoded.", label,
                    figures.source_bytes.Value());
    sink.AddCounter("cairn_gpu_codec_image_bytes_total",
                    "Bytes of the images that it made, or decoded slices of.", label,
                    figures.image_bytes.Value());
    sink.AddHistogram("cairn_gpu_codec_batch_images", "Images in a batch on the device.", label,
                      figures.batch_images.Snapshot());
    for (size_t recipe = 0; recipe < kRecipeCount; ++recipe) {
      const MetricLabel labels[] = {{"op", kOpNames[op]}, {"recipe", kRecipes[recipe]}};
      sink.AddHistogram(
          "cairn_gpu_codec_seconds",
          "Time from the launch of a batch until its completion is seen, including copies.", labels,
          seconds_[op][recipe].Snapshot());
    }
  }
}

}  // namespace cairn
