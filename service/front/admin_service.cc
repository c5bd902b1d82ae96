// SPDX-License-Identifier: Apache-2.0
#include "service/front/admin_service.h"

#include <pthread.h>

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/log.h"
#include "base/status.h"
#include "proto/convert.h"
#include "service/codec/device_codec.h"
#include "service/front/store_service.h"

namespace cairn {
namespace {

// Below gRPC's usual limit for a received message, which is 4 MiB.
constexpr size_t kPageBytesMax = 3 * kMiB;
// The largest length of a path in a log line.
constexpr size_t kPathShown = 256;

void FillBlock(const ListedBlock& block, v1::BlockInfo* info) {
  info->set_key(proto::ToBytes(block.key));
  if (block.parent != proto::BlockKey{}) info->set_parent(proto::ToBytes(block.parent));
  info->set_first_position(block.first_position);
  info->set_complete(block.is_complete);
  info->set_child_count(block.child_count);
  info->set_idle_ms(static_cast<uint64_t>(absl::ToInt64Milliseconds(block.idle)));
  for (const ListedImage& image : block.images) {
    v1::ImageInfo& listed = *info->add_images();
    *listed.mutable_slice() = proto::ToSlice(image.facts.group, image.facts.slice);
    listed.set_recipe(proto::ToRecipeName(image.copy.recipe));
    listed.set_tier(static_cast<v1::Tier>(image.copy.tier));
    listed.set_image_bytes(image.copy.image_bytes);
    listed.set_source_bytes(image.facts.source_bytes);
    listed.set_pin_count(image.pin_count);
    if (image.side_object.has_value()) {
      listed.set_side_object(proto::ToBytes(std::as_bytes(std::span(*image.side_object))));
    }
  }
}

v1::DeviceState ToState(DeviceState state) {
  switch (state) {
    case DeviceState::kRecovering:
      return v1::DEVICE_STATE_RECOVERING;
    case DeviceState::kOk:
      return v1::DEVICE_STATE_OK;
    case DeviceState::kCapped:
      return v1::DEVICE_STATE_CAPPED;
    case DeviceState::kReadOnly:
      return v1::DEVICE_STATE_READ_ONLY;
    case DeviceState::kOut:
      return v1::DEVICE_STATE_OUT;
  }
  return v1::DEVICE_STATE_UNSPECIFIED;
}

v1::MemberState ToState(MemberState state) {
  switch (state) {
    case MemberState::kUnmet:
      return v1::MEMBER_STATE_UNMET;
    case MemberState::kJoined:
      return v1::MEMBER_STATE_JOINED;
    case MemberState::kHeld:
      return v1::MEMBER_STATE_HELD;
    case MemberState::kDraining:
      return v1::MEMBER_STATE_DRAINING;
    case MemberState::kRefused:
      return v1::MEMBER_STATE_REFUSED;
  }
  return v1::MEMBER_STATE_UNSPECIFIED;
}

void FillDevice(const DeviceReport& device, v1::DeviceInfo* info) {
  info->set_path(device.path);
  info->set_state(ToState(device.state));
  info->set_reason(device.reason);
  info->set_retired(device.is_retired);
  info->set_trying(device.is_trying);
  info->set_capacity_bytes(device.capacity_bytes);
  info->set_used_bytes(device.used_bytes);
  info->set_image_count(device.image_count);
  for (const auto& [state, count] : device.segments) {
    v1::SegmentCount& segments = *info->add_segments();
    segments.set_state(std::string(state));
    segments.set_count(count);
  }
  info->set_written_bytes(device.written_bytes);
  info->set_carried_bytes(device.carried_bytes);
  info->set_read_bytes(device.read_bytes);
  info->set_fault_count(device.fault_count);
  info->set_transfer_count(device.transfer_count);
  info->set_engine(std::string(device.engine));
}

void FillWrites(const WriteReport& writes, v1::WriteInfo* info) {
  info->set_budget_bytes(writes.budget_bytes);
  info->set_budget_left_bytes(static_cast<int64_t>(writes.budget_left_bytes));
  info->set_withheld_images(writes.withheld_count);
  info->set_uptime_ms(static_cast<uint64_t>(absl::ToInt64Milliseconds(writes.uptime)));
}

void FillScrub(const ScrubReport& scrub, v1::ScrubInfo* info) {
  info->set_rate_bytes(scrub.rate_bytes);
  info->set_pass_count(scrub.pass_count);
  info->set_corrupt_images(scrub.corrupt_count);
  info->set_image_count(scrub.image_count);
  info->set_image_bytes(scrub.image_bytes);
  info->set_last_pass_ms(static_cast<uint64_t>(
      absl::ToInt64Milliseconds(scrub.since_last_pass.value_or(absl::ZeroDuration()))));
}

}  // namespace

void AdminService::Stop() {
  std::thread thread;
  {
    const MutexLock lock(mutex_);
    is_stopping_ = true;
    thread = std::move(verify_thread_);
  }
  if (thread.joinable()) thread.join();
}

void AdminService::AddTo(CallRouter& router) {
  const auto add = [&](const char* name, Call call, auto step) {
    router.AddUnary(absl::StrCat("/cairn.v1.Admin/", name), calls_, call, RequestBound(), this,
                    step);
  };
  add("ListSpaces", Call::kListSpaces, &AdminService::ListSpaces);
  add("ListBlocks", Call::kListBlocks, &AdminService::ListBlocks);
  add("ListTiers", Call::kListTiers, &AdminService::ListTiers);
  add("ListMembers", Call::kListMembers, &AdminService::ListMembers);
  router.AddUnary("/cairn.v1.Admin/SetPolicy",
                  UnaryMethod<v1::SetPolicyRequest, v1::SetPolicyReply>{
                      calls_, Call::kSetPolicy, RequestBound(),
                      [this](const ControlCall& call, const v1::SetPolicyRequest& request,
                             const ReplyDone<v1::SetPolicyReply>& done) {
                        SetPolicy(call, request, Noted(call, "SetPolicy", done));
                      }});
  router.AddUnary("/cairn.v1.Admin/SetDevice",
                  UnaryMethod<v1::SetDeviceRequest, v1::SetDeviceReply>{
                      calls_, Call::kSetDevice, RequestBound(),
                      [this](const ControlCall& call, const v1::SetDeviceRequest& request,
                             const ReplyDone<v1::SetDeviceReply>& done) {
                        Noted(call, "SetDevice", done)(SetDevice(call, request));
                      }});
  router.AddUnary("/cairn.v1.Admin/Drain",
                  UnaryMethod<v1::DrainRequest, v1::DrainReply>{
                      calls_, Call::kDrain, RequestBound(),
                      [this](const ControlCall& call, const v1::DrainRequest&,
                             const ReplyDone<v1::DrainReply>& done) {
                        Noted(call, "Drain", done)(Drain(call));
                      }});
  router.Add("/cairn.v1.Admin/Verify",
             [this](const CallPlace& place) { return new VerifyStream(place, verify_); });
}

absl::Status AdminService::ListSpaces(const v1::ListSpacesRequest&, v1::ListSpacesReply* reply) {
  for (const SpaceRef& space : parts_.spaces.List()) {
    const IndexFigures figures = parts_.index.figures(space->id());
    v1::SpaceInfo& info = *reply->add_spaces();
    info.set_space_id(space->id());
    info.set_fingerprint(proto::ToBytes(space->fingerprint()));
    *info.mutable_spec() = proto::ToSpec(space->identity());
    *info.mutable_policy() = ToPolicy(space->coding().policy());
    info.set_block_count(figures.block_count);
    info.set_image_bytes(figures.image_bytes);
    info.set_source_bytes(figures.source_bytes);
    info.set_copies_source_bytes(figures.copies_source_bytes);
  }
  return absl::OkStatus();
}

absl::Status AdminService::ListBlocks(const v1::ListBlocksRequest& request,
                                      v1::ListBlocksReply* reply) {
  CAIRN_ASSIGN_OR_RETURN(const SpaceRef space, parts_.spaces.Find(request.space_id()));
  if (request.limit() > limits::kListBlocksMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("limit: ", request.limit(), " is over ", limits::kListBlocksMax));
  }
  std::optional<proto::BlockKey> after;
  if (!request.after_key().empty()) {
    CAIRN_ASSIGN_OR_RETURN(after, proto::FromKeyBytes(request.after_key(), "after_key"));
  }
  const size_t limit = request.limit() == 0 ? limits::kListBlocksDefault : request.limit();
  bool has_more = false;
  const auto whole = absl::MakeConstSpan(space->whole().data(), space->whole().size());
  size_t bytes = 0;
  for (const ListedBlock& block : parts_.index.List(space->id(), after, limit, whole, &has_more)) {
    v1::BlockInfo& info = *reply->add_blocks();
    FillBlock(block, &info);
    bytes += info.ByteSizeLong() + 8;
    if (bytes > kPageBytesMax && reply->blocks_size() > 1) {
      reply->mutable_blocks()->RemoveLast();
      has_more = true;
      break;
    }
  }
  reply->set_more(has_more);
  return absl::OkStatus();
}

