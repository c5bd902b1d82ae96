// SPDX-License-Identifier: Apache-2.0
#pragma once
// Requests and results of puts and gets.

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

// kPeer: another member of the daemon's cluster.
enum class Tier : uint8_t { kNone = 0, kGpu = 1, kHost = 2, kSsd = 3, kPeer = 4 };

// The side that runs the codec.
enum class Side : uint8_t { kDaemon, kClient };

// A range of layers and a range of heads of one group. Layers are counted within the group. A count
// of 0 means all from `first` on.
struct GroupSlice {
  uint32_t group = 0;
  uint32_t layer_first = 0, layer_count = 0;
  uint32_t head_first = 0, head_count = 0;
};

// The slice's bytes in the space's dtype, contiguous: [layer, head, plane (K, V), token, dim].
struct SourceBytes {
  std::span<const std::byte> bytes;
};
struct SourceTarget {
  std::span<std::byte> bytes;
};
// An encoded image (docs/internals/formats/image.md). A target has at least the image's size: see
// Space::ImageBytesMax().
struct ImageBytes {
  std::span<const std::byte> bytes;
};
struct LentImage;  // private to client/cpp
struct ImageTarget {
  std::span<std::byte> bytes;
  // Used by components that read images where the daemon has them. If not null, the image may be
  // lent. Its tiles are then neither in `bytes` nor verified.
  LentImage* lent = nullptr;
};

// An engine's own names for a block, which the daemon repeats in events. Borrowed.
struct BlockNames {
  // The engine's hash of the block and its hash of the previous block, 8 to 32 bytes each. Empty:
  // none. They are not sent to a daemon whose version does not know them.
  std::span<const std::byte> hash{};
  std::span<const std::byte> parent{};
  // The ids of the block's tokens. They are sent only to a daemon whose operator has asked for
  // them.
  std::span<const uint32_t> tokens{};
};

struct PutRequest {
  BlockKey key{};
  BlockKey parent{};  // all zero: none
  uint64_t first_position = 0;
  GroupSlice slice{};
  bool is_derived = false;  // computed from a prefix that had been stored with loss
  // Whether to wait until the block, and all blocks before it, survive a power loss. If they do
  // not, the put fails with Aborted, and NotDurableOf() returns the reason.
  bool is_durable = false;
  // The side that encodes views and source bytes with the space's recipe. With the recipe ott, the
  // first block of a chain can be encoded on either side. The daemon encodes the others, because
  // only it has the previous block.
  Side encode = Side::kDaemon;
  std::variant<PlaneViews, SourceBytes, ImageBytes> source{};
  // Statistics from which the daemon mines a profile. Empty: none. For each [layer][head][channel
  // of K] of the slice: the mean of the squared query, after RoPE, over the block's tokens and over
  // the query heads that share the KV head. Values are finite and not negative. Sending them costs
  // one more copy of the payload.
  std::span<const float> query_squares{};
  // For the encoder of mixkvq: the mean of |q|, in the same shape. With an image, the put fails
  // with InvalidArgument.
  std::span<const float> query_magnitudes{};
  // For the encoder of arkv: a score for each token, [layer][head][token] of the slice. A token
  // with an infinite score is kept exactly. With an image, the put fails with InvalidArgument.
  std::span<const float> token_scores{};
  BlockNames names{};
};

struct PutResult {
  bool is_duplicate = false;  // the slice was stored already; nothing was moved
  uint64_t image_bytes = 0;   // the size of the slice's image in the daemon
  Durability durability = Durability::kNotAsked;
};

// If `status` says that the block was stored but is not durable, returns the put's result. Its
// `durability` is the reason. Returns nullopt for any other status.
std::optional<PutResult> NotDurableOf(const absl::Status& status);

struct GetRequest {
  BlockKey key{};
  LeaseToken lease{};  // all zero: none
  GroupSlice slice{};
  // kClient moves the image and decodes it in the client; kDaemon decodes in the daemon and moves
  // source bytes. An ImageTarget receives the image, verified but not decoded.
  Side decode = Side::kClient;
  std::variant<PlaneViews, SourceTarget, ImageTarget> target{};
};

struct GetResult {
  Tier tier = Tier::kNone;  // the tier that had the block
  uint64_t bytes = 0;       // bytes written to the target
  uint64_t wire_bytes = 0;  // bytes on the wire
  uint64_t first_position = 0;
};

// A GroupSlice that has been checked against its space.
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

// Checks a slice against the groups of a space. Errors: InvalidArgument, naming the field and the
// limit.
absl::StatusOr<PlacedSlice> PlaceSlice(const std::vector<codecs::GroupShape>& shapes,
                                       const GroupSlice& slice);
// REQUIRES: `slice` came from PlaceSlice().
uint64_t SourceBytesOf(const PlacedSlice& slice);
uint64_t ImageBytesMaxOf(const PlacedSlice& slice);
// Makes the image spec of a block's slice; the caller sets the recipe.
codecs::ImageSpec SpecOf(const PlacedSlice& slice, const Fingerprint& fingerprint,
                         const BlockKey& key, uint64_t first_position);

}  // namespace cairn
