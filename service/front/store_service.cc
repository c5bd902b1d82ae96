// SPDX-License-Identifier: Apache-2.0
#include "service/front/store_service.h"

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "proto/convert.h"

namespace cairn {
namespace {

void FillMatch(const MatchAnswer& result, absl::Time now, v1::MatchReply* reply) {
  reply->set_block_count(static_cast<uint32_t>(result.blocks.size()));
  reply->set_token_count(result.token_count);
  if (result.lease.has_value()) {
    reply->set_lease(proto::ToBytes(*result.lease));
    reply->set_lease_ms(result.lease_ms);
  }
  for (const BlockMatch& block : result.blocks) {
    v1::MatchedBlock& matched = *reply->add_blocks();
    matched.set_tier(block.is_elsewhere ? v1::TIER_PEER : static_cast<v1::Tier>(block.tier));
    matched.set_image_bytes(block.image_bytes);
    if (block.expires_unix_s > 0) {
      const int64_t left = absl::ToInt64Seconds(absl::FromUnixSeconds(block.expires_unix_s) - now);
      matched.set_ttl_seconds(static_cast<uint32_t>(std::max<int64_t>(left, 1)));
    }
  }
  reply->set_shortened_by_pins(result.is_shortened_by_pins);
}

void FillFigures(const IndexFigures& figures, v1::StatsReply* reply) {
  reply->set_block_count(figures.block_count);
  reply->set_image_count(figures.image_count);
  reply->set_image_bytes(figures.image_bytes);
  reply->set_source_bytes(figures.source_bytes);
  reply->set_copies_source_bytes(figures.copies_source_bytes);
}

v1::BlockFate::Reason ToReason(RemovalReason reason) {
  switch (reason) {
    case RemovalReason::kEvicted:
      return v1::BlockFate::REASON_EVICTED;
    case RemovalReason::kExpired:
      return v1::BlockFate::REASON_EXPIRED;
    case RemovalReason::kDeleted:
      return v1::BlockFate::REASON_DELETED;
    case RemovalReason::kInvalidated:
      return v1::BlockFate::REASON_INVALIDATED;
    case RemovalReason::kDamaged:
      return v1::BlockFate::REASON_DAMAGED;
    case RemovalReason::kDeviceOut:
      return v1::BlockFate::REASON_DEVICE_OUT;
    case RemovalReason::kRefused:
      return v1::BlockFate::REASON_REFUSED;
  }
  return v1::BlockFate::REASON_UNKNOWN;
}

uint64_t MillisecondsSince(uint32_t unix_s, absl::Time now) {
  return static_cast<uint64_t>(
      std::max<int64_t>(0, absl::ToInt64Milliseconds(now - absl::FromUnixSeconds(unix_s))));
}

void FillFate(const BlockFate& fate, const Explanation& all, absl::Time now,
              v1::BlockFate* filled) {
  for (const TierId tier : fate.tiers) filled->add_tiers(static_cast<v1::Tier>(tier));
  if (fate.is_stored) {
    filled->set_state(fate.missing_group.has_value() ? v1::BlockFate::STATE_INCOMPLETE
                                                     : v1::BlockFate::STATE_STORED);
    filled->set_missing_group(fate.missing_group.value_or(0));
    return;
  }
  filled->set_state(v1::BlockFate::STATE_ABSENT);
  if (fate.removal.has_value()) {
    filled->set_reason(ToReason(fate.removal->reason));
    filled->set_removed_ms(MillisecondsSince(fate.removal->at_unix_s, now));
  } else {
    filled->set_reason(all.has_all_removals ? v1::BlockFate::REASON_NEVER_PUT
                                            : v1::BlockFate::REASON_UNKNOWN);
  }
}

// Returns the wanted part of each group, from a MatchRequest or a PrefetchRequest.
template <typename Request>
absl::StatusOr<std::vector<WantedGroup>> WantedOf(const SpaceEntry& space, const Request& request) {
  if (static_cast<size_t>(request.slices_size()) > limits::kGroupsPerSpaceMax ||
      static_cast<size_t>(request.groups_skipped_size()) > limits::kGroupsPerSpaceMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("slices, groups_skipped: at most ", limits::kGroupsPerSpaceMax, " of each"));
  }
  std::vector<SpaceEntry::Ask> asks;
  for (const v1::GroupSlice& slice : request.slices()) {
    asks.push_back({slice.group(), slice.layer_first(), slice.layer_count(), slice.head_first(),
                    slice.head_count()});
  }
  const std::vector<uint32_t> skipped(request.groups_skipped().begin(),
                                      request.groups_skipped().end());
  return space.Want(asks, skipped);
}

std::vector<TierBlocks> TiersOf(const std::vector<BlockMatch>& blocks) {
  uint32_t counts[kTierCount] = {};
  for (const BlockMatch& block : blocks) {
    if (block.image_bytes > 0) ++counts[IndexOf(block.tier)];  // others no rule needs
  }
  std::vector<TierBlocks> tiers;
  for (size_t i = 0; i < kTierCount; ++i) {
    if (counts[i] > 0) tiers.push_back({static_cast<Tier>(i + 1), counts[i]});
  }
  return tiers;
}

void AddMember(const MemberBlocks& member, v1::WhereReply* reply) {
  v1::MemberBlocks& added = *reply->add_members();
  added.set_member(member.member);
  added.set_self(member.is_self);
  added.set_block_count(member.block_count);
  added.set_draining(member.is_draining);
  added.set_failure(member.failure);
  for (const TierBlocks& one : member.tiers) {
    v1::TierBlocks& tier = *added.add_tiers();
    tier.set_tier(static_cast<v1::Tier>(one.tier));
    tier.set_block_count(one.block_count);
  }
}

// Between questions to other members while a Match waits.
constexpr absl::Duration kAskAgain = absl::Milliseconds(50);

constexpr RequestBound kShort;
// For requests whose only long part is the list of keys.
constexpr RequestBound KeyList(int field) {
  return {.bulk_field = static_cast<uint32_t>(field), .bulk_count_max = limits::kKeysPerCallMax};
}

// Members are on other hosts.
SessionTerms ForMembers(const SessionTerms& terms) {
  SessionTerms result = terms;
  std::erase(result.data_addresses, terms.local_address);
  result.is_for_members = true;
  return result;
}

std::string ToBytes(const codecs::Digest& id) {
  return proto::ToBytes(std::as_bytes(std::span(id)));
}

}  // namespace

