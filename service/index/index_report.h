// SPDX-License-Identifier: Apache-2.0
#pragma once
// The index's interface for statistics.
//
// Thread-safety: Thread-safe. BlockIndex implements it with its lock.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/metric.h"
#include "service/index/figures.h"
#include "service/index/side_objects.h"
#include "service/index/wanted.h"
#include "service/tier/image_facts.h"

namespace cairn {

struct ListedImage {
  ImageFacts facts;
  CopyFacts copy;
  uint32_t pin_count = 0;
  std::optional<codecs::Digest> side_object;
};
struct ListedBlock {
  proto::BlockKey key{};
  proto::BlockKey parent{};
  uint64_t first_position = 0;
  bool is_complete = false;  // for the `whole` given to List()
  uint32_t child_count = 0;
  absl::Duration idle;
  std::vector<ListedImage> images;
};

class IndexReport {
 public:
  virtual ~IndexReport() = default;

  // Returns blocks of a space in ascending order of key, after `after`; `limit` is at most
  // kListBlocksMax. Sets *has_more.
  virtual std::vector<ListedBlock> List(uint64_t space_id,
                                        const std::optional<proto::BlockKey>& after, size_t limit,
                                        absl::Span<const WantedGroup> whole,
                                        bool* has_more) const = 0;
  virtual IndexFigures figures() const = 0;
  virtual IndexFigures figures(uint64_t space_id) const = 0;
  virtual CopyFigures figures(TierId tier) const = 0;
  // In the host tier, by any pin, including unlinked copies.
  virtual uint64_t pinned_bytes() const = 0;
  virtual uint64_t leased_bytes() const = 0;  // in the host tier
  virtual uint64_t lease_count() const = 0;
  virtual uint64_t waiter_count() const = 0;
  virtual void Report(MetricSink& sink) const = 0;
};

}  // namespace cairn