absl::Status AdminService::Verify(VerifyStream& stream, uint64_t space_id) {
  absl::Status refusal;
  if (space_id != 0) refusal = parts_.spaces.Find(space_id).status();
  std::thread last;
  {
    const MutexLock lock(mutex_);
    if (refusal.ok() && is_stopping_) refusal = absl::UnavailableError("stopping");
    if (refusal.ok() && is_verifying_) {
      refusal = absl::ResourceExhaustedError("verify: another verification is running");
    }
    if (refusal.ok()) {
      is_verifying_ = true;
      last = std::move(verify_thread_);  // it has ended, or is about to end
      verify_thread_ = std::thread([this, &stream, space_id] { RunVerify(stream, space_id); });
    }
  }
  if (last.joinable()) last.join();
  if (!refusal.ok()) calls_.Count(Call::kVerify, refusal);
  return refusal;
}

void AdminService::RunVerify(VerifyStream& stream, uint64_t space_id) {
  ::pthread_setname_np(::pthread_self(), "verify");
  v1::VerifyProgress latest;
  absl::Status status = parts_.upkeep.Verify(space_id, [&](const Upkeep::VerifyProgress& progress) {
    latest.set_images_checked(progress.images_checked);
    latest.set_images_total(progress.images_total);
    latest.set_bytes_checked(progress.bytes_checked);
    latest.set_corrupt_images(progress.corrupt_images);
    return stream.Write(latest);
  });
  if (status.ok()) {
    latest.set_done(true);
    stream.Write(latest);
  }
  calls_.Count(Call::kVerify, status);
  stream.End(std::move(status));
  const MutexLock lock(mutex_);
  is_verifying_ = false;
}