absl::StatusOr<SpacePolicy> FromPolicy(const Spaces& spaces, const v1::SpacePolicy& policy) {
  return spaces.PolicyOf(policy.recipe(), policy.cold_recipe(), policy.ttl_seconds());
}

v1::SpacePolicy ToPolicy(const SpacePolicy& policy) {
  v1::SpacePolicy message;
  message.set_recipe(proto::ToRecipeName(policy.recipe));
  if (policy.cold_recipe.has_value()) {
    message.set_cold_recipe(proto::ToRecipeName(*policy.cold_recipe));
  }
  message.set_ttl_seconds(policy.ttl_s);
  return message;
}

StoreService::StoreService(const Parts& parts, SessionTerms terms)
    : parts_(parts),
      terms_(std::move(terms)),
      member_terms_(ForMembers(terms_)),
      started_(parts.clock.Now()),
      freed_(parts.tiers),
      upload_parts_{
          uploads_, calls_, [this](const auto& first) { return CheckUpload(first); },
          [this](const auto& first, std::string_view content) { return Install(first, content); }} {
}

absl::StatusOr<Session> StoreService::SessionOf(const std::string& ticket) const {
  CAIRN_ASSIGN_OR_RETURN(const proto::Ticket parsed, proto::FromTicketBytes(ticket));
  return parts_.sessions.Find(parsed);
}

absl::StatusOr<StoreService::Caller> StoreService::CallerOf(const std::string& ticket,
                                                            uint64_t space_id) const {
  Caller caller;
  CAIRN_ASSIGN_OR_RETURN(caller.session, SessionOf(ticket));
  CAIRN_ASSIGN_OR_RETURN(caller.space, parts_.spaces.Find(space_id, caller.session.tenant.view()));
  return caller;
}

