// SPDX-License-Identifier: Apache-2.0
#include "client/cpp/space.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status.h"
#include "client/cpp/core.h"
#include "proto/convert.h"

namespace cairn {

Breaker::Bytes MatchResult::image_bytes() const {
  Breaker::Bytes sum;
  for (const MatchedBlock& block : blocks) {
    (block.tier == Tier::kPeer ? sum.peer : sum.local) += block.image_bytes;
  }
  return sum;
}

namespace {

constexpr int kTiersMax = 16;  // in an answer; newer daemons may have more than this one knows

absl::Status CheckKeyCount(size_t count) {
  if (count > static_cast<size_t>(proto::kMatchKeysMax)) {
    return absl::InvalidArgumentError(
        absl::StrCat("keys has ", count, " keys; the limit is ", proto::kMatchKeysMax));
  }
  return absl::OkStatus();
}

// Makes a request that names a space and keys.
template <typename Message>
Message Asking(std::span<const BlockKey> keys, uint64_t space_id) {
  Message message;
  message.set_space_id(space_id);
  for (const BlockKey& key : keys) {
    message.add_keys(proto::ToBytes(key));
  }
  return message;
}

// Makes a match or a prefetch, which also has the wanted slices.
template <typename Message, typename Request>
Message AskingSlices(const Request& request, uint64_t space_id) {
  auto message = Asking<Message>(request.keys, space_id);
  for (const GroupSlice& slice : request.slices) {
    v1::GroupSlice& wanted = *message.add_slices();
    wanted.set_group(slice.group);
    wanted.set_layer_first(slice.layer_first);
    wanted.set_layer_count(slice.layer_count);
    wanted.set_head_first(slice.head_first);
    wanted.set_head_count(slice.head_count);
  }
  for (const uint32_t group : request.groups_skipped) {
    message.add_groups_skipped(group);
  }
  return message;
}

v1::MatchRequest ToMessage(const MatchRequest& request, uint64_t space_id) {
  auto message = AskingSlices<v1::MatchRequest>(request, space_id);
  message.set_token_limit(request.token_limit);
  message.set_wait_ms(static_cast<uint32_t>(absl::ToInt64Milliseconds(request.wait)));
  message.set_lease(!request.is_counting);
  message.set_generation(request.generation);
  return message;
}

absl::StatusOr<MatchResult> FromMessage(const v1::MatchReply& reply, size_t key_count) {
  if (reply.block_count() > key_count || static_cast<size_t>(reply.blocks_size()) > key_count) {
    return absl::InternalError("the daemon matched more blocks than it was asked for");
  }
  MatchResult result;
  result.block_count = reply.block_count();
  result.token_count = reply.token_count();
  if (!reply.lease().empty()) {
    CAIRN_ASSIGN_OR_RETURN(result.lease, proto::FromLeaseBytes(reply.lease()));
  }
  result.lease_time = absl::Milliseconds(reply.lease_ms());
  for (const v1::MatchedBlock& block : reply.blocks()) {
    const bool expires = block.ttl_seconds() > 0;
    result.blocks.push_back(
        {.tier = static_cast<Tier>(block.tier()),
         .image_bytes = block.image_bytes(),
         .ttl = expires ? absl::Seconds(block.ttl_seconds()) : absl::InfiniteDuration()});
  }
  result.blocks.resize(result.block_count);
  result.is_shortened_by_pins = reply.shortened_by_pins();
  result.generation = reply.generation();
  return result;
}

ExplainedBlock FromMessage(const v1::BlockFate& fate) {
  ExplainedBlock block;
  block.state = static_cast<ExplainedBlock::State>(fate.state());
  // The reason comes from a newer daemon and is unknown here.
  block.reason = fate.reason() > v1::BlockFate::REASON_REFUSED
                     ? ExplainedBlock::Reason::kUnknown
                     : static_cast<ExplainedBlock::Reason>(fate.reason());
  for (const int tier : fate.tiers()) {
    block.tiers.push_back(static_cast<Tier>(tier));
  }
  block.removed_ago = absl::Milliseconds(static_cast<int64_t>(fate.removed_ms()));
  block.missing_group = fate.missing_group();
  return block;
}

MemberBlocks FromMessage(const v1::MemberBlocks& message) {
  MemberBlocks member{.member = message.member(),
                      .is_self = message.self(),
                      .block_count = message.block_count(),
                      .tiers = {},
                      .is_draining = message.draining(),
                      .failure = message.failure()};
  for (const v1::TierBlocks& one : message.tiers()) {
    member.tiers.push_back({static_cast<Tier>(one.tier()), one.block_count()});
  }
  return member;
}

absl::Status CheckHintTime(std::string_view field, absl::Duration time, absl::Duration least) {
  if (time < least || time > kHintTimeMax) {
    return absl::InvalidArgumentError(
        absl::StrCat(std::string(field), " is ", absl::ToInt64Seconds(time), " s; expected ",
                     absl::ToInt64Seconds(least), " to ", absl::ToInt64Seconds(kHintTimeMax)));
  }
  return absl::OkStatus();
}

}  // namespace

std::string_view Name(ExplainedBlock::Reason reason) {
  constexpr std::string_view kNames[] = {"none",       "unknown", "never-put",   "evicted",
                                         "expired",    "deleted", "invalidated", "damaged",
                                         "device-out", "refused"};
  return kNames[static_cast<size_t>(reason)];
}

Space::Space(ClientCore& core, proto::SpaceIdentity identity, std::string recipe)
    : core_(core),
      identity_(std::move(identity)),
      shapes_(proto::ShapesOf(identity_)),
      fingerprint_(proto::FingerprintOf(identity_)),
      recipe_wanted_(std::move(recipe)) {}

absl::StatusOr<Space::Bound> Space::Bind(absl::Time deadline) {
  Bound bound;
  CAIRN_ASSIGN_OR_RETURN(bound.session, core_.control->Session(deadline));
  {
    MutexLock lock(mutex_);
    if (opened_.epoch == bound.session.epoch) {
      bound.opened = opened_;
      return bound;
    }
  }
  v1::OpenSpaceRequest request;
  *request.mutable_spec() = proto::ToSpec(identity_);
  request.mutable_policy()->set_recipe(recipe_wanted_);
  CAIRN_ASSIGN_OR_RETURN(const v1::OpenSpaceReply reply,
                         core_.control->OpenSpace(std::move(request), deadline));
  if (reply.fingerprint() != proto::ToBytes(fingerprint_)) {
    return absl::InternalError("the daemon has another fingerprint for the space");
  }
  side_objects_.ForgetCurrent();  // the daemon may be another one, without these side objects
  bound.opened.epoch = bound.session.epoch;
  bound.opened.space_id = reply.space_id();
  CAIRN_ASSIGN_OR_RETURN(bound.opened.recipe,
                         proto::FromRecipeName(reply.policy().recipe(), codecs::Recipe()));
  if (!recipe_wanted_.empty() && recipe_wanted_ != reply.policy().recipe()) {
    LogWarn("client", "space has another recipe than requested",
            {{"model", identity_.model},
             {"asked", recipe_wanted_},
             {"recipe", reply.policy().recipe()}});
  }
  MutexLock lock(mutex_);
  if (opened_.epoch == 0) {
    was_created_ = reply.created();
  }
  opened_ = bound.opened;
  return bound;
}

std::string Space::recipe() const {
  MutexLock lock(mutex_);
  return proto::ToRecipeName(opened_.recipe);
}

BlockKey Space::DeriveKey(const BlockKey& parent, std::span<const uint32_t> tokens,
                          std::span<const proto::KeyExtra> extras) const {
  return proto::DeriveKey(fingerprint_, parent, tokens, extras);
}

std::vector<BlockKey> Space::DeriveChain(std::span<const uint32_t> tokens,
                                         std::span<const proto::KeyExtra> extras) const {
  return proto::DeriveChain(fingerprint_, tokens, identity_.tokens_per_block, extras);
}

BlockKey Space::OpaqueKey(std::span<const std::byte> engine_key) const {
  return proto::OpaqueKey(fingerprint_, engine_key);
}

absl::StatusOr<uint64_t> Space::SourceBytes(const GroupSlice& slice) const {
  CAIRN_ASSIGN_OR_RETURN(const PlacedSlice placed, PlaceSlice(shapes_, slice));
  return SourceBytesOf(placed);
}

absl::StatusOr<uint64_t> Space::ImageBytesMax(const GroupSlice& slice) const {
  CAIRN_ASSIGN_OR_RETURN(const PlacedSlice placed, PlaceSlice(shapes_, slice));
  return ImageBytesMaxOf(placed);
}

absl::StatusOr<MatchResult> Space::Match(const MatchRequest& request) {
  if (request.wait < absl::ZeroDuration() || request.wait >= kTimeoutMax) {
    return absl::InvalidArgumentError(absl::StrCat("wait is ", absl::FormatDuration(request.wait),
                                                   "; it must be from 0 to less than ",
                                                   absl::FormatDuration(kTimeoutMax)));
  }
  CAIRN_RETURN_IF_ERROR(CheckKeyCount(request.keys.size()));
  CAIRN_ASSIGN_OR_RETURN(
      const absl::Time deadline,
      core_.Begin(request.timeout, std::min(request.wait + kControlTimeoutDefault, kTimeoutMax)));
  for (const GroupSlice& slice : request.slices) {
    CAIRN_RETURN_IF_ERROR(PlaceSlice(shapes_, slice).status());
  }
  if (core_.options.breaker.is_enforced && !core_.breaker.Allow()) {
    MatchResult nothing;
    nothing.is_breaker_open = true;
    return nothing;
  }
  auto result = [&]() -> absl::StatusOr<MatchResult> {
    CAIRN_ASSIGN_OR_RETURN(const Bound bound, Bind(deadline));
    CAIRN_ASSIGN_OR_RETURN(
        const v1::MatchReply reply,
        core_.control->Match(ToMessage(request, bound.opened.space_id), deadline));
    return FromMessage(reply, request.keys.size());
  }();
  if (IsStoreFailure(result.status())) {
    core_.breaker.OnFailed(Breaker::Call::kMatch);
  } else {
    core_.breaker.OnMatched(result.ok() && result->block_count > 0 && !request.is_counting);
  }
  return result;
}

absl::StatusOr<PrefetchResult> Space::Prefetch(const PrefetchRequest& request) {
  CAIRN_RETURN_IF_ERROR(CheckKeyCount(request.keys.size()));
  for (const GroupSlice& slice : request.slices) {
    CAIRN_RETURN_IF_ERROR(PlaceSlice(shapes_, slice).status());
  }
  CAIRN_ASSIGN_OR_RETURN(const absl::Time deadline,
                         core_.Begin(request.timeout, kControlTimeoutDefault));
  CAIRN_ASSIGN_OR_RETURN(const Bound bound, Bind(deadline));
  CAIRN_ASSIGN_OR_RETURN(
      const v1::PrefetchReply reply,
      core_.control->Prefetch(AskingSlices<v1::PrefetchRequest>(request, bound.opened.space_id),
                              deadline));
  return PrefetchResult{.in_memory_count = reply.in_memory_count(),
                        .on_their_way_count = reply.on_their_way_count(),
                        .absent_count = reply.absent_count(),
                        .refused_count = reply.refused_count()};
}

absl::StatusOr<std::vector<bool>> Space::Contains(std::span<const BlockKey> keys,
                                                  absl::Duration timeout) {
  CAIRN_RETURN_IF_ERROR(CheckKeyCount(keys.size()));
  CAIRN_ASSIGN_OR_RETURN(const absl::Time deadline, core_.Begin(timeout, kControlTimeoutDefault));
  CAIRN_ASSIGN_OR_RETURN(const Bound bound, Bind(deadline));
  auto request = Asking<v1::ContainsRequest>(keys, bound.opened.space_id);
  CAIRN_ASSIGN_OR_RETURN(const v1::ContainsReply reply,
                         core_.control->Contains(std::move(request), deadline));
  if (static_cast<size_t>(reply.complete_size()) != keys.size()) {
    return absl::InternalError("the daemon answered with another number of keys");
  }
  return std::vector<bool>(reply.complete().begin(), reply.complete().end());
}

absl::StatusOr<ExplainResult> Space::Explain(std::span<const BlockKey> keys,
                                             absl::Duration timeout) {
  CAIRN_RETURN_IF_ERROR(CheckKeyCount(keys.size()));
  CAIRN_ASSIGN_OR_RETURN(const absl::Time deadline, core_.Begin(timeout, kExplainTimeoutDefault));
  CAIRN_ASSIGN_OR_RETURN(const Bound bound, Bind(deadline));
  auto request = Asking<v1::ExplainRequest>(keys, bound.opened.space_id);
  CAIRN_ASSIGN_OR_RETURN(const v1::ExplainReply reply,
                         core_.control->Explain(std::move(request), deadline));
  if (static_cast<size_t>(reply.blocks_size()) != keys.size()) {
    return absl::InternalError("the daemon answered with another number of keys");
  }
  ExplainResult result;
  result.recorded = absl::Milliseconds(static_cast<int64_t>(reply.recorded_ms()));
  for (const v1::BlockFate& fate : reply.blocks()) {
    result.blocks.push_back(FromMessage(fate));
  }
  return result;
}

absl::StatusOr<WhereResult> Space::Where(std::span<const BlockKey> keys, absl::Duration timeout) {
  CAIRN_RETURN_IF_ERROR(CheckKeyCount(keys.size()));
  CAIRN_ASSIGN_OR_RETURN(const absl::Time deadline, core_.Begin(timeout, kControlTimeoutDefault));
  CAIRN_ASSIGN_OR_RETURN(const Bound bound, Bind(deadline));
  auto request = Asking<v1::WhereRequest>(keys, bound.opened.space_id);
  const absl::StatusOr<v1::WhereReply> reply = core_.control->Where(std::move(request), deadline);
  if (absl::IsUnimplemented(reply.status())) {
    return absl::UnimplementedError("not implemented by this daemon, which is older: Where");
  }
  CAIRN_RETURN_IF_ERROR(reply.status());
  WhereResult result;
  result.unasked_count = reply->unasked_count();
  for (const v1::MemberBlocks& member : reply->members()) {
    if (member.block_count() > keys.size() || member.tiers_size() > kTiersMax) {
      return absl::InternalError("the daemon counted more blocks than it was asked for");
    }
    result.members.push_back(FromMessage(member));
  }
  if (result.members.empty()) return absl::InternalError("the daemon named no member");
  return result;
}

absl::StatusOr<uint32_t> Space::Retain(std::span<const BlockKey> keys, absl::Duration time,
                                       uint32_t priority, absl::Duration timeout) {
  CAIRN_RETURN_IF_ERROR(CheckKeyCount(keys.size()));
  CAIRN_RETURN_IF_ERROR(CheckHintTime("time", time, absl::Seconds(1)));
  if (priority < 1 || priority > kRetainPriorityMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("priority is ", priority, "; expected 1 to ", kRetainPriorityMax));
  }
  CAIRN_ASSIGN_OR_RETURN(const absl::Time deadline, core_.Begin(timeout, kControlTimeoutDefault));
  CAIRN_ASSIGN_OR_RETURN(const Bound bound, Bind(deadline));
  auto request = Asking<v1::RetainRequest>(keys, bound.opened.space_id);
  request.set_ttl_seconds(static_cast<uint32_t>(absl::ToInt64Seconds(time)));
  request.set_priority(priority);
  CAIRN_ASSIGN_OR_RETURN(const v1::RetainReply reply,
                         core_.control->Retain(std::move(request), deadline));
  return reply.stored_count();
}

