// SPDX-License-Identifier: Apache-2.0
#include "codecs/forms/strips.h"

#include "codecs/backend/backend_operation.h"
#include "codecs/checksum/checksum.h"
#include "codecs/types/bytes.h"

namespace cairn::codecs {

static_assert(kStripDimMax == kDimMax);

namespace {

std::optional<TileLayout> Layout(const TileGeometry& geometry, const Recipe&, uint32_t rows,
                                 uint64_t bytes) {
  if (rows != 0) return std::nullopt;
  return LayoutOfBytes(geometry, bytes, StripCount(geometry.rows) * kStripBytesMin);
}

Error Encode(const Backend& backend, const Recipe& recipe, const TileSource& source,
             ImageWriter* writer) {
  const TileGeometry& geometry = source.geometry;
  const std::span<std::byte> room = writer->Rest(RawLayout(geometry).bytes - kSectionAlignment);
  const auto encode = OperationOf<&Backend::encode_strip>(backend);
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < StripCount(geometry.rows); ++i) {
    const uint64_t strip_bytes =
        encode(StripOf(geometry, recipe, i), source.bytes + StripSourceOffset(geometry, i),
               U8(room.data()) + bytes, room.size() - bytes);
    if (strip_bytes == 0) return Error::kBadTile;
    bytes += strip_bytes;
  }
  writer->Commit(bytes, Crc32c(room.first(bytes)), 0, kStripsForm);
  return Error::kOk;
}

bool Decode(const DecodeWork& work, const StoredTile& tile, uint8_t* target) {
  return work.strips->Add(tile, target);
}

// Checks each strip with `check`, which returns a StripFault.
template <typename Check>
Error CheckStrips(const StoredTile& tile, Check check) {
  StripFault fault = StripFault::kNone;
  const bool is_valid =
      ForEachStrip(tile.geometry, *tile.recipe, tile.content,
                   [&](uint32_t index, const StripParts& parts, const uint8_t* strip) {
                     fault = check(StripOf(tile.geometry, *tile.recipe, index), strip, parts);
                     return fault == StripFault::kNone;
                   });
  if (is_valid) return Error::kOk;
  return fault == StripFault::kPadding ? Error::kBadPadding : Error::kBadTile;
}

Error Verify(const StoredTile& tile) { return CheckStrips(tile, CheckStrip); }

Error VerifyDecoded(const StoredTile& tile) {
  return CheckStrips(
      tile, [](const StripShape& shape, const uint8_t* strip, const StripParts& parts) {
        return IsStripClean(shape, strip, parts) ? StripFault::kNone : StripFault::kPadding;
      });
}

}  // namespace

bool StripDecoder::Add(const StoredTile& tile, uint8_t* target) {
  const TileGeometry& geometry = tile.geometry;
  return ForEachStrip(geometry, *tile.recipe, tile.content,
                      [&](uint32_t index, const StripParts& parts, const uint8_t* strip) {
                        const StripJob job{StripOf(geometry, *tile.recipe, index),
                                           parts,
                                           strip,
                                           BehindStrip(tile, strip, parts.bytes),
                                           target + StripSourceOffset(geometry, index),
                                           is_streamed_};
                        if (parts.mode != StripMode::kLanes32) return DecodeStrips(&job, 1);
                        jobs_[count_++] = job;
                        return count_ < kStripsAtOnce || Flush();
                      });
}

bool StripDecoder::DecodeStrips(const StripJob* jobs, uint32_t count) const {
  return OperationOf<&Backend::decode_strips>(backend_)(jobs, count);
}

bool StripDecoder::Flush() {
  const uint32_t count = count_;
  count_ = 0;
  return count == 0 || DecodeStrips(jobs_, count);
}

const Form forms::kStrips = {"strips", Layout, Encode, Decode, Verify, nullptr, VerifyDecoded};

}  // namespace cairn::codecs