absl::StatusOr<SpaceRef> StoreService::SpaceOf(const std::string& ticket, uint64_t space_id) const {
  CAIRN_ASSIGN_OR_RETURN(Caller caller, CallerOf(ticket, space_id));
  return std::move(caller.space);
}

template <typename Request, typename Reply>
void StoreService::AddLate(CallRouter& router, const char* name, Call call,
                           const RequestBound& bound,
                           void (StoreService::*step)(const ControlCall&, const Request&,
                                                      const ReplyDone<Reply>&)) {
  router.AddUnary(
      absl::StrCat("/cairn.v1.Store/", name),
      UnaryMethod<Request, Reply>{
          calls_, call, bound,
          [this, step](const ControlCall& made, const Request& request,
                       const ReplyDone<Reply>& done) { (this->*step)(made, request, done); }});
}

template <typename Step>
void StoreService::Add(CallRouter& router, const char* name, Call call, const RequestBound& bound,
                       Step step) {
  router.AddUnary(absl::StrCat("/cairn.v1.Store/", name), calls_, call, bound, this, step);
}

void StoreService::AddForAll(CallRouter& router, const SessionTerms& terms) {
  Add(router, "OpenSpace", Call::kOpenSpace, {.rest_bytes_max = limits::kSpecBytesMax},
      &StoreService::OpenSpace);
  Add(router, "Release", Call::kRelease,
      {.bulk_field = v1::ReleaseRequest::kLeasesFieldNumber, .bulk_count_max = limits::kLeasesMax},
      &StoreService::Release);
  Add(router, "GetSideObject", Call::kGetSideObject, kShort, &StoreService::GetSideObject);
  AddLate(router, "Match", Call::kMatch, KeyList(v1::MatchRequest::kKeysFieldNumber),
          &StoreService::Match);
  AddLate(router, "Where", Call::kWhere, KeyList(v1::WhereRequest::kKeysFieldNumber),
          &StoreService::Where);
  AddLate(router, "Delete", Call::kDelete, KeyList(v1::DeleteRequest::kKeysFieldNumber),
          &StoreService::Delete);
  AddLate(router, "Invalidate", Call::kInvalidate, kShort, &StoreService::Invalidate);
  router.Add("/cairn.v1.Store/OpenSession", [this, &terms](const CallPlace& place) {
    return OpenSessionStream(place, terms, parts_.sessions, parts_.index);
  });
}

void StoreService::AddToMembers(CallRouter& router) { AddForAll(router, member_terms_); }

void StoreService::AddTo(CallRouter& router) {
  AddForAll(router, terms_);
  Add(router, "Contains", Call::kContains, KeyList(v1::ContainsRequest::kKeysFieldNumber),
      &StoreService::Contains);
  Add(router, "Retain", Call::kRetain, KeyList(v1::RetainRequest::kKeysFieldNumber),
      &StoreService::Retain);
  Add(router, "Demote", Call::kDemote, KeyList(v1::DemoteRequest::kKeysFieldNumber),
      &StoreService::Demote);
  Add(router, "Prefetch", Call::kPrefetch, KeyList(v1::PrefetchRequest::kKeysFieldNumber),
      &StoreService::Prefetch);
  Add(router, "About", Call::kAbout, kShort, &StoreService::About);
  Add(router, "ListSideObjects", Call::kListSideObjects, kShort, &StoreService::ListSideObjects);
  router.AddUnary(
      "/cairn.v1.Store/Explain",
      UnaryMethod<v1::ExplainRequest, v1::ExplainReply>{
          calls_, Call::kExplain, KeyList(v1::ExplainRequest::kKeysFieldNumber),
          [this](const ControlCall& call, const v1::ExplainRequest& request,
                 const ReplyDone<v1::ExplainReply>& done) { done(Explain(call, request)); }});
  AddLate(router, "Stats", Call::kStats, kShort, &StoreService::Stats);
  router.Add("/cairn.v1.Events/WatchEvents", [this](const CallPlace& place) {
    return StartEventStream(place, parts_.index, parts_.sessions, parts_.spaces);
  });
  router.Add("/cairn.v1.Store/PutSideObject",
             [this](const CallPlace& place) { return StartUpload(place, upload_parts_); });
}

