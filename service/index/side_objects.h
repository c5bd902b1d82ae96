// SPDX-License-Identifier: Apache-2.0
#pragma once
// The side objects of all spaces, in memory outside the arena. An image names its side object by
// the SHA-256 of the object's bytes, and cannot be decoded without it.
//
// A side object lives while it is current for a group of its space, or while a SideObjectRef refers
// to it. Each published image that was encoded with it has a reference, and so has each running
// put.
//
// Thread-safety: Thread-safe. SideObject is Immutable.
// Locks:        index < side objects. It takes no other lock while it holds its own. Bytes of a
//               side object are freed without its lock. If the index drops a reference, they are
//               freed under the index's lock.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "base/handle.h"
#include "base/metric.h"
#include "base/mutex.h"
#include "codecs/image/image.h"
#include "codecs/image/inputs.h"
#include "proto/side_object.h"
#include "service/index/tenant_shares.h"

namespace cairn {

// A group of layers of a space, with the space's tenant. A value; borrows the tenant's name.
struct GroupPlace {
  uint64_t space_id = 0;
  uint32_t group = 0;
  std::string_view tenant;
};

class SideObject {
 public:
  // Errors: InvalidArgument if the bytes are not a side object of that kind.
  static absl::StatusOr<std::unique_ptr<SideObject>> Parse(proto::SideObjectKind kind,
                                                           std::span<const std::byte> bytes);
  SideObject(const SideObject&) = delete;
  SideObject& operator=(const SideObject&) = delete;

  const codecs::Digest& id() const { return id_; }
  proto::SideObjectKind kind() const { return content_.kind(); }
  std::span<const std::byte> bytes() const { return bytes_; }
  const proto::SideObjectContent& content() const { return content_; }

 private:
  SideObject() = default;
  codecs::Digest id_{};
  std::vector<std::byte> bytes_;
  proto::SideObjectContent content_;  // borrows bytes_
};

class SideObjects;

// Keeps a side object alive. Move-only; empty when default-constructed or moved from.
// Thread-safety: Thread-compatible. The SideObjects must outlive it.
class SideObjectRef {
 public:
  SideObjectRef() = default;
  void Reset() { handle_.Reset(); }

  // Returns another reference to the same side object, or an empty one if this one is empty.
  SideObjectRef Share() const;

  // Null when empty.
  const SideObject* get() const;
  const codecs::Profile* profile() const { return inputs().profile; }
  // The inputs of a decoder. All are null if this reference is empty. Valid as long as this object.
  codecs::DecodeInputs inputs() const {
    return get() == nullptr ? codecs::DecodeInputs() : get()->content().inputs();
  }

 private:
  friend class SideObjects;
  struct Entry;
  SideObjectRef(SideObjects& owner, Entry* entry) : handle_(owner, entry) {}
  static void Release(SideObjects& owner, Entry* entry);
  Handle<SideObjects, Entry*, &SideObjectRef::Release> handle_;
};

// Limits for all tenants together. TenantShares gives each tenant its share.
struct SideObjectLimits {
  uint64_t bytes_max = 0;
  uint64_t count_max = 0;
};

// Who made a side object current.
enum class SideObjectOrigin : uint8_t {
  kInstalled,  // a client
  kMined,      // upkeep, from the space's own blocks; any other side object replaces it
};

class SideObjects {
 public:
  explicit SideObjects(const SideObjectLimits& limits);
  ~SideObjects();  // REQUIRES: no SideObjectRef exists

  // Makes a side object the group's current one of its kind. Returns true if it was new to the
  // space. Errors: ResourceExhausted (the message names the limit), AlreadyExists (`origin` is
  // kMined, and an installed side object is current).
  absl::StatusOr<bool> Install(const GroupPlace& place, std::unique_ptr<SideObject> object,
                               SideObjectOrigin origin = SideObjectOrigin::kInstalled);

  // Stores a side object that images name, without making it current. Errors: ResourceExhausted
  // (the message names the limit).
  absl::StatusOr<SideObjectRef> Keep(const GroupPlace& place, std::unique_ptr<SideObject> object);

  // Stops the use of a mined profile for new puts. Returns false if the profile with that id is not
  // current, or was not mined.
  bool Withdraw(uint64_t space_id, uint32_t group, const codecs::Digest& id);
  // Must be called when the space is retired. Its groups then have no current side objects.
  void Forget(uint64_t space_id);

  // Returns an empty reference if the group has none of that kind.
  SideObjectRef Current(uint64_t space_id, uint32_t group, proto::SideObjectKind kind);
  // REQUIRES: the reference is not empty.
  SideObjectOrigin OriginOf(const SideObjectRef& reference) const;
  // Returns an empty reference if the space has none with that id.
  SideObjectRef Find(uint64_t space_id, const codecs::Digest& id);

  struct Listed {
    codecs::Digest id{};
    proto::SideObjectKind kind = proto::SideObjectKind::kProfile;
    uint64_t bytes = 0;
    std::vector<uint32_t> current_groups;  // ascending
    uint64_t references = 0;               // number of SideObjectRefs
    SideObjectOrigin origin = SideObjectOrigin::kInstalled;
  };
  // In the order of their ids.
  std::vector<Listed> List(uint64_t space_id) const;

  uint64_t bytes() const;
  uint64_t count() const;
  void Report(MetricSink& sink) const;

 private:
  friend class SideObjectRef;
  using Entry = SideObjectRef::Entry;
  using Name = std::pair<uint64_t, codecs::Digest>;  // space, id
  struct Slot {
    uint64_t space_id = 0;
    uint32_t group = 0;
    proto::SideObjectKind kind = proto::SideObjectKind::kProfile;
    friend bool operator==(const Slot&, const Slot&) = default;
    template <typename H>
    friend H AbslHashValue(H state, const Slot& slot) {
      return H::combine(std::move(state), slot.space_id, slot.group, slot.kind);
    }
  };

  void Ref(Entry* entry);
  void Unref(Entry* entry);
  absl::StatusOr<Entry*> AddLocked(const GroupPlace& place, std::unique_ptr<SideObject>& object)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  SideObjectRef RefLocked(Entry* entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Removes the entry if nothing refers to it any more. The caller frees it without locks held.
  std::unique_ptr<Entry> TakeIfFree(Entry* entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable Mutex mutex_;
  absl::flat_hash_map<Name, std::unique_ptr<Entry>> entries_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<Slot, Entry*> current_ ABSL_GUARDED_BY(mutex_);
  TenantShares bytes_ ABSL_GUARDED_BY(mutex_);
  TenantShares counts_ ABSL_GUARDED_BY(mutex_);
  uint64_t references_ ABSL_GUARDED_BY(mutex_) = 0;
  Counter installed_, dropped_;
};

}  // namespace cairn
