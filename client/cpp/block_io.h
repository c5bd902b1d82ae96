// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a put and a get are told and what they answer.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cpp/view.h"
#include "codecs/image/image.h"
#include "codecs/types/shape.h"
#include "proto/block_key.h"
#include "proto/frame.h"

namespace cairn {

using proto::BlockKey;
using proto::Durability;
using proto::Fingerprint;
using proto::LeaseToken;

enum class Tier : uint8_t { kNone = 0, kGpu = 1, kHost = 2, kSsd = 3 };

// Who runs the codec.
enum class Side : uint8_t { kDaemon, kClient };

// A layer range and a head range of one group. Layers count within the group. Counts of 0: all from
// first on.
struct GroupSlice {
  uint32_t group = 0;
  uint32_t layer_first = 0, layer_count = 0;
  uint32_t head_first = 0, head_count = 0;
};

// Contiguous [layer, head, plane (K, V), token, dim] in the space's dtype: exactly the slice's
// bytes.
struct SourceBytes {
  std::span<const std::byte> bytes;
};
struct SourceTarget {
  std::span<std::byte> bytes;
};
// An encoded image (docs/internals/formats/image.md). A target has at least the image's bytes: see
// Space::ImageBytesMax().
struct ImageBytes {
  std::span<const std::byte> bytes;
};
struct ImageTarget {
  std::span<std::byte> bytes;
};

struct PutRequest {
  BlockKey key{};
  BlockKey parent{};  // all zero: none
  uint64_t first_position = 0;
  GroupSlice slice{};
  bool is_derived = false;  // computed on a lossy prefix
  // Wait until it outlives a loss of power, the blocks before it included. Aborted where it does
  // not: NotDurableOf() says why.
  bool is_durable = false;
  // Of views and source bytes, with the space's recipe. A block of ott that is not the first of its
  // chain is the daemon's to encode all the same: it has the block before.
  Side encode = Side::kDaemon;
  std::variant<PlaneViews, SourceBytes, ImageBytes> source{};
  // For the daemon to mine a profile with; empty: none. [layer][head][channel of K] of the slice:
  // the mean, over the block's tokens and the query heads that read the head, of the square of the
  // query as it meets K, that is after RoPE. Finite, not negative. The payload is copied once more
  // where it carries these or what follows.
  std::span<const float> query_squares{};
  // For the encoder of mixkvq, the same shape: the mean of |q|. With an image: InvalidArgument.
  std::span<const float> query_magnitudes{};
  // For that of arkv, [layer][head][token] of the slice: what each token is worth to its readers,
  // infinite for one to keep as it is. With an image: InvalidArgument.
  std::span<const float> token_scores{};
};

struct PutResult {
  bool is_duplicate = false;  // was there already; nothing moved
  uint64_t image_bytes = 0;   // the daemon holds for the slice
  Durability durability = Durability::kNotAsked;
};

// What a put came to that is stored, but not durable as it asked to be: of the status of its
// failure. nullopt: of any other status. `durability` says why.
std::optional<PutResult> NotDurableOf(const absl::Status& status);

struct GetRequest {
  BlockKey key{};
  LeaseToken lease{};  // all zero: none
  GroupSlice slice{};
  // kClient moves the image and decodes it here; kDaemon moves source bytes. An image target takes
  // the image as it is, verified.
  Side decode = Side::kClient;
  std::variant<PlaneViews, SourceTarget, ImageTarget> target{};
};

struct GetResult {
  Tier tier = Tier::kNone;  // where it was
  uint64_t bytes = 0;       // written to the target
  uint64_t wire_bytes = 0;  // moved
  uint64_t first_position = 0;
};

// A GroupSlice within its space, checked.
struct PlacedSlice {
  uint16_t group = 0;
  codecs::TileShape tile;
  codecs::Slice slice;
  uint16_t tokens = 0;

  proto::SliceRange range() const {
    return {slice.layer_first, slice.layer_count, slice.head_first, slice.head_count};
  }
  ViewShape view_shape() const { return {tile, slice.layer_count, slice.head_count, tokens}; }
};

// `shapes` are the space's groups. InvalidArgument names the field and the limit.
absl::StatusOr<PlacedSlice> PlaceSlice(const std::vector<codecs::GroupShape>& shapes,
                                       const GroupSlice& slice);
// REQUIRES: `slice` came from PlaceSlice().
uint64_t SourceBytesOf(const PlacedSlice& slice);
uint64_t ImageBytesMaxOf(const PlacedSlice& slice);
// Of the slice of a block, but for its recipe.
codecs::ImageSpec SpecOf(const PlacedSlice& slice, const Fingerprint& fingerprint,
                         const BlockKey& key, uint64_t first_position);

}  // namespace cairn