absl::Status StoreService::OpenSpace(const v1::OpenSpaceRequest& request,
                                     v1::OpenSpaceReply* reply) {
  CAIRN_ASSIGN_OR_RETURN(const Session session, SessionOf(request.ticket()));
  CAIRN_ASSIGN_OR_RETURN(const proto::SpaceIdentity identity, proto::FromSpec(request.spec()));
  CAIRN_ASSIGN_OR_RETURN(const SpacePolicy policy, FromPolicy(parts_.spaces, request.policy()));
  CAIRN_ASSIGN_OR_RETURN(const Spaces::Opened opened,
                         parts_.spaces.Open(identity, policy, session.tenant.view()));
  CAIRN_RETURN_IF_ERROR(parts_.sessions.Keep(session.id, opened.space.Share()));
  reply->set_space_id(opened.space->id());
  reply->set_fingerprint(proto::ToBytes(opened.space->fingerprint()));
  *reply->mutable_policy() = ToPolicy(opened.space->coding().policy());
  reply->set_created(opened.is_created);
  return absl::OkStatus();
}

absl::StatusOr<MatchQuery> StoreService::QueryOf(const Caller& caller,
                                                 const v1::MatchRequest& request) {
  const SpaceRef& space = caller.space;
  if (request.wait_ms() > limits::kWaitMsMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("wait_ms: ", request.wait_ms(), " is over ", limits::kWaitMsMax));
  }
  MatchQuery query;
  CAIRN_ASSIGN_OR_RETURN(query.wanted, WantedOf(*space, request));
  CAIRN_ASSIGN_OR_RETURN(query.keys, proto::FromKeyList(request.keys()));
  query.space_id = space->id();
  query.tokens_per_block = space->tokens_per_block();
  query.token_limit = request.token_limit();
  query.wants_lease = request.lease();
  query.session_id = caller.session.id;
  query.tenant = caller.session.tenant.view();
  return query;
}

std::optional<uint64_t> StoreService::HearGeneration(const Caller& caller, uint64_t generation) {
  if (parts_.generations == nullptr || !caller.session.is_member) return std::nullopt;
  const SpaceEntry& space = *caller.space;
  return parts_.generations->Learn({std::string(space.tenant()), space.fingerprint(), generation})
      .generation;
}

void StoreService::Match(const ControlCall& call, const v1::MatchRequest& request,
                         const ReplyDone<v1::MatchReply>& done) {
  const absl::StatusOr<Caller> caller = CallerOf(request.ticket(), request.space_id());
  if (!caller.ok()) return done(caller.status());
  auto query = QueryOf(*caller, request);
  if (!query.ok()) return done(query.status());
  const std::optional<uint64_t> generation = HearGeneration(*caller, request.generation());
  auto answer = [this, &call, done, tenant = query->tenant,
                 generation](absl::StatusOr<MatchAnswer> result) {
    if (!result.ok()) return done(result.status());
    // A client that has left never learns of its lease and cannot release it.
    if (result->lease.has_value() && call.is_cancelled()) ReleaseAll(tenant, {&*result->lease, 1});
    v1::MatchReply reply;
    FillMatch(*result, parts_.clock.Now(), &reply);
    reply.set_generation(generation.value_or(0));
    done(std::move(reply));
  };
  const absl::Time deadline = call.deadline() - kAnswerTime;
  const absl::Time until =
      request.wait_ms() == 0
          ? absl::InfinitePast()
          : std::min(MonotonicNow() + absl::Milliseconds(request.wait_ms()), deadline);
  if (generation.has_value() && *generation < request.generation()) {
    return answer(MatchAnswer());
  }
  if (AsksMembers(caller->session)) {
    return MatchEverywhere(*std::move(query), until, deadline, std::move(answer));
  }
  if (request.wait_ms() == 0) return answer(parts_.index.Match(*query));
  parts_.index.MatchWhenReady(*std::move(query), until, std::move(answer));
}

