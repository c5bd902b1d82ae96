// SPDX-License-Identifier: Apache-2.0
// The calls of cairn.v1.Store that are about side objects.
#include <algorithm>
#include <span>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "proto/convert.h"
#include "service/front/store_service.h"

namespace cairn {
namespace {

std::string ToBytes(const codecs::Digest& id) {
  return proto::ToBytes(std::as_bytes(std::span(id)));
}

}  // namespace

absl::StatusOr<std::string> StoreService::CheckUpload(const v1::PutSideObjectRequest& first) const {
  CAIRN_RETURN_IF_ERROR(SpaceOf(first.ticket(), first.space_id()).status());
  CAIRN_RETURN_IF_ERROR(proto::FromSideObjectKind(first.kind()).status());
  CAIRN_ASSIGN_OR_RETURN(const Session session, SessionOf(first.ticket()));
  return std::string(session.tenant.view());
}

absl::StatusOr<v1::PutSideObjectReply> StoreService::Install(const v1::PutSideObjectRequest& first,
                                                             std::string_view content) {
  CAIRN_ASSIGN_OR_RETURN(const SpaceRef space, SpaceOf(first.ticket(), first.space_id()));
  CAIRN_ASSIGN_OR_RETURN(const proto::SideObjectKind kind, proto::FromSideObjectKind(first.kind()));
  CAIRN_ASSIGN_OR_RETURN(
      const SpaceCoding::Installed installed,
      space->coding().Install(first.group(), kind, std::as_bytes(std::span(content))));
  v1::PutSideObjectReply reply;
  reply.set_id(ToBytes(installed.id));
  reply.set_created(installed.is_new);
  return reply;
}

absl::Status StoreService::GetSideObject(const v1::GetSideObjectRequest& request,
                                         v1::GetSideObjectReply* reply) {
  CAIRN_ASSIGN_OR_RETURN(const SpaceRef space, SpaceOf(request.ticket(), request.space_id()));
  CAIRN_ASSIGN_OR_RETURN(const codecs::Digest id, proto::FromSideObjectId(request.id()));
  const SideObjectRef found = space->coding().Find(id);
  if (found.get() == nullptr) {
    return absl::NotFoundError("id: the space has no such side object");
  }
  const std::span<const std::byte> bytes = found.get()->bytes();
  if (request.offset() > bytes.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "offset is ", request.offset(), ": the side object has ", bytes.size(), " bytes"));
  }
  const std::span<const std::byte> rest = bytes.subspan(request.offset());
  reply->set_kind(static_cast<v1::SideObjectKind>(found.get()->kind()));
  reply->set_total_bytes(bytes.size());
  reply->set_content(
      proto::ToBytes(rest.first(std::min(rest.size(), limits::kSideObjectPartBytesMax))));
  return absl::OkStatus();
}

absl::Status StoreService::ListSideObjects(const v1::ListSideObjectsRequest& request,
                                           v1::ListSideObjectsReply* reply) {
  CAIRN_ASSIGN_OR_RETURN(const SpaceRef space, SpaceOf(request.ticket(), request.space_id()));
  for (const SideObjects::Listed& one : space->coding().List()) {
    v1::SideObjectInfo& info = *reply->add_side_objects();
    info.set_id(ToBytes(one.id));
    info.set_kind(static_cast<v1::SideObjectKind>(one.kind));
    info.set_bytes(one.bytes);
    for (const uint32_t group : one.current_groups) info.add_current_groups(group);
    info.set_references(one.references);
    info.set_mined(one.origin == SideObjectOrigin::kMined);
  }
  return absl::OkStatus();
}

}  // namespace cairn
