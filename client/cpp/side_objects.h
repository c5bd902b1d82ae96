// SPDX-License-Identifier: Apache-2.0
#pragma once
// The side objects of a space, as a client has them: named, fetched, checked and kept for a while.

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

// What a space has of them.
struct SideObjectFigures {
  Digest id{};
  SideObjectKind kind = SideObjectKind::kProfile;
  uint64_t bytes = 0;
  std::vector<uint32_t> current_groups;  // what puts into these are coded with from now on
  uint64_t references = 0;               // images, and puts and gets under way, that name it
  bool is_mined = false;                 // by the daemon; false: it was installed
};

struct InstalledSideObject {
  Digest id{};
  bool was_created = false;  // false: the space had it
};

// One that a client holds: bytes whose SHA-256 is the id, and what was read from them. Immutable.
class HeldSideObject {
 public:
  // DataLoss: the bytes are not those of the id, or none of the kind.
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
// Shared: a get may go on with one that the cache has let go.
using SideObjectHandle = std::shared_ptr<const HeldSideObject>;
// As coders take it; all null for none. Borrows it.
inline codecs::DecodeInputs InputsOf(const SideObjectHandle& held) {
  return held == nullptr ? codecs::DecodeInputs() : held->content().inputs();
}

// Those used last, up to a number of bytes and of objects; and which of them was current for a
// group a moment ago. Thread-safety: Thread-safe. No lock is held while something is fetched.
class SideObjectCache {
 public:
  static constexpr uint64_t kBytesMax = uint64_t{96} << 20;
  static constexpr size_t kCountMax = 64;
  // How long a client that encodes goes on with one before it asks for a newer one.
  static constexpr absl::Duration kCurrentFor = absl::Seconds(1);

  using Fetch = absl::FunctionRef<absl::StatusOr<SideObjectHandle>(const Digest& id)>;
  // The one of that id, fetched where it is not here.
  absl::StatusOr<SideObjectHandle> Get(const Digest& id, Fetch fetch);

  // The current one of each kind of each group, by ListSideObjects() where that is not known of
  // late.
  using Slot = std::pair<uint32_t, SideObjectKind>;  // group
  using Current = absl::flat_hash_map<Slot, Digest>;
  using Ask = absl::FunctionRef<absl::StatusOr<Current>()>;
  absl::StatusOr<std::optional<Digest>> CurrentOf(const Slot& slot, absl::Time now, Ask ask);
  // Asks anew the next time.
  void ForgetCurrent();

 private:
  void Keep(const SideObjectHandle& held) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Mutex mutex_;
  std::list<SideObjectHandle> held_ ABSL_GUARDED_BY(mutex_);  // used last first
  uint64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  Current current_ ABSL_GUARDED_BY(mutex_);
  absl::Time current_until_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
};

}  // namespace cairn
