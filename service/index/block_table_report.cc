// SPDX-License-Identifier: Apache-2.0
#include "service/index/block_table.h"

namespace cairn {

void BlockTable::Report(MetricSink& sink) const {
  const auto gauge = [&sink](std::string_view name, std::string_view help, uint64_t value) {
    sink.AddGauge(name, help, {}, static_cast<double>(value));
  };
  gauge("cairn_blocks", "Blocks with at least one image.", figures_.block_count);
  gauge("cairn_images", "Images published.", figures_.image_count);
  gauge("cairn_images_pending", "Images stored raw that upkeep will encode.", pending_.count());
  gauge("cairn_images_uncopied", "Images still to be written to the SSD tier.", uncopied_.count());
  gauge("cairn_image_bytes", "Bytes of the images published, in all tiers.", figures_.image_bytes);
  gauge("cairn_source_bytes",
        "Decoded size of the images, each counted once: the effective capacity in use.",
        figures_.source_bytes);
  gauge("cairn_index_bytes",
        "Memory of the records of blocks, images and copies, including free ones.", bytes());
  gauge("cairn_index_awake_blocks",
        "Blocks with all their records: in memory or in use. Others are at rest.", awake_count_);
  uint64_t published = 0, unlinked = 0;
  for (const InTier& tier : tiers_) {
    published += tier.published_bytes_total;
    unlinked += tier.unlinked_bytes_total;
  }
  sink.AddGauge("cairn_compression_ratio",
                "Decoded size of the copies in all tiers, divided by their bytes; 0 when empty.",
                {},
                figures_.image_bytes == 0 ? 0.0
                                          : static_cast<double>(figures_.copies_source_bytes) /
                                                static_cast<double>(figures_.image_bytes));
  sink.AddCounter("cairn_image_published_bytes_total",
                  "Image bytes published; less cairn_image_unlinked_bytes_total they are "
                  "cairn_image_bytes.",
                  {}, published);
  sink.AddCounter("cairn_image_unlinked_bytes_total",
                  "Image bytes evicted, deleted, replaced or dropped.", {}, unlinked);
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
    sink.AddGauge("cairn_recipe_source_bytes", "Decoded size of the images, by recipe.", labels,
                  static_cast<double>(figures.source_bytes));
  }
  sink.AddHistogram("cairn_block_reuse_seconds",
                    "Idle time of blocks before they were used again. Accesses within two seconds, "
                    "such as a match and its get, are one use.",
                    {}, reuse_seconds_.Snapshot());
  sink.AddCounter("cairn_expired_blocks_total", "Blocks that expired.", {}, expired_total_);
  for (const TierId id : kReadOrder) {
    if (At(id).exists) {
      ReportTier(id, sink);
    }
  }
}

void BlockTable::ReportTier(TierId id, MetricSink& sink) const {
  const InTier& tier = At(id);
  const MetricLabel label[] = {{"tier", Name(id)}};
  const auto gauge = [&](std::string_view name, std::string_view help, uint64_t value) {
    sink.AddGauge(name, help, label, static_cast<double>(value));
  };
  gauge("cairn_tier_blocks", "Blocks with a copy in a tier.", tier.figures.block_count);
  gauge("cairn_tier_copies", "Copies of images in a tier.", tier.figures.copy_count);
  gauge("cairn_tier_image_bytes", "Bytes of the copies in a tier.", tier.figures.image_bytes);
  gauge("cairn_tier_pinned_bytes", "Bytes pinned by readers and leases, as allocated.",
        tier.figures.pinned_bytes);
  gauge("cairn_tier_leased_bytes",
        "Bytes of images that are leased, as allocated; deleted ones until their lease ends.",
        tier.figures.leased_bytes);
  sink.AddCounter("cairn_tier_lost_copies_total",
                  "Copies dropped because they were damaged or their device was out.", label,
                  tier.lost_total);
  sink.AddCounter("cairn_dirty_evictions_total",
                  "Images evicted from a tier before they were in the SSD tier.", label,
                  tier.evicted_dirty_images);
  sink.AddCounter("cairn_dirty_evicted_bytes_total",
                  "Bytes of images evicted from a tier before they were in the SSD tier.", label,
                  tier.evicted_dirty_bytes);
  for (size_t i = 0; i < kEvictionReasonCount; ++i) {
    const MetricLabel labels[] = {{"tier", Name(id)},
                                  {"reason", Name(static_cast<EvictionReason>(i))}};
    sink.AddCounter("cairn_evictions_total", "Blocks evicted from a tier, by reason.", labels,
                    tier.evicted_blocks[i]);
    sink.AddCounter("cairn_evicted_bytes_total", "Bytes freed by eviction, as allocated.", labels,
                    tier.evicted_bytes[i]);
  }
  sink.AddHistogram("cairn_evicted_unused_seconds",
                    "Idle time of blocks when they were evicted from a tier.", label,
                    tier.evicted_unused_seconds.Snapshot());
}

void BlockTable::EmitEvent(const Copy& copy, bool is_stored) {
  if (!events_.is_recording()) {
    return;
  }
  const Block& block = *copy.image->block;
  const Block* parent = ParentOf(block);
  events_.Append({.name = block.name,
                  .is_stored = is_stored,
                  .tier = copy.facts.tier,
                  .tokens = static_cast<uint16_t>(copy.image->facts.tokens),
                  .parent = parent == nullptr ? proto::BlockKey{} : parent->name.key,
                  .first_position = block.first_position});
}

}  // namespace cairn
