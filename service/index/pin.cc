// SPDX-License-Identifier: Apache-2.0
#include "service/index/pin.h"

#include <cstring>

#include "base/check.h"
#include "service/index/block_index.h"
#include "service/index/side_objects.h"

namespace cairn {
namespace {

bool IsImageOf(const codecs::ImageSpec& spec, const ImageFacts& facts,
               const proto::Fingerprint& space) {
  static_assert(sizeof(spec.space) == sizeof(space) && sizeof(spec.key) == sizeof(facts.key));
  return std::memcmp(spec.space.data(), space.data(), sizeof(space)) == 0 &&
         std::memcmp(spec.key.data(), facts.key.data(), sizeof(facts.key)) == 0 &&
         spec.group == facts.group && spec.slice == facts.slice && spec.tokens == facts.tokens &&
         spec.first_position == facts.first_position;
}

bool NamesItsSideObject(const codecs::ImageSpec& spec, const SideObject* side) {
  return spec.side_object_count == 0 ? side == nullptr
                                     : side != nullptr && side->id() == spec.side_objects[0];
}

}  // namespace

void ImagePin::Release(BlockIndex& index, Image* image) { index.Unpin(image); }
void CopyPin::Release(BlockIndex& index, Copy* copy) { index.Unpin(copy); }
void CopyWriter::Release(BlockIndex& index, Target target) {
  index.GiveUp(target.image, target.tier);
}
void PutReservation::Release(BlockIndex& index, Block* block) { index.EndReservation(block); }

const ImageFacts& ImagePin::facts() const {
  CAIRN_DCHECK(!is_empty());
  return handle_.value()->facts;
}

const ImageFacts& CopyPin::facts() const {
  CAIRN_DCHECK(!is_empty());
  return handle_.value()->image->facts;
}

const CopyFacts& CopyPin::copy() const {
  CAIRN_DCHECK(!is_empty());
  return handle_.value()->facts;
}

std::span<const std::byte> CopyPin::bytes() const { return extent().bytes(); }

const SideObject* CopyPin::side_object() const {
  CAIRN_DCHECK(!is_empty());
  return handle_.value()->side_object.get();
}

const TierExtent& CopyPin::extent() const {
  CAIRN_DCHECK(!is_empty());
  return handle_.value()->extent;
}

std::string CopyPin::place() const { return FormatPlace(copy().tier, extent().offset()); }

const ImageFacts& CopyWriter::facts() const {
  CAIRN_DCHECK(!is_empty());
  return handle_.value().image->facts;
}

// --- The bytes of a pinned image -----------------------------------------------------------------

codecs::Error CheckPinned(const CopyPin& pin, const codecs::ImagePrefix& prefix,
                          const proto::Fingerprint& space) {
  const CopyFacts& copy = pin.copy();
  if (!IsImageOf(prefix.spec(), pin.facts(), space) || prefix.image_bytes() != copy.image_bytes ||
      prefix.directory_crc() != copy.directory_crc) {
    return codecs::Error::kMismatch;
  }
  return NamesItsSideObject(prefix.spec(), pin.side_object()) ? codecs::Error::kOk
                                                              : codecs::Error::kNoProfile;
}

codecs::Error ParsePinned(const CopyPin& pin, std::span<const std::byte> bytes,
                          const proto::Fingerprint& space, codecs::ImageView* view) {
  if (const codecs::Error error = codecs::ParseImage(bytes, view); error != codecs::Error::kOk) {
    return error;
  }
  return CheckPinned(pin, *view, space);
}

}  // namespace cairn
