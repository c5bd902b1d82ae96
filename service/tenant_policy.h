// SPDX-License-Identifier: Apache-2.0
#pragma once
// Decides which tenants a peer may use. Thread-safety: Immutable.

#include <optional>
#include <string_view>

#include "base/peer_identity.h"

namespace cairn {

class TenantPolicy {
 public:
  virtual ~TenantPolicy() = default;
  // `identity` is nullopt if the connection has none.
  virtual bool MayUse(const std::optional<PeerIdentity>& identity,
                      std::string_view tenant) const = 0;
};

// Allows every peer to use any tenant.
class AnyTenant final : public TenantPolicy {
 public:
  bool MayUse(const std::optional<PeerIdentity>&, std::string_view) const override { return true; }
};

}  // namespace cairn
