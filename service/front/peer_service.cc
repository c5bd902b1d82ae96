// SPDX-License-Identifier: Apache-2.0
#include "service/front/peer_service.h"

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status.h"
#include "service/peer/located.h"
#include "service/peer/peer_self.h"

namespace cairn {
namespace {

constexpr size_t kHelloBytesMax = 4096;
constexpr size_t kNamesPerAnnounceMax = 1024;
constexpr size_t kAnnounceBytesMax =
    kHelloBytesMax + kNamesPerAnnounceMax * sizeof(proto::LocationName);
static_assert(kNamesPerLocateMax * sizeof(proto::LocationName) + kHelloBytesMax <=
              limits::kControlMessageBytesMax);

// Of each block two keys and a size, and its space.
constexpr size_t kOfferRequestBytesMax =
    limits::kSpecBytesMax + kHelloBytesMax + limits::kOfferKeysMax * 74;

}  // namespace

void PeerService::AddTo(CallRouter& router) {
  if (parts_.store != nullptr) parts_.store->AddToMembers(router);
  router.AddUnary(
      "/cairn.v1.Peer/Hello",
      UnaryMethod<v1::HelloRequest, v1::HelloReply>{
          calls_, Call::kHello,
          RequestBound{.bulk_field = v1::HelloRequest::kGenerationsFieldNumber,
                       .bulk_count_max = 1,
                       .rest_bytes_max = kHelloBytesMax},
          [this](const ControlCall& call, const v1::HelloRequest& request,
                 const ReplyDone<v1::HelloReply>& done) { done(Hello(call, request)); }});
  router.AddUnary(
      "/cairn.v1.Peer/Announce",
      UnaryMethod<v1::AnnounceRequest, v1::AnnounceReply>{
          calls_, Call::kAnnounce, RequestBound{.rest_bytes_max = kAnnounceBytesMax},
          [this](const ControlCall& call, const v1::AnnounceRequest& request,
                 const ReplyDone<v1::AnnounceReply>& done) { done(Announce(call, request)); }});
  router.AddUnary(
      "/cairn.v1.Peer/Locate",
      UnaryMethod<v1::LocateRequest, v1::LocateReply>{
          calls_, Call::kLocate,
          RequestBound{.bulk_field = v1::LocateRequest::kNamesFieldNumber,
                       .bulk_count_max = 1,
                       .rest_bytes_max = kHelloBytesMax},
          [this](const ControlCall& call, const v1::LocateRequest& request,
                 const ReplyDone<v1::LocateReply>& done) { done(Locate(call, request)); }});
  router.AddUnary(
      "/cairn.v1.Peer/Offer",
      UnaryMethod<v1::OfferRequest, v1::OfferReply>{
          calls_, Call::kOffer, RequestBound{.rest_bytes_max = kOfferRequestBytesMax},
          [this](const ControlCall& call, const v1::OfferRequest& request,
                 const ReplyDone<v1::OfferReply>& done) { Offer(call, request, done); }});
  router.AddUnary(
      "/cairn.v1.Peer/Profiles",
      UnaryMethod<v1::ProfilesRequest, v1::ProfilesReply>{
          calls_, Call::kProfiles, RequestBound{.rest_bytes_max = 2 * kHelloBytesMax},
          [this](const ControlCall& call, const v1::ProfilesRequest& request,
                 const ReplyDone<v1::ProfilesReply>& done) { done(Profiles(call, request)); }});
  router.AddUnary("/cairn.v1.Peer/TellPolicies",
                  UnaryMethod<v1::TellPoliciesRequest, v1::TellPoliciesReply>{
                      calls_, Call::kTellPolicies,
                      RequestBound{.bulk_field = v1::TellPoliciesRequest::kPoliciesFieldNumber,
                                   .bulk_count_max = 1,
                                   .rest_bytes_max = kHelloBytesMax},
                      [this](const ControlCall& call, const v1::TellPoliciesRequest& request,
                             const ReplyDone<v1::TellPoliciesReply>& done) {
                        done(TellPolicies(call, request));
                      }});
}

namespace {

// Whether the certificates name the same daemon. A member is dialled with one bundle of CAs, and
// calls through others, so trust domains are not compared.
bool IsSameDaemon(const PeerIdentity& a, const PeerIdentity& b) {
  const CertificatePeer* one = a.certificate();
  const CertificatePeer* other = b.certificate();
  return one != nullptr && other != nullptr && one->uri == other->uri && one->dns == other->dns;
}

}  // namespace

absl::Status PeerService::CheckMayBe(const ControlCall& call, const v1::PeerSelf& theirs) const {
  CAIRN_RETURN_IF_ERROR(parts_.sessions.policy().MayBeMember(call.identity()));
  const absl::Status checked = CheckSelf(theirs, parts_.members.cluster());
  return checked.ok() ? checked : Annotate(checked, "the caller");
}

absl::StatusOr<const Member*> PeerService::CheckIs(const ControlCall& call,
                                                   const v1::PeerSelf& theirs,
                                                   const View& view) const {
  CAIRN_RETURN_IF_ERROR(CheckMayBe(call, theirs));
  const Member* known = view.Find(theirs.name());
  if (known != nullptr && !known->is_self && known->counts() &&
      known->incarnation == theirs.incarnation()) {
    if (known->identity.is_known() && !IsSameDaemon(known->identity, call.identity())) {
      return absl::PermissionDeniedError(absl::StrCat(
          "the certificate of the caller is not the one of the member ", theirs.name()));
    }
    return known;
  }
  if (known != nullptr && !known->is_self) parts_.greet(theirs.name());
  return absl::UnavailableError(
      absl::StrCat("this daemon has not met ", theirs.name(), " as a member yet"));
}

absl::StatusOr<v1::HelloReply> PeerService::Hello(const ControlCall& call,
                                                  const v1::HelloRequest& request) {
  const v1::PeerSelf& theirs = request.self();
  CAIRN_RETURN_IF_ERROR(CheckMayBe(call, theirs));
  const ViewPtr view = parts_.members.view();
  if (theirs.name() == parts_.members.self() &&
      theirs.incarnation() != parts_.members.incarnation()) {
    return absl::AlreadyExistsError(
        absl::StrCat("this daemon, too, has the name ", theirs.name(), ": give each its own"));
  }
  // What the caller says of itself is believed when it answers at the address of the list.
  const Member* known = view->Find(theirs.name());
  if (known != nullptr && !known->is_self &&
      (known->incarnation != theirs.incarnation() ||
       theirs.draining() != (known->state == MemberState::kDraining))) {
    parts_.greet(theirs.name());
  }
  v1::HelloReply reply;
  *reply.mutable_self() = SelfOf(parts_.members, parts_.daemon_version);
  Exchange(call, request, &reply);
  return reply;
}

void PeerService::Exchange(const ControlCall& call, const v1::HelloRequest& request,
                           v1::HelloReply* reply) const {
  const auto may_use = [&](std::string_view tenant) {
    return parts_.sessions.policy().MayUse(call.identity(), tenant).ok();
  };
  if (parts_.policies != nullptr) reply->set_policies_hash(parts_.policies->HashOf(may_use));
  if (parts_.generations == nullptr || request.generations_hash() == 0) return;
  if (!request.generations().empty()) {
    if (const auto told = ParseGenerations(request.generations()); told.ok()) {
      (void)parts_.generations->Merge(*told, may_use);
    } else {
      LogDebug("members", "a member tells no list of generations",
               {{"name", request.self().name()}, {"error", told.status()}});
    }
  }
  const uint64_t hash = parts_.generations->HashOf(may_use);
  reply->set_generations_hash(hash);
  if (hash != request.generations_hash() && hash != request.generations_known()) {
    reply->set_generations(parts_.generations->ListOf(may_use));
  }
}

absl::StatusOr<v1::AnnounceReply> PeerService::Announce(const ControlCall& call,
                                                        const v1::AnnounceRequest& request) {
  const ViewPtr view = parts_.members.view();
  CAIRN_ASSIGN_OR_RETURN(const Member* from, CheckIs(call, request.self(), *view));
  CAIRN_ASSIGN_OR_RETURN(const std::vector<proto::LocationName> stored,
                         ParseNames(request.stored(), kNamesPerAnnounceMax));
  CAIRN_ASSIGN_OR_RETURN(const std::vector<proto::LocationName> removed,
                         ParseNames(request.removed(), kNamesPerAnnounceMax));
  CAIRN_RETURN_IF_ERROR(parts_.announced.Take(*from, {.epoch = request.epoch(),
                                                      .first_sequence = request.first_sequence(),
                                                      .is_reset = request.reset(),
                                                      .stored = stored,
                                                      .removed = removed}));
  return v1::AnnounceReply();
}

absl::StatusOr<v1::LocateReply> PeerService::Locate(const ControlCall& call,
                                                    const v1::LocateRequest& request) {
  const ViewPtr view = parts_.members.view();
  CAIRN_RETURN_IF_ERROR(CheckIs(call, request.self(), *view).status());
  CAIRN_ASSIGN_OR_RETURN(const std::vector<proto::LocationName> names,
                         ParseNames(request.names(), kNamesPerLocateMax));
  return ReplyOf(FindIn(parts_.locations, *view, names));
}

void PeerService::Offer(const ControlCall& call, const v1::OfferRequest& request,
                        const ReplyDone<v1::OfferReply>& done) {
  const ViewPtr view = parts_.members.view();
  const absl::StatusOr<const Member*> from = CheckIs(call, request.self(), *view);
  if (!from.ok()) return done(from.status());
  if (parts_.offered == nullptr) {
    return done(absl::FailedPreconditionError("this daemon cannot read from members"));
  }
  absl::StatusOr<BlockOffer> offer = ParseOffer(request, limits::kOfferKeysMax);
  if (!offer.ok()) return done(offer.status());
  parts_.offered->Take(**from, call.identity(), *std::move(offer),
                       call.deadline(absl::Milliseconds(limits::kOfferMs)),
                       [done](const OfferedBlocks::Answers& answers) {
                         if (!answers.ok()) return done(answers.status());
                         done(ReplyOf(*answers));
                       });
}

absl::StatusOr<v1::ProfilesReply> PeerService::Profiles(const ControlCall& call,
                                                        const v1::ProfilesRequest& request) {
  const ViewPtr view = parts_.members.view();
  CAIRN_RETURN_IF_ERROR(CheckIs(call, request.self(), *view).status());
  if (parts_.profiles == nullptr) {
    return absl::FailedPreconditionError("this daemon cannot read from members");
  }
  CAIRN_ASSIGN_OR_RETURN(const ProfileQuestion question, ParseProfiles(request));
  CAIRN_RETURN_IF_ERROR(parts_.sessions.policy().MayUse(call.identity(), question.tenant));
  CAIRN_ASSIGN_OR_RETURN(const std::vector<GroupProfile> answers,
                         parts_.profiles->Answer(question));
  return ReplyOf(answers);
}

absl::StatusOr<v1::TellPoliciesReply> PeerService::TellPolicies(
    const ControlCall& call, const v1::TellPoliciesRequest& request) {
  const ViewPtr view = parts_.members.view();
  CAIRN_RETURN_IF_ERROR(CheckIs(call, request.self(), *view).status());
  if (parts_.policies == nullptr) return absl::UnimplementedError("no policies are told here");
  const auto may_use = [&](std::string_view tenant) {
    return parts_.sessions.policy().MayUse(call.identity(), tenant).ok();
  };
  CAIRN_ASSIGN_OR_RETURN(const std::vector<ToldPolicy> told, ParsePolicies(request.policies()));
  v1::TellPoliciesReply reply;
  if (request.policies_hash() == 0) {  // the caller waits for each to be used
    for (const ToldPolicy& one : told) {
      CAIRN_RETURN_IF_ERROR(parts_.sessions.policy().MayUse(call.identity(), one.tenant));
      CAIRN_RETURN_IF_ERROR(parts_.policies->Learn(one));
    }
    return reply;
  }
  parts_.policies->Merge(told, may_use);
  if (parts_.policies->HashOf(may_use) != request.policies_hash()) {
    reply.set_policies(parts_.policies->ListOf(may_use));
  }
  return reply;
}

}  // namespace cairn