void AdminService::SetPolicy(const ControlCall& call, const v1::SetPolicyRequest& request,
                             const ReplyDone<v1::SetPolicyReply>& done) {
  const absl::StatusOr<SpacePolicy> policy = FromPolicy(parts_.spaces, request.policy());
  if (!policy.ok()) return done(policy.status());
  const absl::StatusOr<SpaceRef> space = parts_.spaces.Find(request.space_id());
  if (!space.ok()) return done(space.status());
  if (absl::Status said = Announce(call, "SetPolicy", request); !said.ok()) return done(said);
  const absl::StatusOr<std::optional<ToldPolicy>> told = SetHere(**space, *policy);
  if (!told.ok()) return done(told.status());
  v1::SetPolicyReply reply;
  *reply.mutable_policy() = ToPolicy((*space)->coding().policy());
  if (!told->has_value()) return parts_.freed.Answer(call, std::move(reply), done);
  parts_.teller->Tell(
      **told, call.deadline() - 2 * kAnswerTime,
      [this, &call, reply = std::move(reply), done](const std::vector<std::string>& unreached) {
        if (unreached.empty()) return parts_.freed.Answer(call, reply, done);
        done(absl::UnavailableError(absl::StrCat(
            "set here, but these members did not confirm it: ", absl::StrJoin(unreached, ", "),
            "; they are told when they are back")));
      });
}

absl::StatusOr<std::optional<ToldPolicy>> AdminService::SetHere(SpaceEntry& space,
                                                                const SpacePolicy& policy) {
  if (parts_.policies == nullptr) {
    CAIRN_RETURN_IF_ERROR(space.coding().SetPolicy(policy));
    parts_.tiers.PolicyChanged(space.Describe().record);
    return std::nullopt;
  }
  const v1::SpacePolicy named = ToPolicy(policy);
  CAIRN_ASSIGN_OR_RETURN(ToldPolicy told,
                         parts_.policies->Set({.tenant = std::string(space.tenant()),
                                               .space = space.fingerprint(),
                                               .recipe = named.recipe(),
                                               .cold_recipe = named.cold_recipe(),
                                               .ttl_s = named.ttl_seconds()}));
  if (told.epoch == 0) {
    return absl::ResourceExhaustedError(
        "set here, and no other member is told: policies of too many spaces are set");
  }
  return told;
}

