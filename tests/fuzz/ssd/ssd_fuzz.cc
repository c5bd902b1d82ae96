// SPDX-License-Identifier: Apache-2.0
// Whatever bytes lie in a tier's folder: tier.meta, the header of a segment, and the records of the
// ledger. What is taken writes itself again, byte for byte. The first byte chooses what the others
// are; they are tried as they come and with their CRC made right, as few would pass it otherwise.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "codecs/checksum/checksum.h"
#include "service/tier/ssd/folder.h"
#include "service/tier/ssd/record.h"

namespace {

using Bytes = std::span<const std::byte>;

void CheckRefusal(const absl::Status& status) {
  CAIRN_CHECK(absl::IsDataLoss(status) || absl::IsUnimplemented(status), status.ToString());
}

// Of tier.meta and headers; `encode` writes what was parsed.
template <typename Parsed, typename Encode>
void TryFixed(const Parsed& parsed, Bytes bytes, Encode encode) {
  if (!parsed.ok()) {
    CheckRefusal(parsed.status());
    return;
  }
  std::vector<std::byte> again(bytes.size());
  encode(*parsed, again);
  CAIRN_CHECK(std::ranges::equal(again, bytes));
}

void TryMeta(Bytes bytes) {
  TryFixed(cairn::ParseTierMeta(bytes), bytes,
           [](const cairn::TierMeta& meta, std::span<std::byte> again) {
             cairn::EncodeTierMeta(meta, again.first<cairn::kTierMetaBytes>());
           });
}

void TryHeader(Bytes bytes) {
  TryFixed(cairn::ParseSegmentHeader(bytes), bytes,
           [](const cairn::SegmentHeader& header, std::span<std::byte> again) {
             cairn::EncodeSegmentHeader(header, again.first<cairn::kSegmentHeaderBytes>());
           });
}

template <typename Parse, typename Encode>
void TryRecord(const std::string& key, std::string_view value, Parse parse, Encode encode) {
  const auto parsed = parse(key, value);
  if (!parsed.ok()) {
    CheckRefusal(parsed.status());
    return;
  }
  CAIRN_CHECK(encode(key, *parsed) == value);
}

// The bytes are fields; those that are not known are skipped, and so are not written again.
void TryFields(std::string_view fields) {
  const std::string key = cairn::FieldsKey({.seq = 7, .page = 9});
  std::string value(1, static_cast<char>(cairn::kFieldsVersion));
  value += fields;
  cairn::SealRecord(key, &value);
  const auto names = cairn::ParseFields(key, value);
  if (!names.ok()) {
    CheckRefusal(names.status());
  } else if (*names != nullptr) {
    const auto again = cairn::ParseFields(key, cairn::EncodeFields(key, *names));
    CAIRN_CHECK(again.ok() && **again == **names);
  }
}

void TryRecords(size_t kind, std::string_view value) {
  if (kind == 2) {
    TryFields(value);
    const std::string key = cairn::ExtentKey({.seq = 7, .page = 9});
    TryRecord(key, value, cairn::ParseExtent, cairn::EncodeExtent);
  } else if (kind == 3) {
    TryRecord(cairn::SegmentKey(1), value, cairn::ParseSegment, cairn::EncodeSegment);
  } else if (kind == 4) {
    TryRecord(cairn::SpaceKey(1), value, cairn::ParseSpace, cairn::EncodeSpace);
  } else {
    TryRecord(cairn::MetaKey("name"), value, cairn::ParseMeta, cairn::EncodeMeta);
  }
}

// The CRC that the bytes should have had.
std::string SealedRecord(size_t kind, std::string_view value) {
  const std::string keys[] = {cairn::ExtentKey({.seq = 7, .page = 9}), cairn::SegmentKey(1),
                              cairn::SpaceKey(1), cairn::MetaKey("name")};
  std::string sealed(value);
  cairn::SealRecord(keys[kind - 2], &sealed);
  return sealed;
}

// With zeros up to the size that a header has to have.
std::vector<std::byte> SealedFixed(Bytes bytes, size_t size) {
  constexpr size_t kCrc = 12;
  std::vector<std::byte> sealed(size);
  std::copy_n(bytes.begin(), std::min(bytes.size(), size), sealed.begin());
  std::memset(sealed.data() + kCrc, 0, sizeof(uint32_t));
  const uint32_t crc = cairn::codecs::Crc32c(sealed);
  std::memcpy(sealed.data() + kCrc, &crc, sizeof(crc));
  return sealed;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) {
    return 0;
  }
  const size_t kind = data[0] % 6;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  const Bytes bytes = std::as_bytes(std::span(text.data(), text.size()));
  (void)cairn::ParseExtentKey(text);
  (void)cairn::ParseNumberKey(cairn::RecordKind::kSpace, text);
  if (kind == 0) {
    TryMeta(bytes);
    TryMeta(SealedFixed(bytes, cairn::kTierMetaBytes));
  } else if (kind == 1) {
    TryHeader(bytes);
    TryHeader(SealedFixed(bytes, cairn::kSegmentHeaderBytes));
  } else {
    TryRecords(kind, text);
    TryRecords(kind, SealedRecord(kind, text));
  }
  return 0;
}
