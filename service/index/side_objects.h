// SPDX-License-Identifier: Apache-2.0
#pragma once
// The side objects of all spaces, in memory beside the arena: what images name by the SHA-256 of
// its bytes, and so cannot be decoded without.
//
// One lives while it is the current one of a group of its space, or a SideObjectRef names it: each
// published image that was coded with it holds one, and so do puts under way. Then it is gone, and
// its bytes with it.
//
// Thread-safety: Thread-safe. SideObject is Immutable.
// Locks:         index < side objects. None is taken under it; bytes are freed outside of it, but
//                for those that the index lets go under its own lock.

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
#include "base/metric.h"
#include "base/mutex.h"
#include "codecs/image/image.h"
#include "codecs/image/inputs.h"
#include "proto/side_object.h"
#include "service/index/group_place.h"
#include "service/index/tenant_shares.h"

namespace cairn {

class SideObject {
 public:
  // InvalidArgument: the bytes are none of that kind.
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

// Keeps a side object there. Move-only; empty when default-made or moved from.
// Thread-safety: Thread-compatible. The SideObjects must outlive it.
class SideObjectRef {
 public:
  SideObjectRef() = default;
  SideObjectRef(SideObjectRef&& source) noexcept
      : owner_(std::exchange(source.owner_, nullptr)),
        entry_(std::exchange(source.entry_, nullptr)) {}
  SideObjectRef& operator=(SideObjectRef&& source) noexcept;
  ~SideObjectRef() { Reset(); }
  void Reset();

  // Another reference to the same; empty of an empty one.
  SideObjectRef Share() const;

  // Null when empty.
  const SideObject* get() const;
  const codecs::Profile* profile() const { return inputs().profile; }
  // As coders take it; all null when empty. Good while this is.
  codecs::DecodeInputs inputs() const {
    return get() == nullptr ? codecs::DecodeInputs() : get()->content().inputs();
  }

 private:
  friend class SideObjects;
  struct Entry;
  SideObjectRef(SideObjects* owner, Entry* entry) : owner_(owner), entry_(entry) {}
  SideObjects* owner_ = nullptr;
  Entry* entry_ = nullptr;
};

// Of all tenants; what one may hold of them: TenantShares.
struct SideObjectLimits {
  uint64_t bytes_max = 0;
  uint64_t count_max = 0;
};

// Who made one the current one of its kind.
enum class SideObjectOrigin : uint8_t {
  kInstalled,  // a client
  kMined,      // upkeep, out of the space's own blocks; gives way to any other
};

class SideObjects {
 public:
  explicit SideObjects(const SideObjectLimits& limits);
  ~SideObjects();  // REQUIRES: no SideObjectRef is left

  // Makes it the current one of its kind for the group. True: the space had it not.
  // ResourceExhausted: a limit, which the message names. AlreadyExists: it was mined, and one that
  // was installed is current.
  absl::StatusOr<bool> Install(const GroupPlace& place, std::unique_ptr<SideObject> object,
                               SideObjectOrigin origin = SideObjectOrigin::kInstalled);

  // Has it without making it current: images name it. ResourceExhausted: a limit, which the message
  // names.
  absl::StatusOr<SideObjectRef> Keep(const GroupPlace& place, std::unique_ptr<SideObject> object);

  // Makes the profile of that id, if it is current and was mined, current no more. False if not.
  bool Withdraw(uint64_t space_id, uint32_t group, const codecs::Digest& id);
  // The space is retired: none is current for its groups any more.
  void Forget(uint64_t space_id);

  // Empty: the group has none of that kind.
  SideObjectRef Current(uint64_t space_id, uint32_t group, proto::SideObjectKind kind);
  // REQUIRES: the reference is not empty.
  SideObjectOrigin OriginOf(const SideObjectRef& reference) const;
  // Empty: the space has none of that id.
  SideObjectRef Find(uint64_t space_id, const codecs::Digest& id);

  struct Listed {
    codecs::Digest id{};
    proto::SideObjectKind kind = proto::SideObjectKind::kProfile;
    uint64_t bytes = 0;
    std::vector<uint32_t> current_groups;  // ascending
    uint64_t references = 0;               // SideObjectRefs
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
  using Name = std::pair<uint64_t, codecs::Digest>;  // space
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
  // Takes it out where nothing holds it any more; the caller frees it, with no lock held.
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
