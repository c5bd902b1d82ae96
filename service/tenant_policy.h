// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which tenants a peer may be. Thread-safety: Immutable.

#include <optional>
#include <string_view>

#include "base/peer_identity.h"

namespace cairn {

class TenantPolicy {
 public:
  virtual ~TenantPolicy() = default;
  // `identity` is none where the connection has none.
  virtual bool MayUse(const std::optional<PeerIdentity>& identity,
                      std::string_view tenant) const = 0;
};

// Any peer may be any tenant it says it is.
class AnyTenant final : public TenantPolicy {
 public:
  bool MayUse(const std::optional<PeerIdentity>&, std::string_view) const override { return true; }
};

}  // namespace cairn