void StoreService::MatchEverywhere(MatchQuery query, absl::Time until, absl::Time deadline,
                                   MatchDone done) {
  const bool waits = MonotonicNow() < until;
  const bool wants_lease = query.wants_lease;
  if (waits) query.wants_lease = false;  // a lease of a part would be of no use
  absl::StatusOr<MatchAnswer> own = parts_.index.Match(query);
  if (!own.ok()) return done(own.status());
  if (!waits) {
    return parts_.remote->Extend(std::move(query), *std::move(own), deadline, std::move(done));
  }
  MatchQuery asked = query;
  parts_.remote->Extend(
      std::move(asked), *std::move(own), deadline,
      [this, query = std::move(query), wants_lease, until, deadline,
       done = std::move(done)](const MatchAnswer& found) mutable {
        MatchQuery again = query;
        again.wants_lease = wants_lease;
        if (found.blocks.size() >= BlocksAsked(query)) {
          return MatchEverywhere(std::move(again), absl::InfinitePast(), deadline, std::move(done));
        }
        // Nobody says when another member has stored what is missing: ask again.
        parts_.index.MatchWhenReady(
            std::move(query), std::min(until, MonotonicNow() + kAskAgain),
            [this, again = std::move(again), until, deadline,
             done = std::move(done)](const absl::StatusOr<MatchAnswer>& waited) mutable {
              if (!waited.ok()) return done(waited.status());
              MatchEverywhere(std::move(again), until, deadline, std::move(done));
            });
      });
}

void StoreService::ReleaseAll(std::string_view tenant, absl::Span<const proto::LeaseToken> leases) {
  parts_.index.Release(tenant, leases);
  if (parts_.remote != nullptr) parts_.remote->Release(tenant, leases);
}

absl::Status StoreService::Release(const v1::ReleaseRequest& request, v1::ReleaseReply*) {
  CAIRN_ASSIGN_OR_RETURN(const Session session, SessionOf(request.ticket()));
  if (static_cast<size_t>(request.leases_size()) > limits::kLeasesMax) {
    return absl::InvalidArgumentError(absl::StrCat("leases: at most ", limits::kLeasesMax));
  }
  std::vector<proto::LeaseToken> leases;
  for (const std::string& bytes : request.leases()) {
    CAIRN_ASSIGN_OR_RETURN(const proto::LeaseToken lease, proto::FromLeaseBytes(bytes));
    leases.push_back(lease);
  }
  ReleaseAll(session.tenant.view(), leases);
  return absl::OkStatus();
}

absl::Status StoreService::Contains(const v1::ContainsRequest& request, v1::ContainsReply* reply) {
  CAIRN_ASSIGN_OR_RETURN(const SpaceRef space, SpaceOf(request.ticket(), request.space_id()));
  CAIRN_ASSIGN_OR_RETURN(const auto keys, proto::FromKeyList(request.keys()));
  const auto whole = absl::MakeConstSpan(space->whole().data(), space->whole().size());
  for (const bool complete : parts_.index.Contains(space->id(), keys, whole)) {
    reply->add_complete(complete);
  }
  return absl::OkStatus();
}

absl::Status StoreService::Retain(const v1::RetainRequest& request, v1::RetainReply* reply) {
  CAIRN_ASSIGN_OR_RETURN(const SpaceRef space, SpaceOf(request.ticket(), request.space_id()));
  if (request.ttl_seconds() < 1 || request.ttl_seconds() > limits::kHintSecondsMax) {
    return absl::InvalidArgumentError(absl::StrCat("ttl_seconds: ", request.ttl_seconds(),
                                                   " is not 1 to ", limits::kHintSecondsMax));
  }
  if (request.priority() < 1 || request.priority() > limits::kRetainPriorityMax) {
    return absl::InvalidArgumentError(absl::StrCat("priority: ", request.priority(),
                                                   " is not 1 to ", limits::kRetainPriorityMax));
  }
  CAIRN_ASSIGN_OR_RETURN(const auto keys, proto::FromKeyList(request.keys()));
  CAIRN_ASSIGN_OR_RETURN(
      const uint32_t stored,
      parts_.index.SetHints(space->id(), space->tenant(), keys,
                            static_cast<uint8_t>(request.priority()), request.ttl_seconds()));
  reply->set_stored_count(stored);
  return absl::OkStatus();
}

