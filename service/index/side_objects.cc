// SPDX-License-Identifier: Apache-2.0
#include "service/index/side_objects.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status.h"

namespace cairn {

// The owner's lock guards all fields except the first two.
struct SideObjectRef::Entry {
  std::unique_ptr<SideObject> object;
  uint64_t space_id = 0;
  std::string tenant;
  uint64_t references = 0;
  uint64_t current_count = 0;                          // number of slots for which it is current
  SideObjectOrigin origin = SideObjectOrigin::kMined;  // once installed, it stays kInstalled
};

absl::StatusOr<std::unique_ptr<SideObject>> SideObject::Parse(proto::SideObjectKind kind,
                                                              std::span<const std::byte> bytes) {
  std::unique_ptr<SideObject> object(new SideObject());
  object->bytes_.assign(bytes.begin(), bytes.end());
  if (const codecs::Error error =
          proto::SideObjectContent::Parse(kind, object->bytes_, &object->content_);
      error != codecs::Error::kOk) {
    return absl::InvalidArgumentError(
        absl::StrCat("content: not a ", proto::Name(kind), ": ", ToAbsl(codecs::Name(error))));
  }
  object->id_ = proto::SideObjectId(object->bytes_);
  return object;
}

// --- References ----------------------------------------------------------------------------------

SideObjectRef SideObjectRef::Share() const {
  if (handle_.is_empty()) {
    return {};
  }
  handle_.owner().Ref(handle_.value());
  return {handle_.owner(), handle_.value()};
}

const SideObject* SideObjectRef::get() const {
  return handle_.is_empty() ? nullptr : handle_.value()->object.get();
}

void SideObjectRef::Release(SideObjects& owner, Entry* entry) { owner.Unref(entry); }

void SideObjects::Ref(Entry* entry) {
  const MutexLock lock(mutex_);
  ++entry->references;
  ++references_;
}

void SideObjects::Unref(Entry* entry) {
  std::unique_ptr<Entry> freed;
  const MutexLock lock(mutex_);
  CAIRN_CHECK(entry->references > 0);
  --entry->references;
  --references_;
  freed = TakeIfFree(entry);
}

std::unique_ptr<SideObjects::Entry> SideObjects::TakeIfFree(Entry* entry) {
  if (entry->references > 0 || entry->current_count > 0) {
    return nullptr;
  }
  const auto found = entries_.find(Name(entry->space_id, entry->object->id()));
  CAIRN_CHECK(found != entries_.end());
  std::unique_ptr<Entry> taken = std::move(found->second);
  entries_.erase(found);
  bytes_.Remove(taken->tenant, taken->object->bytes().size());
  counts_.Remove(taken->tenant, 1);
  dropped_.Add();
  return taken;
}

// --- Installing and finding ----------------------------------------------------------------------

SideObjects::SideObjects(const SideObjectLimits& limits)
    : bytes_("side_object_bytes", limits.bytes_max), counts_("side_objects", limits.count_max) {}

SideObjects::~SideObjects() {
  const MutexLock lock(mutex_);
  CAIRN_CHECK(references_ == 0, "a reference outlives the side objects");
}

absl::StatusOr<SideObjects::Entry*> SideObjects::AddLocked(const GroupPlace& place,
                                                           std::unique_ptr<SideObject>& object) {
  const uint64_t bytes = object->bytes().size();
  CAIRN_RETURN_IF_ERROR(Annotate(bytes_.CheckRoom(place.tenant, bytes), "content"));
  CAIRN_RETURN_IF_ERROR(counts_.CheckRoom(place.tenant, 1));
  auto entry = std::make_unique<Entry>();
  entry->space_id = place.space_id;
  entry->tenant = std::string(place.tenant);
  entry->object = std::move(object);
  Entry* added = entry.get();
  bytes_.Add(added->tenant, bytes);
  counts_.Add(added->tenant, 1);
  entries_.emplace(Name(place.space_id, added->object->id()), std::move(entry));
  return added;
}

absl::StatusOr<bool> SideObjects::Install(const GroupPlace& place,
                                          std::unique_ptr<SideObject> object,
                                          SideObjectOrigin origin) {
  std::unique_ptr<Entry> freed;  // destroyed after the lock is released
  const MutexLock lock(mutex_);
  const Slot slot = {place.space_id, place.group, object->kind()};
  if (const auto held = current_.find(slot); origin == SideObjectOrigin::kMined &&
                                             held != current_.end() &&
                                             held->second->origin == SideObjectOrigin::kInstalled) {
    return absl::AlreadyExistsError("a side object was installed");
  }
  Entry* entry = nullptr;
  const auto found = entries_.find(Name(place.space_id, object->id()));
  const bool is_new = found == entries_.end();
  if (is_new) {
    CAIRN_ASSIGN_OR_RETURN(entry, AddLocked(place, object));
  } else {
    entry = found->second.get();
  }
  if (origin == SideObjectOrigin::kInstalled) {
    entry->origin = origin;
  }
  ++entry->current_count;
  Entry*& current = current_[slot];
  if (Entry* former = std::exchange(current, entry); former != nullptr) {
    --former->current_count;
    freed = TakeIfFree(former);
  }
  installed_.Add();
  return is_new;
}

absl::StatusOr<SideObjectRef> SideObjects::Keep(const GroupPlace& place,
                                                std::unique_ptr<SideObject> object) {
  const MutexLock lock(mutex_);
  const auto found = entries_.find(Name(place.space_id, object->id()));
  if (found != entries_.end()) {
    return RefLocked(found->second.get());
  }
  CAIRN_ASSIGN_OR_RETURN(Entry * added, AddLocked(place, object));
  return RefLocked(added);
}

bool SideObjects::Withdraw(uint64_t space_id, uint32_t group, const codecs::Digest& id) {
  std::unique_ptr<Entry> freed;  // destroyed after the lock is released
  const MutexLock lock(mutex_);
  const auto found = current_.find(Slot{space_id, group, proto::SideObjectKind::kProfile});
  if (found == current_.end() || found->second->object->id() != id ||
      found->second->origin != SideObjectOrigin::kMined) {
    return false;
  }
  Entry* entry = found->second;
  current_.erase(found);
  --entry->current_count;
  freed = TakeIfFree(entry);
  return true;
}

void SideObjects::Forget(uint64_t space_id) {
  std::vector<std::unique_ptr<Entry>> freed;  // destroyed after the lock is released
  const MutexLock lock(mutex_);
  absl::erase_if(current_, [&](const auto& slot) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (slot.first.space_id != space_id) {
      return false;
    }
    --slot.second->current_count;
    freed.push_back(TakeIfFree(slot.second));
    return true;
  });
}

