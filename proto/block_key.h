// SPDX-License-Identifier: Apache-2.0
#pragma once
// Keys identify spaces and blocks. C++ and Python (client/python/cairn/keys.py) compute the same
// keys. tests/golden/keys has test vectors, and docs/internals/formats/key.md describes the format.
// Each field is encoded after its length, so different inputs never have equal encodings. All
// functions are pure and thread-safe.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "codecs/types/shape.h"
#include "proto/frame.h"

namespace cairn::proto {

using Fingerprint = std::array<std::byte, 32>;

inline constexpr size_t kTenantBytesMax = 64;
inline constexpr size_t kNameBytesMax = 256;          // limit for model and weights_revision
inline constexpr uint32_t kDimMax = codecs::kDimMax;  // elements of a K, V or latent row
inline constexpr uint32_t kLayerIndexMax = 65535;     // in a model; a group has at most kLayersMax
inline constexpr uint32_t kWindowTokensMax = 1u << 30;

struct Rope {
  enum class Kind : uint8_t { kNone = 0, kHalf = 1, kInterleaved = 2 };
  Kind kind = Kind::kNone;
  uint32_t rotary_dims = 0;
  double base = 0;
  std::vector<double> inverse_frequencies;  // empty: base^(-2i/rotary_dims)
};

struct GroupGeometry {
  enum class Kind : uint8_t { kKv = 1, kLatent = 2, kState = 3, kOpaqueRows = 4 };
  Kind kind = Kind::kKv;
  std::vector<uint32_t> layers;  // the layers' indices in the model, in ascending order
  uint32_t kv_heads = 0, k_dim = 0, v_dim = 0;
  uint32_t window_tokens = 0;  // 0: full attention
  Rope rope;
  uint32_t state_bytes = 0, row_bytes = 0;
};

// The identity of a space. Two specs with equal identities name the same space. The recipe is not
// part of the identity, because a policy can change it.
struct SpaceIdentity {
  std::string tenant, model, weights_revision;
  codecs::DType dtype = codecs::DType::kBf16;
  uint32_t tokens_per_block = 128;
  std::vector<GroupGeometry> groups;
};

// Errors: InvalidArgument, naming the field and the limit. One limit is that a block in source form
// must fit into kImagesPerBlockMax images of kImageBytesMax bytes.
absl::Status Validate(const SpaceIdentity& identity);
// Errors: InvalidArgument unless `tenant` is 1 to kTenantBytesMax characters of [A-Za-z0-9._-].
absl::Status ValidateTenant(std::string_view tenant);
// REQUIRES: Validate(identity) is OK.
Fingerprint FingerprintOf(const SpaceIdentity& identity);

// An input other than tokens on which the KV of blocks depends. `kind` is "lora", "salt", "media",
// …. The input affects tokens from position `offset` on.
struct KeyExtra {
  std::string kind;
  uint32_t offset = 0;
  std::string value;
};

// Derives the key of one block. If `parent` is all zero, the block is the first of a chain. Sorts
// `extras` into canonical order and drops repetitions.
BlockKey DeriveKey(const Fingerprint& space, const BlockKey& parent,
                   std::span<const uint32_t> tokens, std::span<const KeyExtra> extras = {});
// Derives the keys of all full blocks of a token sequence. The offset of an extra is counted from
// the start of the sequence. The extra belongs to the block at this offset. In the key of that
// block, the offset is counted from the start of the block. An extra for the whole sequence (LoRA,
// salt) has the offset 0; the keys of later blocks depend on it through their parent. REQUIRES:
// tokens_per_block > 0.
std::vector<BlockKey> DeriveChain(const Fingerprint& space, std::span<const uint32_t> tokens,
                                  uint32_t tokens_per_block, std::span<const KeyExtra> extras = {});
// Derives the key of a block from the engine's own hash of it.
BlockKey OpaqueKey(const Fingerprint& space, std::span<const std::byte> engine_key);

// Returns lower-case hexadecimal.
std::string Hex(std::span<const std::byte> bytes);

}  // namespace cairn::proto
