// SPDX-License-Identifier: Apache-2.0
#include "service/recovery.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <string>
#include <string_view>

#include "base/log.h"
#include "base/status.h"
#include "codecs/image/image.h"
#include "proto/side_object.h"

namespace cairn {
namespace {

constexpr std::string_view kDropNames[] = {"space", "shape", "side_object", "duplicate",
                                           "chain", "room",  "expired"};
static_assert(std::size(kDropNames) == Restorer::kDropCount);

bool IsNone(const codecs::Digest& id) { return id == codecs::Digest{}; }

bool IsOfSpace(const SpaceEntry& space, const FoundImage& found) {
  const ImageFacts& image = found.image;
  if (image.tokens != space.tokens_per_block() ||
      !space.CheckSlice(image.group, image.slice).ok()) {
    return false;
  }
  codecs::ImageSpec spec = {.group = image.group,
                            .tile = space.groups()[image.group].tile,
                            .slice = image.slice,
                            .tokens = image.tokens,
                            .first_position = image.first_position,
                            .recipe = {}};
  std::memcpy(spec.space.data(), space.fingerprint().data(), spec.space.size());
  std::memcpy(spec.key.data(), image.key.data(), spec.key.size());
  uint64_t source_bytes = 0;
  return codecs::Validate(spec) == codecs::Error::kOk &&
         codecs::SourceBytes(spec.tile, spec.slice, spec.tokens, &source_bytes) ==
             codecs::Error::kOk &&
         source_bytes == image.source_bytes && found.place.size_bytes() <= codecs::kImageBytesMax;
}

}  // namespace

uint64_t Restorer::FoundSpace(const SpaceRecord& record, SideObjectSource& side_objects) {
  missing_.clear();
  auto opened = spaces_.Restore(record);
  if (!opened.ok()) {
    ++spaces_dropped_;
    LogWarn("recovery", "space and its blocks were not recovered",
            {{"tenant", record.identity.tenant}, {"error", opened.status()}});
    return 0;
  }
  SpaceEntry& space = *opened->space;
  if (opened->is_created || !is_serving_) {
    for (const SpaceRecord::Current& current : record.current) {
      RestoreCurrent(space, current, side_objects);
    }
  }
  const uint64_t id = space.id();
  if (found_.try_emplace(id, std::move(opened->space)).second) {
    ++spaces_restored_;
  }
  return id;
}

void Restorer::RestoreCurrent(SpaceEntry& space, const SpaceRecord::Current& current,
                              SideObjectSource& side_objects) {
  for (const SideObjects::Listed& there : space.coding().List()) {
    const bool is_in_its_place = there.kind == current.kind &&
                                 std::find(there.current_groups.begin(), there.current_groups.end(),
                                           current.group) != there.current_groups.end();
    if (is_in_its_place && (there.origin == SideObjectOrigin::kInstalled || current.is_mined)) {
      return;
    }
  }
  const auto bytes = side_objects.Read(current.id);
  absl::Status status = bytes.status();
  if (status.ok()) {
    status =
        space.coding()
            .Install(current.group, current.kind, *bytes,
                     current.is_mined ? SideObjectOrigin::kMined : SideObjectOrigin::kInstalled)
            .status();
  }
  if (!status.ok()) {
    ++side_objects_lost_;
    LogWarn("recovery", "space lost its side object",
            {{"space", space.id()},
             {"group", current.group},
             {"kind", proto::Name(current.kind)},
             {"error", status}});
  }
}

const SideObjectRef* Restorer::SideObjectOf(SpaceEntry& space, const FoundImage& image,
                                            SideObjectSource& side_objects) {
  const SideObjectName name(space.id(), image.side_object);
  if (missing_.contains(name)) {
    return nullptr;
  }
  SideObjectRef& kept = side_objects_[name];
  if (kept.get() == nullptr) {
    kept = space.coding().Find(image.side_object);
  }
  if (const auto kind = proto::KindFor(image.recipe); kept.get() == nullptr && kind.has_value()) {
    if (const auto bytes = side_objects.Read(image.side_object); bytes.ok()) {
      auto found = space.coding().Keep(image.image.group, *kind, *bytes);
      if (found.ok() && found->get()->id() == image.side_object) {
        kept = *std::move(found);
      }
    }
  }
  if (kept.get() == nullptr) {
    side_objects_.erase(name);
    missing_.insert(name);
    ++side_objects_lost_;
    return nullptr;
  }
  return &kept;
}

std::optional<Restorer::Drop> Restorer::Restore(FoundImage& found, SideObjectSource& side_objects) {
  const auto entry = found_.find(found.image.space_id);
  if (entry == found_.end()) {
    return Drop::kSpace;
  }
  SpaceEntry& space = *entry->second;
  if (!IsOfSpace(space, found)) {
    return Drop::kShape;
  }
  if (found.image.expires_unix_s != 0 &&
      absl::ToUnixSeconds(clock_.Now()) >= found.image.expires_unix_s) {
    return Drop::kExpired;
  }
  // If the clock was ahead when the block was put, the expiry would be too late.
  const uint32_t latest = ExpiryAt(space.coding().policy(), clock_.Now());
  if (latest != 0 && found.image.expires_unix_s != 0) {
    found.image.expires_unix_s = std::min(found.image.expires_unix_s, latest);
  }
  if (found.names != nullptr && !found.names->tokens.empty() && !index_.keeps_tokens()) {
    found.names =
        ShareNames({.hash = found.names->hash, .parent = found.names->parent, .tokens = {}});
  }
  NewImage image = {.claim = {.name = {found.image.space_id, found.image.key},
                              .parent = found.parent,
                              .first_position = found.image.first_position,
                              .tokens = found.image.tokens,
                              .group = found.image.group,
                              .slice = found.image.slice},
                    .source_bytes = found.image.source_bytes,
                    .copy = {.recipe = found.recipe,
                             .extent = std::move(found.place),
                             .side_object = {},
                             .directory_crc = found.directory_crc},
                    .expires_unix_s = found.image.expires_unix_s,
                    .names = std::move(found.names)};
  if (!IsNone(found.side_object)) {
    const SideObjectRef* side_object = SideObjectOf(space, found, side_objects);
    if (side_object == nullptr) {
      return Drop::kSideObject;
    }
    image.copy.side_object = side_object->Share();
  } else if (found.recipe.NeedsSideObject()) {
    return Drop::kSideObject;
  }
  const absl::StatusOr<bool> is_published = index_.Publish(std::move(image));
  if (!is_published.ok()) {
    return absl::IsInvalidArgument(is_published.status()) ? Drop::kChain : Drop::kRoom;
  }
  return *is_published ? std::nullopt : std::optional<Drop>(Drop::kDuplicate);
}

void Restorer::FoundImages(std::vector<FoundImage> images, SideObjectSource& side_objects) {
  missing_.clear();
  for (FoundImage& image : images) {
    const uint64_t bytes = image.place.size_bytes();
    const BlockName name = {image.image.space_id, image.image.key};
    const std::optional<Drop> dropped = Restore(image, side_objects);
    if (dropped.has_value()) {
      dropped_[static_cast<size_t>(*dropped)].Add();
      continue;
    }
    images_restored_.Add();
    bytes_restored_.Add(bytes);
    if (is_serving_) {
      index_.Announce(name);  // a device has returned, and a waiter may need its blocks
    }
  }
}

void Restorer::Deleted(const proto::Fingerprint& fingerprint,
                       std::span<const proto::BlockKey> keys) {
  for (const SpaceRef& space : spaces_.List()) {
    if (space->fingerprint() != fingerprint) {
      continue;
    }
    if (keys.empty()) {
      index_.Invalidate(space->id());
    } else {
      index_.Delete(space->id(), keys);
    }
  }
}

void Restorer::FoundHints(std::span<const HintRecord> hints) {
  if (is_serving_) {
    return;
  }
  absl::flat_hash_map<proto::Fingerprint, const SpaceEntry*> spaces;
  for (const auto& [id, space] : found_) {
    spaces.emplace(space->fingerprint(), &*space);
  }
  for (const HintRecord& hint : hints) {
    if (const auto space = spaces.find(hint.space); space != spaces.end()) {
      index_.RestoreHint({space->second->id(), hint.key}, space->second->tenant(), hint.priority,
                         hint.due_unix_s);
    }
  }
}

void Restorer::Finish(absl::Duration took) {
  found_.clear();
  side_objects_.clear();
  missing_.clear();
  is_serving_ = true;
  std::string dropped;  // "room:3,expired:1"
  for (size_t i = 0; i < kDropCount; ++i) {
    if (const uint64_t count = dropped_[i].Value(); count > 0) {
      absl::StrAppend(&dropped, dropped.empty() ? "" : ",", ToAbsl(kDropNames[i]), ":", count);
    }
  }
  if (spaces_restored_ + spaces_dropped_ == 0 && dropped.empty()) {
    LogInfo("recovery", "nothing to recover", {{"seconds", absl::ToDoubleSeconds(took)}});
    return;
  }
  LogInfo("recovery", "recovered data of the previous process",
          {{"seconds", absl::ToDoubleSeconds(took)},
           {"spaces", spaces_restored_},
           {"images", images_restored_.Value()},
           {"bytes", bytes_restored_.Value()},
           {"spaces_dropped", spaces_dropped_},
           {"side_objects_lost", side_objects_lost_},
           {"images_dropped", dropped.empty() ? "none" : dropped}});
}

void Restorer::Report(MetricSink& sink) const {
  sink.AddCounter("cairn_recovered_images_total",
                  "Images of the previous process that were recovered at start.", {},
                  images_restored_.Value());
  sink.AddCounter("cairn_recovered_bytes_total", "Bytes of images that were recovered at start.",
                  {}, bytes_restored_.Value());
  for (size_t i = 0; i < kDropCount; ++i) {
    const MetricLabel cause[] = {{"cause", kDropNames[i]}};
    sink.AddCounter("cairn_recovery_dropped_total",
                    "Images found at start that were not recovered, by cause.", cause,
                    dropped_[i].Value());
  }
}

}  // namespace cairn
