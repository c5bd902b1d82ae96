// SPDX-License-Identifier: Apache-2.0
#include "codecs/side/side_object.h"

#include "codecs/types/bytes.h"

namespace cairn::codecs {
namespace {

namespace field {
constexpr size_t kMagic = 0;        // u32
constexpr size_t kVersion = 4;      // u16
constexpr size_t kHeaderBytes = 6;  // u16
constexpr size_t kBytes = 8;        // u64
constexpr size_t kPlanes = 16;      // u8
constexpr size_t kLayers = 20;      // u16
constexpr size_t kHeads = 22;       // u16
constexpr size_t kDims = 24;        // 2 x u32
}  // namespace field

}  // namespace

bool SideObjectHead::Fits(const TileShape& shape, const Slice& slice) const {
  const bool is_kv = shape.kind == GroupKind::kKv;
  if (!is_kv && shape.kind != GroupKind::kLatent) return false;
  return planes == (is_kv ? 2 : 1) && shape.k_dim == dims[0] && shape.v_dim == dims[1] &&
         uint32_t{slice.layer_first} + slice.layer_count <= layers &&
         uint32_t{slice.head_first} + slice.head_count <= heads;
}

Error ParseSideObjectHead(std::span<const std::byte> bytes, const SideObjectFormat& format,
                          SideObjectHead* head) {
  if (bytes.size() < format.header_bytes) return Error::kTruncated;
  const std::byte* base = bytes.data();
  if (Load<uint32_t>(base + field::kMagic) != format.magic) return Error::kBadMagic;
  if (Load<uint16_t>(base + field::kVersion) != format.version) return Error::kBadVersion;
  if (Load<uint16_t>(base + field::kHeaderBytes) != format.header_bytes ||
      bytes.size() > format.bytes_max) {
    return Error::kBadHeader;
  }
  if (Load<uint64_t>(base + field::kBytes) != bytes.size()) return Error::kTruncated;
  const SideObjectHead read = {Load<uint8_t>(base + field::kPlanes),
                               Load<uint16_t>(base + field::kLayers),
                               Load<uint16_t>(base + field::kHeads),
                               {Load<uint32_t>(base + field::kDims),
                                Load<uint32_t>(base + field::kDims + sizeof(uint32_t))}};
  const auto is_dim = [&format](uint32_t dim) { return dim >= 1 && dim <= format.dim_max; };
  const bool is_valid =
      read.planes >= 1 && read.planes <= 2 && read.layers >= 1 && read.heads >= 1 &&
      uint64_t{read.layers} * read.heads * read.planes <= kTilesMax && is_dim(read.dims[0]) &&
      (read.planes == 2 ? is_dim(read.dims[1]) : read.dims[1] == 0);
  if (!is_valid) return Error::kBadHeader;
  if (!IsZero(base + format.reserved, 1) ||
      !IsZero(base + format.tail, format.header_bytes - format.tail)) {
    return Error::kBadPadding;
  }
  *head = read;
  return Error::kOk;
}

}  // namespace cairn::codecs