absl::Status StoreService::Demote(const v1::DemoteRequest& request, v1::DemoteReply* reply) {
  CAIRN_ASSIGN_OR_RETURN(const SpaceRef space, SpaceOf(request.ticket(), request.space_id()));
  if (request.after_seconds() > limits::kHintSecondsMax) {
    return absl::InvalidArgumentError(absl::StrCat("after_seconds: ", request.after_seconds(),
                                                   " is over ", limits::kHintSecondsMax));
  }
  CAIRN_ASSIGN_OR_RETURN(const auto keys, proto::FromKeyList(request.keys()));
  CAIRN_ASSIGN_OR_RETURN(const uint32_t stored,
                         parts_.index.SetHints(space->id(), space->tenant(), keys, /*priority=*/0,
                                               request.after_seconds()));
  reply->set_stored_count(stored);
  return absl::OkStatus();
}

absl::StatusOr<v1::ExplainReply> StoreService::Explain(const ControlCall& call,
                                                       const v1::ExplainRequest& request) const {
  const bool is_of_operator = request.ticket().empty() && call.is_operator();
  CAIRN_ASSIGN_OR_RETURN(const SpaceRef space, is_of_operator
                                                   ? parts_.spaces.Find(request.space_id())
                                                   : SpaceOf(request.ticket(), request.space_id()));
  CAIRN_ASSIGN_OR_RETURN(const auto wanted, WantedOf(*space, request));
  CAIRN_ASSIGN_OR_RETURN(const auto keys, proto::FromKeyList(request.keys()));
  const Explanation explanation = parts_.index.Explain(space->id(), keys, wanted);
  const absl::Time now = parts_.clock.Now();
  v1::ExplainReply reply;
  reply.set_recorded_ms(MillisecondsSince(explanation.since_unix_s, now));
  for (const BlockFate& fate : explanation.blocks) {
    FillFate(fate, explanation, now, reply.add_blocks());
  }
  return reply;
}

absl::StatusOr<MemberBlocks> StoreService::OwnBlocks(const SpaceEntry& space,
                                                     const std::vector<proto::BlockKey>& keys) {
  MatchQuery query;
  CAIRN_ASSIGN_OR_RETURN(query.wanted, space.Want({}, {}));
  query.keys = keys;
  query.space_id = space.id();
  query.tokens_per_block = space.tokens_per_block();
  const MatchAnswer answer = parts_.index.Peek(query);
  return MemberBlocks{.member = terms_.member_name,
                      .is_self = true,
                      .block_count = static_cast<uint32_t>(answer.blocks.size()),
                      .tiers = TiersOf(answer.blocks),
                      .is_draining = terms_.is_draining(),
                      .failure = ""};
}

void StoreService::Where(const ControlCall& call, const v1::WhereRequest& request,
                         const ReplyDone<v1::WhereReply>& done) {
  const absl::StatusOr<Caller> caller = CallerOf(request.ticket(), request.space_id());
  if (!caller.ok()) return done(caller.status());
  auto keys = proto::FromKeyList(request.keys());
  if (!keys.ok()) return done(keys.status());
  const absl::StatusOr<MemberBlocks> own = OwnBlocks(*caller->space, *keys);
  if (!own.ok()) return done(own.status());
  v1::WhereReply reply;
  AddMember(*own, &reply);
  if (parts_.whereabouts == nullptr || !AsksMembers(caller->session)) {
    return done(std::move(reply));
  }
  parts_.whereabouts->Find(
      *caller->space, *std::move(keys),
      std::min(call.deadline() - kAnswerTime,
               MonotonicNow() + absl::Milliseconds(limits::kWhereMs)),
      [done, reply = std::move(reply)](const absl::StatusOr<WhereResult>& others) mutable {
        if (!others.ok()) return done(others.status());
        for (const MemberBlocks& member : others->members) AddMember(member, &reply);
        reply.set_unasked_count(others->unasked_count);
        done(std::move(reply));
      });
}

