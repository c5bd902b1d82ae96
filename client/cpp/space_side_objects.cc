// SPDX-License-Identifier: Apache-2.0
// The side objects of a Space: its calls, and the lookups of puts and gets.

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "client/cpp/core.h"
#include "client/cpp/space.h"
#include "proto/convert.h"

namespace cairn {
namespace {

std::string ToBytes(const Digest& id) { return proto::ToBytes(std::as_bytes(std::span(id))); }

}  // namespace

absl::StatusOr<InstalledSideObject> Space::PutSideObject(uint32_t group, SideObjectKind kind,
                                                         std::span<const std::byte> bytes,
                                                         absl::Duration timeout) {
  CAIRN_ASSIGN_OR_RETURN(const absl::Time deadline, core_.Begin(timeout, kDataTimeoutDefault));
  if (bytes.size() > proto::kSideObjectBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat(
        "bytes has ", bytes.size(), " bytes; the limit is ", proto::kSideObjectBytesMax));
  }
  CAIRN_ASSIGN_OR_RETURN(const Bound bound, Bind(deadline));
  v1::PutSideObjectRequest request;
  request.set_space_id(bound.opened.space_id);
  request.set_group(group);
  request.set_kind(static_cast<v1::SideObjectKind>(kind));
  CAIRN_ASSIGN_OR_RETURN(const v1::PutSideObjectReply reply,
                         core_.control->PutSideObject(std::move(request), bytes, deadline));
  InstalledSideObject installed{.id = proto::SideObjectId(bytes), .was_created = reply.created()};
  if (reply.id() != ToBytes(installed.id)) {
    return absl::InternalError("the daemon has another id for the side object");
  }
  side_objects_.ForgetCurrent();
  return installed;
}

absl::StatusOr<SideObjectHandle> Space::GetSideObject(const Digest& id, absl::Duration timeout) {
  CAIRN_ASSIGN_OR_RETURN(const absl::Time deadline, core_.Begin(timeout, kDataTimeoutDefault));
  CAIRN_ASSIGN_OR_RETURN(const Bound bound, Bind(deadline));
  return side_objects_.Get(
      id, [&](const Digest& wanted) { return FetchSideObject(bound, wanted, deadline); });
}

absl::StatusOr<SideObjectHandle> Space::GetCurrentSideObject(uint32_t group, SideObjectKind kind,
                                                             absl::Duration timeout) {
  CAIRN_ASSIGN_OR_RETURN(const absl::Time deadline, core_.Begin(timeout, kDataTimeoutDefault));
  CAIRN_ASSIGN_OR_RETURN(const Bound bound, Bind(deadline));
  return CurrentSideObject(bound, {group, kind}, deadline);
}

absl::StatusOr<SideObjectHandle> Space::FetchSideObject(const Bound& bound, const Digest& id,
                                                        absl::Time deadline) {
  std::vector<std::byte> bytes;
  for (;;) {  // terminates: each part has at least a byte, and their sum is limited
    v1::GetSideObjectRequest request;
    request.set_space_id(bound.opened.space_id);
    request.set_id(ToBytes(id));
    request.set_offset(bytes.size());
    CAIRN_ASSIGN_OR_RETURN(const v1::GetSideObjectReply reply,
                           core_.control->GetSideObject(std::move(request), deadline));
    const auto part = std::as_bytes(std::span(reply.content().data(), reply.content().size()));
    if (reply.total_bytes() > proto::kSideObjectBytesMax ||
        part.size() > reply.total_bytes() - std::min<uint64_t>(reply.total_bytes(), bytes.size()) ||
        (part.empty() && bytes.size() < reply.total_bytes())) {
      return absl::DataLossError("the parts of the side object do not fit together");
    }
    bytes.insert(bytes.end(), part.begin(), part.end());
    if (bytes.size() == reply.total_bytes()) {
      CAIRN_ASSIGN_OR_RETURN(const SideObjectKind kind, proto::FromSideObjectKind(reply.kind()));
      return HeldSideObject::Make(kind, id, std::move(bytes));
    }
  }
}

absl::StatusOr<std::vector<SideObjectFigures>> Space::ListSideObjects(absl::Duration timeout) {
  CAIRN_ASSIGN_OR_RETURN(const absl::Time deadline, core_.Begin(timeout, kControlTimeoutDefault));
  CAIRN_ASSIGN_OR_RETURN(const Bound bound, Bind(deadline));
  return AskSideObjects(bound, deadline);
}

absl::StatusOr<std::vector<SideObjectFigures>> Space::AskSideObjects(const Bound& bound,
                                                                     absl::Time deadline) {
  v1::ListSideObjectsRequest request;
  request.set_space_id(bound.opened.space_id);
  CAIRN_ASSIGN_OR_RETURN(const v1::ListSideObjectsReply reply,
                         core_.control->ListSideObjects(std::move(request), deadline));
  std::vector<SideObjectFigures> listed;
  for (const v1::SideObjectInfo& info : reply.side_objects()) {
    SideObjectFigures& one = listed.emplace_back();
    CAIRN_ASSIGN_OR_RETURN(one.id, proto::FromSideObjectId(info.id()));
    CAIRN_ASSIGN_OR_RETURN(one.kind, proto::FromSideObjectKind(info.kind()));
    one.bytes = info.bytes();
    one.current_groups.assign(info.current_groups().begin(), info.current_groups().end());
    one.references = info.references();
    one.is_mined = info.mined();
  }
  return listed;
}

absl::StatusOr<SideObjectHandle> Space::CurrentSideObject(const Bound& bound,
                                                          const SideObjectCache::Slot& slot,
                                                          absl::Time deadline) {
  const auto ask = [&]() -> absl::StatusOr<SideObjectCache::Current> {
    CAIRN_ASSIGN_OR_RETURN(const auto listed, AskSideObjects(bound, deadline));
    SideObjectCache::Current current;
    for (const SideObjectFigures& one : listed) {
      for (const uint32_t of : one.current_groups) {
        current[{of, one.kind}] = one.id;
      }
    }
    return current;
  };
  CAIRN_ASSIGN_OR_RETURN(const std::optional<Digest> id,
                         side_objects_.CurrentOf(slot, MonotonicNow(), ask));
  if (!id.has_value()) {
    return SideObjectHandle();
  }
  absl::StatusOr<SideObjectHandle> held = side_objects_.Get(
      *id, [&](const Digest& wanted) { return FetchSideObject(bound, wanted, deadline); });
  // It was replaced and dropped after the lookup: without a side object this put uses `exact`.
  return absl::IsNotFound(held.status()) ? SideObjectHandle() : held;
}

}  // namespace cairn