absl::StatusOr<uint32_t> Space::Demote(std::span<const BlockKey> keys, absl::Duration after,
                                       absl::Duration timeout) {
  CAIRN_RETURN_IF_ERROR(CheckKeyCount(keys.size()));
  CAIRN_RETURN_IF_ERROR(CheckHintTime("after", after, absl::ZeroDuration()));
  CAIRN_ASSIGN_OR_RETURN(const absl::Time deadline, core_.Begin(timeout, kControlTimeoutDefault));
  CAIRN_ASSIGN_OR_RETURN(const Bound bound, Bind(deadline));
  auto request = Asking<v1::DemoteRequest>(keys, bound.opened.space_id);
  request.set_after_seconds(static_cast<uint32_t>(absl::ToInt64Seconds(after)));
  CAIRN_ASSIGN_OR_RETURN(const v1::DemoteReply reply,
                         core_.control->Demote(std::move(request), deadline));
  return reply.stored_count();
}

absl::StatusOr<uint64_t> Space::Delete(std::span<const BlockKey> keys, absl::Duration timeout) {
  CAIRN_RETURN_IF_ERROR(CheckKeyCount(keys.size()));
  CAIRN_ASSIGN_OR_RETURN(const absl::Time deadline, core_.Begin(timeout, kControlTimeoutDefault));
  CAIRN_ASSIGN_OR_RETURN(const Bound bound, Bind(deadline));
  auto request = Asking<v1::DeleteRequest>(keys, bound.opened.space_id);
  CAIRN_ASSIGN_OR_RETURN(const v1::DeleteReply reply,
                         core_.control->Delete(std::move(request), deadline));
  return reply.deleted_count();
}

std::unique_ptr<EventWatch> Space::Watch(const EventPosition& position, bool has_snapshots) {
  const auto space_id = [this](absl::Time deadline) -> absl::StatusOr<uint64_t> {
    CAIRN_ASSIGN_OR_RETURN(const Bound bound, Bind(deadline));
    return bound.opened.space_id;
  };
  return std::unique_ptr<EventWatch>(new EventWatch(core_, space_id, position, has_snapshots));
}

absl::StatusOr<uint64_t> Space::Invalidate(absl::Duration timeout, uint64_t generation) {
  CAIRN_ASSIGN_OR_RETURN(const absl::Time deadline, core_.Begin(timeout, kControlTimeoutDefault));
  CAIRN_ASSIGN_OR_RETURN(const Bound bound, Bind(deadline));
  v1::InvalidateRequest request;
  request.set_space_id(bound.opened.space_id);
  request.set_generation(generation);
  CAIRN_ASSIGN_OR_RETURN(const v1::InvalidateReply reply,
                         core_.control->Invalidate(std::move(request), deadline));
  return reply.deleted_count();
}

}  // namespace cairn