absl::Status StoreService::Prefetch(const v1::PrefetchRequest& request, v1::PrefetchReply* reply) {
  CAIRN_ASSIGN_OR_RETURN(const Session session, SessionOf(request.ticket()));
  CAIRN_ASSIGN_OR_RETURN(const SpaceRef space, SpaceOf(request.ticket(), request.space_id()));
  CAIRN_ASSIGN_OR_RETURN(const auto wanted, WantedOf(*space, request));
  CAIRN_ASSIGN_OR_RETURN(const auto keys, proto::FromKeyList(request.keys()));
  Prefetches::Answer answer = parts_.prefetches.QueueReads(space->id(), keys, wanted);
  if (parts_.remote != nullptr && !session.is_member) {
    for (const proto::BlockKey& key : answer.absent_keys) {
      const RemoteBlocks::Ahead ahead =
          parts_.remote->FetchAhead(session, {space->id(), key}, wanted);
      if (ahead == RemoteBlocks::Ahead::kNowhere) continue;
      --answer.absent;
      ++(ahead == RemoteBlocks::Ahead::kBegun ? answer.on_their_way : answer.refused);
    }
  }
  reply->set_in_memory_count(answer.in_memory);
  reply->set_on_their_way_count(answer.on_their_way);
  reply->set_absent_count(answer.absent);
  reply->set_refused_count(answer.refused);
  return absl::OkStatus();
}

void StoreService::Delete(const ControlCall& call, const v1::DeleteRequest& request,
                          const ReplyDone<v1::DeleteReply>& done) {
  const absl::StatusOr<Caller> caller = CallerOf(request.ticket(), request.space_id());
  if (!caller.ok()) return done(caller.status());
  const auto keys = proto::FromKeyList(request.keys());
  if (!keys.ok()) return done(keys.status());
  if (keys->empty()) return done(v1::DeleteReply());  // to tiers and members, none would mean all
  const SpaceEntry& space = *caller->space;
  if (parts_.remote != nullptr) parts_.remote->BeginDelete(space.id(), *keys);
  parts_.tiers.Deleted(space.fingerprint(), *keys);
  v1::DeleteReply reply;
  reply.set_deleted_count(parts_.index.Delete(space.id(), *keys));
  DeleteElsewhere(call, *caller, *keys, 0, std::move(reply), done);
}

template <typename Reply>
void StoreService::DeleteElsewhere(const ControlCall& call, const Caller& caller,
                                   std::vector<proto::BlockKey> keys, uint64_t generation,
                                   Reply reply, const ReplyDone<Reply>& done) {
  if (!AsksMembers(caller.session)) return freed_.Answer(call, std::move(reply), done);
  const std::string later = !keys.empty()    ? "; they are told again for ten minutes"
                            : generation > 0 ? "; they are told when they are back"
                                             : "";
  parts_.remote->Delete(
      *caller.space, std::move(keys), generation, call.deadline() - 2 * kAnswerTime,
      [this, &call, later, reply = std::move(reply),
       done](const std::vector<std::string>& unreached) mutable {
        if (unreached.empty()) return freed_.Answer(call, std::move(reply), done);
        done(absl::UnavailableError(absl::StrCat(
            "deleted here, but these members did not confirm it: ", absl::StrJoin(unreached, ", "),
            later)));
      });
}

uint64_t DropBlocks(Tiers& tiers, BlockIndex& index, SpaceEntry& space) {
  tiers.Deleted(space.fingerprint(), {});
  const uint64_t deleted = index.Invalidate(space.id());
  space.coding().ForgetQuerySquares();
  return deleted;
}

Generations::Outcome StoreService::DropSpace(const Caller& caller, uint64_t generation) {
  SpaceEntry& space = *caller.space;
  if (parts_.generations != nullptr) {
    if (!caller.session.is_member || generation == 0) {
      return parts_.generations->Raise(space.tenant(), space.fingerprint());
    }
    const Generations::Outcome learned =
        parts_.generations->Learn({std::string(space.tenant()), space.fingerprint(), generation});
    if (learned.generation >= generation) return learned;
  }
  // No generation, or one that cannot be kept.
  return {.deleted_count = DropBlocks(parts_.tiers, parts_.index, space)};
}

