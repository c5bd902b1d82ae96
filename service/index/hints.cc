// SPDX-License-Identifier: Apache-2.0
#include "service/index/hints.h"

#include <utility>

#include "base/status.h"

namespace cairn {

absl::Status Hints::Reserve(std::string_view tenant, uint64_t count) {
  CAIRN_RETURN_IF_ERROR(shares_.CheckRoom(tenant, count));
  shares_.Add(tenant, count);
  return absl::OkStatus();
}

void Hints::Settle(std::string_view tenant, uint64_t reserved, uint64_t used) {
  shares_.Remove(tenant, reserved);
  shares_.Add(tenant, used);
}

bool Hints::Set(const BlockName& name, std::string_view tenant, const Hint& hint) {
  const auto [found, is_new] = hints_.try_emplace(name);
  if (is_new) {
    Owner& owner = owners_[name.space_id];
    owner.tenant = std::string(tenant);
    ++owner.count;
  } else {
    by_due_.erase(DueOf(name, found->second));
  }
  found->second = hint;
  by_due_.insert(DueOf(name, hint));
  ++version_;
  return is_new;
}

void Hints::Remove(const BlockName& name) {
  if (hints_.empty()) {
    return;
  }
  const auto found = hints_.find(name);
  if (found == hints_.end()) {
    return;
  }
  by_due_.erase(DueOf(name, found->second));
  hints_.erase(found);
  const auto owner = owners_.find(name.space_id);
  shares_.Remove(owner->second.tenant, 1);
  if (--owner->second.count == 0) {
    owners_.erase(owner);
  }
  ++version_;
}

std::optional<std::pair<BlockName, Hint>> Hints::TakeDue(uint32_t now_unix_s) {
  if (next_due() > now_unix_s) {
    return std::nullopt;
  }
  const auto [due, space_id, key] = *by_due_.begin();
  const BlockName name = {space_id, key};
  const Hint hint = hints_.at(name);
  Remove(name);
  return std::pair(name, hint);
}

uint64_t Hints::bytes() const {
  constexpr uint64_t kTreeNodeBytes = 32;  // besides its value
  return hints_.capacity() * (sizeof(BlockName) + sizeof(Hint) + 1) +
         by_due_.size() * (sizeof(Due) + kTreeNodeBytes);
}

void Hints::Report(MetricSink& sink) const {
  sink.AddGauge("cairn_hints", "Blocks with a hint of a client, stored or not.", {},
                static_cast<double>(hints_.size()));
  shares_.Report(sink);
}

}  // namespace cairn
