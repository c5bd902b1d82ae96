// SPDX-License-Identifier: Apache-2.0
#include "proto/block_key.h"

#include <algorithm>
#include <bit>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "proto/sha256.h"

namespace cairn::proto {
namespace {

constexpr std::string_view kSpaceTag = "cairn.space.v1";
constexpr std::string_view kBlockTag = "cairn.block.v1";
constexpr std::string_view kOpaqueTag = "cairn.opaque.v1";

std::span<const std::byte> BytesOf(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

// Collects length-prefixed fields, as described in docs/internals/formats/key.md.
class FieldWriter {
 public:
  FieldWriter& Bytes(std::span<const std::byte> field) {
    CAIRN_CHECK(field.size() <= UINT32_MAX);
    AppendInteger(static_cast<uint32_t>(field.size()));
    bytes_.insert(bytes_.end(), field.begin(), field.end());
    return *this;
  }
  FieldWriter& Text(std::string_view field) { return Bytes(BytesOf(field)); }
  FieldWriter& U8(uint8_t value) { return Fixed(&value, 1); }
  FieldWriter& U32(uint32_t value) { return Fixed(&value, sizeof(value)); }
  FieldWriter& F64(double value) {
    const uint64_t bits = std::bit_cast<uint64_t>(value == 0 ? 0.0 : value);  // -0 becomes 0
    return Fixed(&bits, sizeof(bits));
  }
  // Adds the integers as one field, in little-endian order.
  FieldWriter& U32s(std::span<const uint32_t> values) { return Bytes(std::as_bytes(values)); }

  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  static_assert(std::endian::native == std::endian::little, "integers are copied, not swapped");

  FieldWriter& Fixed(const void* value, size_t bytes) {
    return Bytes({static_cast<const std::byte*>(value), bytes});
  }
  void AppendInteger(uint32_t value) {
    const auto* first = reinterpret_cast<const std::byte*>(&value);
    bytes_.insert(bytes_.end(), first, first + sizeof(value));
  }

  std::vector<std::byte> bytes_;
};

void WriteGroup(FieldWriter& fields, const GroupGeometry& group) {
  fields.U8(static_cast<uint8_t>(group.kind))
      .U32(static_cast<uint32_t>(group.layers.size()))
      .U32s(group.layers)
      .U32(group.kv_heads)
      .U32(group.k_dim)
      .U32(group.v_dim)
      .U32(group.window_tokens)
      .U8(static_cast<uint8_t>(group.rope.kind))
      .U32(group.rope.rotary_dims)
      .F64(group.rope.base)
      .U32(static_cast<uint32_t>(group.rope.inverse_frequencies.size()));
  for (const double frequency : group.rope.inverse_frequencies) {
    fields.F64(frequency);
  }
  fields.U32(group.state_bytes).U32(group.row_bytes);
}

// Returns extras sorted by offset, kind and value, without repetitions, so that equal sets give
// equal bytes.
std::vector<std::byte> CanonicalExtras(std::span<const KeyExtra> extras) {
  std::vector<const KeyExtra*> sorted;
  sorted.reserve(extras.size());
  for (const KeyExtra& extra : extras) {
    sorted.push_back(&extra);
  }
  const auto order = [](const KeyExtra* extra) {
    return std::tie(extra->offset, extra->kind, extra->value);
  };
  std::sort(sorted.begin(), sorted.end(),
            [&order](const KeyExtra* a, const KeyExtra* b) { return order(a) < order(b); });
  sorted.erase(
      std::unique(sorted.begin(), sorted.end(),
                  [&order](const KeyExtra* a, const KeyExtra* b) { return order(a) == order(b); }),
      sorted.end());
  FieldWriter fields;
  for (const KeyExtra* extra : sorted) {
    fields.U32(extra->offset).Text(extra->kind).Text(extra->value);
  }
  return {fields.bytes().begin(), fields.bytes().end()};
}

}  // namespace

Fingerprint FingerprintOf(const SpaceIdentity& identity) {
  FieldWriter fields;
  fields.Text(kSpaceTag)
      .Text(identity.tenant)
      .Text(identity.model)
      .Text(identity.weights_revision)
      .U8(static_cast<uint8_t>(identity.dtype))
      .U32(identity.tokens_per_block)
      .U32(static_cast<uint32_t>(identity.groups.size()));
  for (const GroupGeometry& group : identity.groups) {
    WriteGroup(fields, group);
  }
  return Sha256(fields.bytes());
}

BlockKey DeriveKey(const Fingerprint& space, const BlockKey& parent,
                   std::span<const uint32_t> tokens, std::span<const KeyExtra> extras) {
  FieldWriter fields;
  fields.Text(kBlockTag)
      .Bytes(space)
      .Bytes(parent)
      .U32(static_cast<uint32_t>(tokens.size()))
      .U32s(tokens)
      .Bytes(CanonicalExtras(extras));
  return Sha256(fields.bytes());
}

std::vector<BlockKey> DeriveChain(const Fingerprint& space, std::span<const uint32_t> tokens,
                                  uint32_t tokens_per_block, std::span<const KeyExtra> extras) {
  CAIRN_CHECK(tokens_per_block > 0);
  std::vector<BlockKey> keys;
  keys.reserve(tokens.size() / tokens_per_block);
  BlockKey parent{};
  for (size_t first = 0; tokens.size() - first >= tokens_per_block; first += tokens_per_block) {
    std::vector<KeyExtra> touching;
    for (const KeyExtra& extra : extras) {
      if (extra.offset >= first && extra.offset - first < tokens_per_block) {
        touching.push_back({extra.kind, static_cast<uint32_t>(extra.offset - first), extra.value});
      }
    }
    parent = DeriveKey(space, parent, tokens.subspan(first, tokens_per_block), touching);
    keys.push_back(parent);
  }
  return keys;
}

BlockKey OpaqueKey(const Fingerprint& space, std::span<const std::byte> engine_key) {
  FieldWriter fields;
  fields.Text(kOpaqueTag).Bytes(space).Bytes(engine_key);
  return Sha256(fields.bytes());
}

std::string Hex(std::span<const std::byte> bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  text.reserve(2 * bytes.size());
  for (const std::byte byte : bytes) {
    text.push_back(kDigits[static_cast<uint8_t>(byte) >> 4]);
    text.push_back(kDigits[static_cast<uint8_t>(byte) & 15]);
  }
  return text;
}

}  // namespace cairn::proto