void StoreService::Invalidate(const ControlCall& call, const v1::InvalidateRequest& request,
                              const ReplyDone<v1::InvalidateReply>& done) {
  const absl::StatusOr<Caller> caller = CallerOf(request.ticket(), request.space_id());
  if (!caller.ok()) return done(caller.status());
  const Generations::Outcome dropped = DropSpace(*caller, request.generation());
  v1::InvalidateReply reply;
  reply.set_deleted_count(dropped.deleted_count);
  DeleteElsewhere(call, *caller, {}, dropped.generation, std::move(reply), done);
}

absl::Status StoreService::About(const v1::AboutRequest&, v1::AboutReply* reply) {
  reply->set_daemon_version(terms_.daemon_version);
  reply->set_admin_address(terms_.admin_address);
  reply->set_http_address(terms_.http_address);
  reply->set_local_gets(terms_.local_gets);
  reply->set_member_name(terms_.member_name);
  reply->set_cluster(terms_.cluster);
  return absl::OkStatus();
}

void StoreService::Stats(const ControlCall& call, const v1::StatsRequest& request,
                         const ReplyDone<v1::StatsReply>& done) {
  v1::StatsReply reply;
  for (const CopyTier* tier : parts_.tiers.all()) {
    v1::TierStats& stats = *reply.add_tiers();
    stats.set_tier(static_cast<v1::Tier>(tier->id()));
    stats.set_capacity_bytes(tier->capacity_bytes());
  }
  reply.set_daemon_version(terms_.daemon_version);
  reply.set_uptime_ms(
      static_cast<uint64_t>(absl::ToInt64Milliseconds(parts_.clock.Now() - started_)));
  reply.set_draining(terms_.is_draining());
  // Peers without a session may ask, too: no session can be opened while the daemon drains.
  if (!request.ticket().empty()) {
    const absl::StatusOr<Session> session = SessionOf(request.ticket());
    if (!session.ok()) return done(session.status());
    FillOfTenant(session->tenant.view(), &reply);
  } else if (call.is_operator()) {
    FillAll(&reply);
  }
  done(std::move(reply));
}

void StoreService::FillOfTenant(std::string_view tenant, v1::StatsReply* reply) const {
  IndexFigures sum;
  for (const SpaceRef& space : parts_.spaces.List()) {
    if (space->tenant() != tenant) continue;
    const IndexFigures figures = parts_.index.figures(space->id());
    sum.block_count += figures.block_count;
    sum.image_count += figures.image_count;
    sum.image_bytes += figures.image_bytes;
    sum.source_bytes += figures.source_bytes;
    sum.copies_source_bytes += figures.copies_source_bytes;
    for (size_t i = 0; i < kTierCount; ++i) sum.tier_bytes[i] += figures.tier_bytes[i];
  }
  FillFigures(sum, reply);
  for (v1::TierStats& tier : *reply->mutable_tiers()) {
    tier.set_used_bytes(sum.tier_bytes[IndexOf(static_cast<TierId>(tier.tier()))]);
  }
  reply->set_session_count(parts_.sessions.count(tenant));
  reply->set_lease_count(parts_.index.lease_count(tenant));
}

void StoreService::FillAll(v1::StatsReply* reply) const {
  FillFigures(parts_.index.figures(), reply);
  reply->set_session_count(parts_.sessions.count());
  reply->set_lease_count(parts_.index.lease_count());
  for (v1::TierStats& stats : *reply->mutable_tiers()) {
    const TierId id = static_cast<TierId>(stats.tier());
    stats.set_used_bytes(parts_.tiers.Find(id)->used_bytes());
    stats.set_pinned_bytes(parts_.index.figures(id).pinned_bytes);
  }
  v1::TierStats& host = *reply->mutable_tiers(0);
  host.set_staging_bytes(parts_.tiers.host().staging_bytes());
  host.set_quarantine_bytes(parts_.sessions.quarantine_bytes());
}

// --- Side objects --------------------------------------------------------------------------------

absl::StatusOr<std::string> StoreService::CheckUpload(const v1::PutSideObjectRequest& first) const {
  CAIRN_ASSIGN_OR_RETURN(const Caller caller, CallerOf(first.ticket(), first.space_id()));
  CAIRN_RETURN_IF_ERROR(proto::FromSideObjectKind(first.kind()).status());
  return std::string(caller.session.tenant.view());
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
