// SPDX-License-Identifier: Apache-2.0
#include "codecs/mine/profile_content.h"

#include <utility>

#include "codecs/types/bytes.h"

namespace cairn::codecs {
namespace {

class Writer {
 public:
  template <typename Value>
  void Put(Value value) {
    bytes.resize(bytes.size() + sizeof(value));
    Store(bytes.data() + bytes.size() - sizeof(value), value);
  }
  void EndPart() { bytes.resize(AlignSection(bytes.size())); }

  std::vector<std::byte> bytes;
};

constexpr size_t kBytesField = 8;  // offset in the header

void PutHeader(const ProfileContent& content, Writer* writer) {
  writer->Put(kProfileMagic);
  writer->Put(kProfileVersion);
  writer->Put(static_cast<uint16_t>(kProfileHeaderBytes));
  writer->Put(uint64_t{0});
  writer->Put(static_cast<uint8_t>(content.planes.size()));
  writer->Put(content.pairs.kind);
  writer->Put(uint16_t{0});
  writer->Put(content.layers);
  writer->Put(content.heads);
  writer->Put(content.planes[0].dim);
  writer->Put(content.planes.size() > 1 ? content.planes[1].dim : uint32_t{0});
  writer->Put(static_cast<uint16_t>(content.pairs.first));
  writer->Put(static_cast<uint16_t>(content.pairs.dims));
  writer->Put(static_cast<uint16_t>(content.rates.size()));
  writer->bytes.resize(kProfileHeaderBytes);
}

}  // namespace

std::vector<std::byte> WriteProfile(const ProfileContent& content) {
  Writer writer;
  PutHeader(content, &writer);
  for (const uint64_t turns : content.turns) writer.Put(turns);
  writer.EndPart();
  for (const ProfileRate& rate : content.rates) {
    writer.Put(rate.bits);
    writer.Put(rate.multiplier);
  }
  writer.EndPart();
  for (const ProfilePlane& plane : content.planes) {
    for (const ProfileTable& table : plane.tables) {
      for (const uint8_t frequency : table.frequencies) writer.Put(frequency);
    }
    writer.EndPart();
    for (const ProfileTable& table : plane.tables) {
      for (const int8_t offset : table.offsets) writer.Put(offset);
    }
    writer.EndPart();
  }
  for (const ProfilePlane& plane : content.planes) {
    for (const ProfileChannel& channel : plane.channels) {
      writer.Put(channel.mean);
      writer.Put(channel.step_log);
      writer.Put(channel.spread_log);
    }
    writer.EndPart();
  }
  Store(writer.bytes.data() + kBytesField, uint64_t{writer.bytes.size()});
  return std::move(writer.bytes);
}

}  // namespace cairn::codecs
