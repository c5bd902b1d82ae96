// SPDX-License-Identifier: Apache-2.0
#include "service/index/block_table.h"

namespace cairn {

void BlockTable::Report(MetricSink& sink) const {
  const auto gauge = [&sink](std::string_view name, std::string_view help, uint64_t value) {
    sink.AddGauge(name, help, {}, static_cast<double>(value));
  };
  gauge("cairn_blocks", "Blocks with at least one image.", figures_.block_count);
  gauge("cairn_images", "Images published.", figures_.image_count);
  gauge("cairn_image_bytes", "Bytes of the images published.", figures_.image_bytes);
  gauge("cairn_source_bytes", "Bytes that they decode to: the effective capacity in use.",
        figures_.source_bytes);
  sink.AddGauge(
      "cairn_compression_ratio", "cairn_source_bytes over cairn_image_bytes; 0 when empty.", {},
      figures_.image_bytes == 0
          ? 0.0
          : static_cast<double>(figures_.source_bytes) / static_cast<double>(figures_.image_bytes));
  gauge("cairn_images_pending", "Images kept raw that upkeep will encode.", pending_count_);
  const MetricLabel host[] = {{"tier", "host"}};
  sink.AddGauge("cairn_tier_pinned_bytes", "Bytes that readers and leases keep, as allocated.",
                host, static_cast<double>(pinned_bytes_));
  sink.AddGauge("cairn_tier_leased_bytes", "Bytes that leases keep, as allocated.", host,
                static_cast<double>(leased_bytes_));
  sink.AddCounter("cairn_image_published_bytes_total",
                  "Image bytes published; less cairn_image_unlinked_bytes_total they are "
                  "cairn_image_bytes.",
                  {}, published_bytes_total_);
  sink.AddCounter("cairn_image_unlinked_bytes_total",
                  "Image bytes evicted, deleted, replaced or dropped.", {}, unlinked_bytes_total_);
  const auto recipes = codecs::AllRecipes();
  for (size_t i = 0; i < recipes.size() + std::size(kRecipeFamilies); ++i) {
    const MetricLabel labels[] = {{"recipe", i < recipes.size()
                                                 ? codecs::FormatRecipe(recipes[i])
                                                 : kRecipeFamilies[i - recipes.size()]}};
    const RecipeFigures& figures = figures_by_recipe_[i];
    sink.AddGauge("cairn_recipe_images", "Images published, by recipe.", labels,
                  static_cast<double>(figures.image_count));
    sink.AddGauge("cairn_recipe_image_bytes", "Bytes of the images published, by recipe.", labels,
                  static_cast<double>(figures.image_bytes));
    sink.AddGauge("cairn_recipe_source_bytes", "Bytes that they decode to, by recipe.", labels,
                  static_cast<double>(figures.source_bytes));
  }
  for (size_t i = 0; i < kEvictionReasonCount; ++i) {
    const MetricLabel labels[] = {{"tier", "host"},
                                  {"reason", Name(static_cast<EvictionReason>(i))}};
    sink.AddCounter("cairn_evictions_total", "Blocks evicted, by reason.", labels,
                    evicted_blocks_[i]);
    sink.AddCounter("cairn_evicted_bytes_total", "Bytes freed by eviction, as allocated.", labels,
                    evicted_bytes_[i]);
  }
}

}  // namespace cairn
