// SPDX-License-Identifier: Apache-2.0
#pragma once
// Fetches, verifies and caches the side objects (profiles and banks) of a space in a client.

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "codecs/image/image.h"
#include "proto/side_object.h"

namespace cairn {

using codecs::Digest;
using proto::SideObjectKind;

// Describes a side object of a space.
struct SideObjectFigures {
  Digest id{};
  SideObjectKind kind = SideObjectKind::kProfile;
  uint64_t bytes = 0;
  std::vector<uint32_t> current_groups;  // groups whose puts are now encoded with it
  uint64_t references = 0;               // number of images, and of running puts and gets,
                                         // that use it
  bool is_mined = false;                 // true: mined by the daemon; false: installed by a client
};

struct InstalledSideObject {
  Digest id{};
  bool was_created = false;  // false: the space already had it
};

// A side object in a client: its bytes, and the content parsed from them. Its id is the SHA-256 of
// its bytes. Immutable.
class HeldSideObject {
 public:
  // Errors: DataLoss if the bytes do not match the id or the kind.
  static absl::StatusOr<std::shared_ptr<const HeldSideObject>> Make(SideObjectKind kind,
                                                                    const Digest& id,
                                                                    std::vector<std::byte> bytes);
  HeldSideObject(const HeldSideObject&) = delete;
  HeldSideObject& operator=(const HeldSideObject&) = delete;

  const Digest& id() const { return id_; }
  SideObjectKind kind() const { return content_.kind(); }
  std::span<const std::byte> bytes() const { return bytes_; }
  const proto::SideObjectContent& content() const { return content_; }

 private:
  HeldSideObject() = default;
  Digest id_{};
  std::vector<std::byte> bytes_;
  proto::SideObjectContent content_;  // borrows bytes_
};
// Shared ownership, because a get may still use a side object that the cache has dropped.
using SideObjectHandle = std::shared_ptr<const HeldSideObject>;
// Returns a side object as the decoder's inputs, which borrow it. For a null handle, all of them
// are null.
inline codecs::DecodeInputs InputsOf(const SideObjectHandle& held) {
  return held == nullptr ? codecs::DecodeInputs() : held->content().inputs();
}

// Caches the most recently used side objects, up to kBytesMax and kCountMax. Also caches the ids of
// each group's current side objects. Thread-safety: Thread-safe. No lock is held during a fetch.
class SideObjectCache {
 public:
  static constexpr uint64_t kBytesMax = uint64_t{96} << 20;
  static constexpr size_t kCountMax = 64;
  // How long an encoding client uses a side object before it asks for a newer one.
  static constexpr absl::Duration kCurrentFor = absl::Seconds(1);

  using Fetch = absl::FunctionRef<absl::StatusOr<SideObjectHandle>(const Digest& id)>;
  // Returns the side object with that id. Fetches it if it is not cached.
  absl::StatusOr<SideObjectHandle> Get(const Digest& id, Fetch fetch);

  // Returns the id of a group's current side object of a kind, or nullopt if there is none. If the
  // cached answer is too old, calls `ask`, which runs ListSideObjects().
  using Slot = std::pair<uint32_t, SideObjectKind>;  // group
  using Current = absl::flat_hash_map<Slot, Digest>;
  using Ask = absl::FunctionRef<absl::StatusOr<Current>()>;
  absl::StatusOr<std::optional<Digest>> CurrentOf(const Slot& slot, absl::Time now, Ask ask);
  // Makes the next CurrentOf() call `ask`.
  void ForgetCurrent();

 private:
  void Keep(const SideObjectHandle& held) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Mutex mutex_;
  std::list<SideObjectHandle> held_ ABSL_GUARDED_BY(mutex_);  // most recently used first
  uint64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  Current current_ ABSL_GUARDED_BY(mutex_);
  absl::Time current_until_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
};

}  // namespace cairn