SideObjectRef SideObjects::RefLocked(Entry* entry) {
  ++entry->references;
  ++references_;
  return {*this, entry};
}

SideObjectRef SideObjects::Current(uint64_t space_id, uint32_t group, proto::SideObjectKind kind) {
  const MutexLock lock(mutex_);
  const auto found = current_.find(Slot{space_id, group, kind});
  if (found == current_.end()) {
    return {};
  }
  return RefLocked(found->second);
}

SideObjectOrigin SideObjects::OriginOf(const SideObjectRef& reference) const {
  CAIRN_CHECK(reference.handle_.IsOf(*this));
  const MutexLock lock(mutex_);
  return reference.handle_.value()->origin;
}

SideObjectRef SideObjects::Find(uint64_t space_id, const codecs::Digest& id) {
  const MutexLock lock(mutex_);
  const auto found = entries_.find(Name(space_id, id));
  if (found == entries_.end()) {
    return {};
  }
  return RefLocked(found->second.get());
}

// --- Figures -------------------------------------------------------------------------------------

std::vector<SideObjects::Listed> SideObjects::List(uint64_t space_id) const {
  std::vector<Listed> listed;
  {
    const MutexLock lock(mutex_);
    for (const auto& [name, entry] : entries_) {
      if (name.first == space_id) {
        const SideObject& object = *entry->object;
        listed.push_back({object.id(),
                          object.kind(),
                          object.bytes().size(),
                          {},
                          entry->references,
                          entry->origin});
      }
    }
    for (const auto& [slot, entry] : current_) {
      if (slot.space_id != space_id) {
        continue;
      }
      for (Listed& one : listed) {
        if (one.id == entry->object->id()) {
          one.current_groups.push_back(slot.group);
        }
      }
    }
  }
  std::sort(listed.begin(), listed.end(),
            [](const Listed& a, const Listed& b) { return a.id < b.id; });
  for (Listed& one : listed) {
    std::sort(one.current_groups.begin(), one.current_groups.end());
  }
  return listed;
}

uint64_t SideObjects::bytes() const {
  const MutexLock lock(mutex_);
  return bytes_.total();
}

uint64_t SideObjects::count() const {
  const MutexLock lock(mutex_);
  return entries_.size();
}

void SideObjects::Report(MetricSink& sink) const {
  const MutexLock lock(mutex_);
  bytes_.Report(sink);
  counts_.Report(sink);
  const auto gauge = [&sink](std::string_view name, std::string_view help, uint64_t value) {
    sink.AddGauge(name, help, {}, static_cast<double>(value));
  };
  gauge("cairn_side_objects", "Side objects held: profiles and banks.", entries_.size());
  gauge("cairn_side_object_bytes", "Bytes of the side objects held.", bytes_.total());
  gauge("cairn_side_object_references",
        "References to side objects, by published images and running puts and gets.", references_);
  sink.AddCounter("cairn_side_object_installed_total",
                  "Side objects that became current for a group.", {}, installed_.Value());
  sink.AddCounter("cairn_side_object_dropped_total",
                  "Side objects dropped because they were neither current nor referenced.", {},
                  dropped_.Value());
}

}  // namespace cairn