absl::Status AdminService::ListMembers(const v1::ListMembersRequest&, v1::ListMembersReply* reply) {
  const Members* members = parts_.members;
  if (members == nullptr) return absl::OkStatus();
  const auto to_ms = [](absl::Duration time) {
    return static_cast<uint64_t>(absl::ToInt64Milliseconds(time));
  };
  const ViewPtr view = members->view();
  reply->set_cluster(members->cluster());
  reply->set_source(parts_.members_source);
  if (const absl::Status state = members->source_state(); !state.ok()) {
    reply->set_source_error(std::string(state.message()));
  }
  reply->set_source_silence_ms(to_ms(members->source_silence()));
  reply->set_view_hash(view->hash);
  reply->set_guarded(view->is_guarded);
  for (const Member& member : view->members) {
    v1::MemberInfo& info = *reply->add_members();
    info.set_name(member.name);
    info.set_address(member.address);
    info.set_zone(member.zone);
    info.set_state(ToState(member.state));
    info.set_reason(member.refusal);
    info.set_self(member.is_self);
    info.set_state_ms(to_ms(members->Age(member)));
  }
  return absl::OkStatus();
}

absl::Status AdminService::ListTiers(const v1::ListTiersRequest&, v1::ListTiersReply* reply) {
  for (const CopyTier* tier : parts_.tiers.all()) {
    v1::TierInfo& info = *reply->add_tiers();
    info.set_tier(static_cast<v1::Tier>(tier->id()));
    info.set_capacity_bytes(tier->capacity_bytes());
    info.set_used_bytes(tier->used_bytes());
    const CopyFigures figures = parts_.index.figures(tier->id());
    info.set_image_count(figures.copy_count);
    info.set_evicted_for_index(figures.evicted_for_index);
    for (const DeviceReport& device : tier->Devices()) {
      FillDevice(device, info.add_devices());
    }
    if (tier->traits().is_lasting) {
      FillScrub(parts_.upkeep.scrub(), info.mutable_scrub());
      FillWrites(parts_.upkeep.writes(), info.mutable_writes());
    }
  }
  if (parts_.codec != nullptr) {  // a GPU without copies
    v1::TierInfo& info = *reply->add_tiers();
    info.set_tier(static_cast<v1::Tier>(TierId::kGpu));
    FillDevice(parts_.codec->Device(), info.add_devices());
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::SetDeviceReply> AdminService::SetDevice(const ControlCall& call,
                                                           const v1::SetDeviceRequest& request) {
  CAIRN_RETURN_IF_ERROR(Announce(call, "SetDevice", request));
  absl::Status status = parts_.tiers.SetRetired(request.path(), request.retired());
  if (absl::IsNotFound(status) && parts_.codec != nullptr &&
      parts_.codec->Device().path == request.path()) {
    status = absl::FailedPreconditionError(absl::StrCat(
        request.path(), " has no copies without an SSD tier: there is nothing to retire"));
  }
  LogInfo("admin", request.retired() ? "device is retired" : "device is taken back",
          {{"path", request.path().substr(0, kPathShown)},
           {"user", call.identity().ToString()},
           {"result", status}});
  CAIRN_RETURN_IF_ERROR(status);
  v1::SetDeviceReply reply;
  for (const DeviceReport& device : parts_.tiers.Devices()) {
    if (device.path == request.path()) {
      FillDevice(device, reply.mutable_device());
    }
  }
  return reply;
}

absl::StatusOr<v1::DrainReply> AdminService::Drain(const ControlCall& call) {
  CAIRN_RETURN_IF_ERROR(Announce(call, "Drain", v1::DrainRequest()));
  parts_.drain();
  v1::DrainReply reply;
  reply.set_session_count(parts_.sessions.count());
  return reply;
}

absl::Status AdminService::Announce(const ControlCall& call, std::string_view name,
                                    const google::protobuf::Message& request) {
  if (parts_.audit == nullptr) return absl::OkStatus();
  return parts_.audit->Change(name, call.identity(), request.ShortDebugString());
}

}  // namespace cairn
