// SPDX-License-Identifier: Apache-2.0
#include "client/cpp/side_objects.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace cairn {

absl::StatusOr<SideObjectHandle> HeldSideObject::Make(SideObjectKind kind, const Digest& id,
                                                      std::vector<std::byte> bytes) {
  if (proto::SideObjectId(bytes) != id) {
    return absl::DataLossError("the side object's bytes do not match its id");
  }
  std::shared_ptr<HeldSideObject> held(new HeldSideObject());
  held->id_ = id;
  held->bytes_ = std::move(bytes);
  if (const codecs::Error error =
          proto::SideObjectContent::Parse(kind, held->bytes_, &held->content_);
      error != codecs::Error::kOk) {
    return absl::DataLossError(absl::StrCat("the side object is not a ", proto::Name(kind), ": ",
                                            ToAbsl(codecs::Name(error))));
  }
  return SideObjectHandle(std::move(held));
}

absl::StatusOr<SideObjectHandle> SideObjectCache::Get(const Digest& id, Fetch fetch) {
  {
    const MutexLock lock(mutex_);
    for (auto at = held_.begin(); at != held_.end(); ++at) {
      if ((*at)->id() == id) {
        held_.splice(held_.begin(), held_, at);
        return held_.front();
      }
    }
  }
  CAIRN_ASSIGN_OR_RETURN(SideObjectHandle fetched, fetch(id));
  const MutexLock lock(mutex_);
  Keep(fetched);
  return fetched;
}

void SideObjectCache::Keep(const SideObjectHandle& held) {
  const bool is_there = std::any_of(held_.begin(), held_.end(), [&](const SideObjectHandle& other) {
    return other->id() == held->id();
  });
  if (is_there || held->bytes().size() > kBytesMax) {
    return;
  }
  held_.push_front(held);
  bytes_ += held->bytes().size();
  while (bytes_ > kBytesMax || held_.size() > kCountMax) {
    bytes_ -= held_.back()->bytes().size();
    held_.pop_back();
  }
}

absl::StatusOr<std::optional<Digest>> SideObjectCache::CurrentOf(const Slot& slot, absl::Time now,
                                                                 Ask ask) {
  const auto find = [&slot](const Current& current) -> std::optional<Digest> {
    const auto found = current.find(slot);
    return found == current.end() ? std::nullopt : std::optional<Digest>(found->second);
  };
  {
    const MutexLock lock(mutex_);
    if (now < current_until_) {
      return find(current_);
    }
  }
  CAIRN_ASSIGN_OR_RETURN(Current current, ask());
  const MutexLock lock(mutex_);
  current_ = std::move(current);
  current_until_ = now + kCurrentFor;
  return find(current_);
}

void SideObjectCache::ForgetCurrent() {
  const MutexLock lock(mutex_);
  current_until_ = absl::InfinitePast();
}

}  // namespace cairn
