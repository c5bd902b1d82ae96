// SPDX-License-Identifier: Apache-2.0
#include "service/remote/remote_blocks.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/log.h"
#include "base/random_bytes.h"
#include "base/status.h"
#include "codecs/image/image.h"
#include "proto/convert.h"
#include "proto/side_object.h"
#include "service/limits.h"

namespace cairn {
namespace {

constexpr int kMatchers = 4, kAskers = 8, kReaders = 4, kDeleters = 4;
constexpr size_t kJobsMax = 256;
constexpr size_t kFetchesMax = 4096;
constexpr size_t kBatchMax = 8;
constexpr int kReadersPerRun = 2;
constexpr double kReadTimeShare = 0.9;                           // of the time that a get has left
constexpr absl::Duration kReadTimeMin = absl::Milliseconds(50);  // with less, a get is a miss
constexpr absl::Duration kReadTimeMax = absl::Seconds(5), kSideObjectTime = absl::Seconds(2);
constexpr absl::Duration kAheadTime = absl::Seconds(30);  // for what no get waits for
constexpr absl::Duration kDeleteTime = absl::Seconds(5), kLateDeleteTime = absl::Seconds(2);

// When a block expires of which a member says how long it lives, which it may invent. 0: never.
uint32_t ExpiryOf(absl::Duration ttl, absl::Time now) {
  if (ttl == absl::InfiniteDuration()) return 0;
  return static_cast<uint32_t>(std::clamp<int64_t>(absl::ToUnixSeconds(now + ttl), 1, UINT32_MAX));
}

bool NeedsEvery(const MatchQuery& query) {
  return std::ranges::all_of(query.wanted, [](const WantedGroup& wanted) {
    return wanted.rule == WantedGroup::Rule::kEvery;
  });
}

PeerQuestion QuestionOf(const SpaceEntry& space, const MatchQuery& query, size_t first) {
  PeerQuestion question;
  question.identity = space.identity();
  question.recipe = proto::ToRecipeName(space.recipe());
  question.keys.assign(query.keys.begin() + static_cast<ptrdiff_t>(first),
                       query.keys.begin() + static_cast<ptrdiff_t>(BlocksAsked(query)));
  std::vector<bool> is_wanted(space.groups().size());
  for (const WantedGroup& wanted : query.wanted) {
    is_wanted[wanted.group] = true;
    question.slices.push_back({.group = wanted.group,
                               .layer_first = wanted.slice.layer_first,
                               .layer_count = wanted.slice.layer_count,
                               .head_first = wanted.slice.head_first,
                               .head_count = wanted.slice.head_count});
  }
  for (size_t group = 0; group < is_wanted.size(); ++group) {
    if (!is_wanted[group]) question.groups_skipped.push_back(static_cast<uint32_t>(group));
  }
  question.wants_lease = query.wants_lease;
  return question;
}

}  // namespace

RemoteBlocks::RemoteBlocks(const Parts& parts, const Options& options)
    : parts_(parts),
      options_(options),
      matchers_("peer-match", kMatchers, kJobsMax),
      askers_("peer-ask", kAskers, kJobsMax),
      deleters_("peer-delete", kDeleters, kJobsMax),
      readers_("peer-read", kReaders, kJobsMax) {}

void RemoteBlocks::Stop() {
  matchers_.Stop();
  askers_.Stop();
  deleters_.Stop();
  readers_.Stop();
  Drop(table_.Clear());  // members end these leases when the sessions close
}

// --- Match ---------------------------------------------------------------------------------------

struct RemoteBlocks::Asking {
  MatchQuery query;
  MatchAnswer answer;
  absl::Time deadline;
  Extended done;
  SpaceRef space = {};
  uint64_t generation = 0;
  RemoteLease lease = {};  // what other members have leased
};

// Questions to several members at once. Those that answer late drop their leases themselves.
struct RemoteBlocks::Round {
  PeerQuestion question;
  absl::Time deadline;
  Mutex mutex;
  CondVar answered;
  size_t open ABSL_GUARDED_BY(mutex) = 0;
  bool is_over ABSL_GUARDED_BY(mutex) = false;
  std::vector<PeerReader::Found> found ABSL_GUARDED_BY(mutex);
};

std::vector<Member> RemoteBlocks::Candidates(const SpaceEntry& space, const MatchQuery& query,
                                             size_t first, absl::Time deadline) {
  std::vector<Member> others = parts_.members.view()->Others(kAllAskedMax + 1);
  if (others.size() <= kAllAskedMax) return others;
  // The holders of the first missing block say themselves how many blocks follow.
  const auto keys = std::span(query.keys).first(first + 1);
  const Located located = parts_.locator.Locate(space.fingerprint(), keys, first, deadline);
  others.clear();
  const ViewPtr view = parts_.members.view();
  for (const uint16_t holder : located.holders.front()) {
    const Member* member = view->Find(located.members[holder].name);
    if (member != nullptr && !member->is_self && member->counts()) others.push_back(*member);
  }
  return others;
}

void RemoteBlocks::Extend(MatchQuery query, MatchAnswer own, absl::Time deadline, Extended done) {
  query.keys.resize(table_.CountBeforeDeleting(query.space_id, query.keys));
  if (own.blocks.size() >= BlocksAsked(query) || own.is_shortened_by_pins ||
      parts_.members.view()->Others(1).empty()) {
    return done(std::move(own));
  }
  auto asking = std::make_shared<Asking>(
      Asking{std::move(query), std::move(own),
             std::min(deadline, MonotonicNow() + options_.match_time), std::move(done)});
  if (!matchers_.Submit([this, asking] { Ask(*asking); })) {
    refused_.Add();
    asking->done(std::move(asking->answer));
  }
}

void RemoteBlocks::Ask(Asking& asking) {
  const absl::Time began = MonotonicNow();
  const MatchQuery& query = asking.query;
  const size_t asked = BlocksAsked(query), own = asking.answer.blocks.size();
  auto space = parts_.spaces.Find(query.space_id, query.tenant);
  if (space.ok()) {
    asking.space = *std::move(space);
    asking.generation = GenerationOf(*asking.space);
    asking.lease.tenant = query.tenant;
    asking.lease.session_id = query.session_id;
    // A window or a state needs blocks before the first missing one, so one member must have all.
    const bool needs_every = NeedsEvery(query);
    for (int part = 0; part < kPartsMax && asking.answer.blocks.size() < asked; ++part) {
      if (!AddPart(asking, needs_every ? asking.answer.blocks.size() : 0) || !needs_every) break;
      AddOwn(asking);
    }
    if (!IsCurrent(*asking.space, asking.generation)) Empty(asking);
  }
  MatchAnswer& answer = asking.answer;
  (answer.blocks.size() > own ? found_ : nothing_).Add();
  if (query.wants_lease && !asking.lease.runs.empty()) {
    asking.lease.token = answer.lease.value_or(RandomBytes<16>());
    const proto::LeaseToken token = asking.lease.token;
    if (Add(std::move(asking.lease))) {
      answer.lease = token;
      answer.lease_ms = limits::kLeaseMs;
    } else {  // too many blocks: the client gets what is its own
      answer.blocks.resize(own);
      RemoteTable::Leases refused;
      refused.push_back(std::move(asking.lease));
      Drop(std::move(refused));
    }
  }
  answer.token_count = uint64_t{answer.blocks.size()} * query.tokens_per_block;
  match_seconds_.Observe(MonotonicNow() - began);
  asking.done(std::move(answer));
}

void RemoteBlocks::Empty(Asking& asking) {
  MatchAnswer& answer = asking.answer;
  answer.blocks.clear();
  if (answer.lease.has_value()) {
    const proto::LeaseToken lease = *std::exchange(answer.lease, std::nullopt);
    parts_.index.Release(asking.query.tenant, {&lease, 1});
  }
  RemoteTable::Leases dropped;
  dropped.push_back(std::exchange(asking.lease, RemoteLease()));
  Drop(std::move(dropped));
}

bool RemoteBlocks::Add(RemoteLease&& lease) {
  return table_.Add(std::move(lease), parts_.clock.Now() + absl::Milliseconds(limits::kLeaseMsMax));
}

bool RemoteBlocks::AddPart(Asking& asking, size_t first) {
  const MatchQuery& query = asking.query;
  const size_t have = asking.answer.blocks.size();
  PeerQuestion question = QuestionOf(*asking.space, query, first);
  question.generation = asking.generation;
  std::optional<PeerReader::Found> found =
      AskMembers(Candidates(*asking.space, query, have, asking.deadline), std::move(question),
                 have - first, asking.deadline);
  if (!found.has_value()) return false;
  const absl::Time now = parts_.clock.Now();
  asking.answer.blocks.resize(first + found->blocks().size());
  for (size_t i = 0; i < found->blocks().size(); ++i) {
    const MatchedBlock& block = found->blocks()[i];
    BlockMatch& match = asking.answer.blocks[first + i];
    if (first + i < have) continue;  // this daemon has it
    match.is_elsewhere = true;
    match.image_bytes = block.image_bytes;
    match.expires_unix_s = ExpiryOf(block.ttl, now);
  }
  if (!query.wants_lease) return true;
  auto run = std::make_shared<RemoteRun>();
  run->space = asking.space.Share();
  run->keys.assign(query.keys.begin() + static_cast<ptrdiff_t>(first),
                   query.keys.begin() + static_cast<ptrdiff_t>(asking.answer.blocks.size()));
  if (first > 0) run->parent = query.keys[first - 1];
  run->first_position = uint64_t{first} * query.tokens_per_block;
  run->matched_at = now;
  run->generation = asking.generation;
  run->found = *std::move(found);
  asking.lease.runs.push_back(std::move(run));
  return true;
}

void RemoteBlocks::AddOwn(Asking& asking) {
  const size_t have = asking.answer.blocks.size();
  MatchQuery rest = asking.query;
  rest.keys.erase(rest.keys.begin(), rest.keys.begin() + static_cast<ptrdiff_t>(have));
  rest.token_limit = 0;
  rest.keys.resize(BlocksAsked(asking.query) - have);
  if (rest.keys.empty()) return;
  const absl::StatusOr<MatchAnswer> own = parts_.index.Match(rest);
  if (!own.ok()) return;
  asking.answer.blocks.insert(asking.answer.blocks.end(), own->blocks.begin(), own->blocks.end());
  if (own->lease.has_value()) asking.lease.own.push_back(*own->lease);
}

bool RemoteBlocks::IsUsable(const Member& member, const PeerQuestion& question,
                            const PeerReader::Found& answer) {
  if (answer.generation() == question.generation) return true;
  const std::string& tenant = question.identity.tenant;
  if (answer.generation() > question.generation && parts_.may_use(member.identity, tenant)) {
    (void)parts_.generations.Learn(
        {tenant, proto::FingerprintOf(question.identity), answer.generation()});
  }
  return false;
}

std::optional<PeerReader::Found> RemoteBlocks::AskMembers(const std::vector<Member>& members,
                                                          PeerQuestion question, size_t more_than,
                                                          absl::Time deadline) {
  const size_t wanted = question.keys.size();
  auto round = std::make_shared<Round>();
  round->question = std::move(question);
  round->deadline = deadline;
  {
    const MutexLock lock(round->mutex);
    round->open = members.size();
  }
  for (const Member& member : members) {
    const bool is_asked = askers_.Submit([this, round, member] {
      absl::StatusOr<PeerReader::Found> answer =
          parts_.reader.Match(member, round->question, round->deadline);
      if (absl::IsDeadlineExceeded(answer.status())) late_.Add();
      const bool is_usable = answer.ok() && IsUsable(member, round->question, *answer);
      const MutexLock lock(round->mutex);
      if (is_usable && !answer->blocks().empty() && !round->is_over) {
        round->found.push_back(*std::move(answer));
      }
      --round->open;
      round->answered.NotifyAll();
    });
    if (is_asked) continue;
    const MutexLock lock(round->mutex);
    --round->open;
  }
  std::vector<PeerReader::Found> found;
  {
    const MutexLock lock(round->mutex);
    const auto has_all = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(round->mutex) {
      return round->open == 0 || std::ranges::any_of(round->found, [&](const auto& one) {
               return one.blocks().size() == wanted;
             });
    };
    while (!has_all() && round->answered.WaitUntil(round->mutex, deadline)) {
    }
    round->is_over = true;
    found = std::move(round->found);
  }
  const auto best = std::ranges::max_element(
      found, {}, [](const PeerReader::Found& one) { return one.blocks().size(); });
  std::optional<PeerReader::Found> chosen;
  if (best != found.end() && best->blocks().size() > more_than) {
    chosen = std::move(*best);
    found.erase(best);
  }
  if (!found.empty()) {
    auto others_found = std::make_shared<std::vector<PeerReader::Found>>(std::move(found));
    if (!askers_.Submit([others_found] { others_found->clear(); })) {
      for (PeerReader::Found& one : *others_found) one.Abandon();
    }
  }
  return chosen;
}

void RemoteBlocks::Drop(RemoteTable::Leases leases) {
  for (const RemoteLease& lease : leases) {
    if (!lease.own.empty()) parts_.index.Release(lease.tenant, lease.own);
  }
  if (leases.empty()) return;
  auto dropped = std::make_shared<RemoteTable::Leases>(std::move(leases));
  if (askers_.Submit([dropped] { dropped->clear(); })) return;
  for (RemoteLease& lease : *dropped) {
    for (const RunRef& run : lease.runs) run->found.Abandon();
  }
}

void RemoteBlocks::Release(std::string_view tenant, absl::Span<const proto::LeaseToken> leases) {
  Drop(table_.Release(tenant, leases));
}

void RemoteBlocks::EndSession(uint64_t session_id) { Drop(table_.EndSession(session_id)); }

void RemoteBlocks::BeginDelete(uint64_t space_id, absl::Span<const proto::BlockKey> keys) {
  table_.Forget(space_id, keys, parts_.clock.Now() + kDeleteTime);
}

void RemoteBlocks::Delete(const SpaceEntry& space, std::vector<proto::BlockKey> keys,
                          uint64_t generation, absl::Time deadline, Deleted done) {
  if (keys.empty()) {
    table_.Forget(space.id());
  } else {  // a member that confirms later might have given them to one that has deleted them
    deadline = std::min(deadline, MonotonicNow() + kDeleteTime);
  }
  struct Deleting {
    proto::SpaceIdentity identity;
    std::vector<proto::BlockKey> keys;
    uint64_t generation = 0;
    Deleted done;
    Mutex mutex;
    size_t open ABSL_GUARDED_BY(mutex) = 0;
    std::vector<std::string> unreached ABSL_GUARDED_BY(mutex);
  };
  const std::vector<Member> others = parts_.members.view()->Others(kMembersMax);
  if (others.empty()) return done({});
  const auto deleting = std::make_shared<Deleting>();
  deleting->identity = space.identity();
  deleting->keys = std::move(keys);
  deleting->generation = generation;
  deleting->done = std::move(done);
  {
    const MutexLock lock(deleting->mutex);
    deleting->open = others.size();
  }
  const auto end = [this, deleting](const std::string& member, const absl::Status& status) {
    if (!status.ok() && (!deleting->keys.empty() || deleting->generation > 0)) {
      late_deletes_.Add(
          {member, deleting->identity, deleting->keys, parts_.clock.Now(), deleting->generation});
    }
    std::vector<std::string> unreached;
    {
      const MutexLock lock(deleting->mutex);
      if (!status.ok()) deleting->unreached.push_back(member);
      if (--deleting->open > 0) return;
      unreached.swap(deleting->unreached);
    }
    deleting->done(std::move(unreached));
  };
  for (const Member& member : others) {
    if (!deleters_.Submit([this, deleting, end, member, deadline] {
          end(member.name, parts_.reader
                               .Delete(member, deleting->identity, deleting->keys,
                                       deleting->generation, deadline)
                               .status());
        })) {
      end(member.name, absl::ResourceExhaustedError("too many questions"));
    }
  }
}

void RemoteBlocks::DeleteLate() {
  const ViewPtr view = parts_.members.view();
  const auto has_joined = [&view](std::string_view name) {
    const Member* member = view->Find(name);
    return member != nullptr && member->state == MemberState::kJoined;
  };
  for (size_t i = 0; i < kMembersMax; ++i) {
    std::optional<LateDeletes::Deletion> taken = late_deletes_.Take(parts_.clock.Now(), has_joined);
    if (!taken.has_value()) return;
    const auto deletion = std::make_shared<LateDeletes::Deletion>(*std::move(taken));
    const Member member = *view->Find(deletion->member);
    const bool is_asked = deleters_.Submit([this, deletion, member] {
      const absl::Status status =
          parts_.reader
              .Delete(member, deletion->identity, deletion->keys, deletion->generation,
                      MonotonicNow() + kLateDeleteTime)
              .status();
      late_deletes_.Done(std::move(*deletion), status.ok());
    });
    if (!is_asked) return late_deletes_.Done(std::move(*deletion), false);
  }
}

void RemoteBlocks::Look() {
  DeleteLate();
  Drop(table_.Expire(parts_.clock.Now()));
  (void)askers_.Submit([this] { parts_.reader.CloseUnused(*parts_.members.view()); });
}

// --- Get -----------------------------------------------------------------------------------------

RemoteBlocks::Ahead RemoteBlocks::FetchAhead(const Session& session, const BlockName& block,
                                             std::span<const WantedGroup> wanted) {
  if (table_.Find(block).run == nullptr) return Ahead::kNowhere;
  Request request;
  request.session = session;
  request.arrived = parts_.clock.Now();
  request.deadline = request.arrived + kAheadTime;
  for (const WantedGroup& image : wanted) {
    if (!parts_.index.Lookup(block, image.group, image.slice).empty()) continue;
    proto::Get get;
    get.space_id = block.space_id;
    get.key = block.key;
    get.group = image.group;
    const auto end = [this] { ahead_.fetch_sub(1, std::memory_order_relaxed); };
    if (ahead_.fetch_add(1, std::memory_order_relaxed) >= kAheadMax ||
        !Fetch(request, get, image.slice, end, /*is_ahead=*/true)) {
      end();
      return Ahead::kFull;
    }
  }
  return Ahead::kBegun;
}

bool RemoteBlocks::Fetch(const Request& request, const proto::Get& get, const codecs::Slice& slice,
                         std::function<void()> done, bool is_ahead) {
  const BlockName block{get.space_id, get.key};
  const RemoteTable::Place place = table_.Find(block);
  if (place.run == nullptr) return false;
  const FetchKey key{block, get.group, slice};
  const auto fetch = std::make_shared<RemoteFetch>(
      RemoteFetch{block, get.group, slice, place.index, request, is_ahead});
  {
    const MutexLock lock(mutex_);
    if (const auto found = fetches_.find(key); found != fetches_.end()) {
      found->second->waiters.push_back(std::move(done));
      return true;
    }
    if (fetches_.size() >= kFetchesMax) return false;
    fetch->waiters.push_back(std::move(done));
    fetches_.emplace(key, fetch);
  }
  bool needs_reader = false;
  {
    const MutexLock lock(place.run->mutex);
    const auto behind =
        is_ahead ? place.run->waiting.end()
                 : std::ranges::find_if(place.run->waiting,
                                        [](const FetchRef& other) { return other->is_ahead; });
    place.run->waiting.insert(behind, fetch);
    needs_reader = place.run->readers < kReadersPerRun;
    place.run->readers += needs_reader ? 1 : 0;
  }
  // If no reader can be queued and none is running, nobody would read what waits.
  if (needs_reader && !readers_.Submit([this, run = place.run] { Read(run); })) {
    std::deque<FetchRef> waiting;
    {
      const MutexLock lock(place.run->mutex);
      if (--place.run->readers == 0) waiting.swap(place.run->waiting);
    }
    for (const FetchRef& one : waiting) {
      End(place.run, one, absl::ResourceExhaustedError("too many reads of members"));
    }
  }
  return true;
}

void RemoteBlocks::Read(const RunRef& run) {
  for (;;) {  // ends: each round takes what waits
    std::vector<FetchRef> batch;
    {
      const MutexLock lock(run->mutex);
      while (!run->waiting.empty() && batch.size() < kBatchMax) {
        batch.push_back(std::move(run->waiting.front()));
        run->waiting.pop_front();
      }
      if (batch.empty()) {
        --run->readers;
        return;
      }
    }
    std::erase_if(batch, [&](const FetchRef& fetch) {
      if (fetch->request.deadline - parts_.clock.Now() >= kReadTimeMin) return false;
      End(run, fetch, absl::DeadlineExceededError("no time to read"));
      return true;
    });
    if (!batch.empty()) ReadBatch(run, batch);
  }
}

void RemoteBlocks::ReadBatch(const RunRef& run, std::span<const FetchRef> batch) {
  const absl::Time began = MonotonicNow();
  std::vector<std::unique_ptr<std::byte[]>> images(batch.size());
  std::vector<GetRequest> requests;
  absl::Time deadline = absl::InfiniteFuture();
  for (size_t i = 0; i < batch.size(); ++i) {
    const RemoteFetch& fetch = *batch[i];
    codecs::ImageSpec spec;
    spec.tile = run->space->groups()[fetch.group].tile;
    spec.slice = fetch.slice;
    spec.tokens = static_cast<uint16_t>(run->space->tokens_per_block());
    uint64_t bytes = 0;
    CAIRN_CHECK(codecs::MaxImageBytes(spec, &bytes) == codecs::Error::kOk);
    bytes = BytesLeft(*run, fetch.index, bytes);
    images[i] = std::make_unique_for_overwrite<std::byte[]>(bytes);
    requests.push_back({.key = fetch.block.key,
                        .lease = run->found.lease(),
                        .slice = {.group = fetch.group,
                                  .layer_first = fetch.slice.layer_first,
                                  .layer_count = fetch.slice.layer_count,
                                  .head_first = fetch.slice.head_first,
                                  .head_count = fetch.slice.head_count},
                        .target = ImageTarget{{images[i].get(), bytes}}});
    deadline = std::min(deadline, fetch.request.deadline);
  }
  // The rest of the time is for the answer: the client hears of a miss before it gives up. The
  // deadlines of requests are on the clock of Clock::Now().
  const absl::Duration left =
      std::min((deadline - parts_.clock.Now()) * kReadTimeShare, kReadTimeMax);
  const auto results = run->found.GetBatch(requests, began + left);
  read_seconds_.Observe(MonotonicNow() - began);
  for (size_t i = 0; i < batch.size(); ++i) {
    if (!results[i].ok()) {
      End(run, batch[i], results[i].status());
      continue;
    }
    read_bytes_.Add(results[i]->bytes);
    Store(run, batch[i], {images[i].get(), results[i]->bytes}, results[i]->first_position);
  }
}

absl::StatusOr<SideObjectRef> RemoteBlocks::KeepSideObject(const RunRef& run, const FetchRef& fetch,
                                                           std::span<const std::byte> image) {
  codecs::ImageView view;
  if (codecs::ParseImage(image, &view) != codecs::Error::kOk) {
    return absl::DataLossError("not an image");
  }
  const codecs::ImageSpec& spec = view.spec();
  if (spec.side_object_count == 0) return SideObjectRef();
  SideObjectRef kept = run->space->coding().Find(spec.side_objects[0]);
  if (kept.get() != nullptr) return kept;
  CAIRN_ASSIGN_OR_RETURN(
      const SideObjectHandle held,
      run->found.GetSideObject(spec.side_objects[0], MonotonicNow() + kSideObjectTime));
  return run->space->coding().Keep(fetch->group, held->kind(), held->bytes());
}

void RemoteBlocks::Store(const RunRef& run, const FetchRef& fetch, std::span<const std::byte> image,
                         uint64_t first_position) {
  if (table_.Find(fetch->block).run == nullptr || !IsCurrent(*run->space, run->generation)) {
    return End(run, fetch, absl::NotFoundError("deleted meanwhile"));
  }
  if (!TakeBytes(*run, fetch->index, image.size())) {
    return End(run, fetch, absl::InvalidArgumentError("more bytes than the member has said"));
  }
  const absl::StatusOr<SideObjectRef> kept = KeepSideObject(run, fetch, image);
  if (!kept.ok()) return End(run, fetch, kept.status());
  proto::Put put;
  put.space_id = fetch->block.space_id;
  put.key = fetch->block.key;
  // Keys that do not make a chain have no parents.
  const uint64_t position =
      uint64_t{fetch->index} * run->space->tokens_per_block() + run->first_position;
  if (!run->parents.empty()) {
    put.parent = run->parents[fetch->index];
  } else if (position == first_position && first_position > 0) {
    put.parent = fetch->index > 0 ? run->keys[fetch->index - 1] : run->parent;
  }
  put.first_position = first_position;
  put.group = fetch->group;
  put.slice = {fetch->slice.layer_first, fetch->slice.layer_count, fetch->slice.head_first,
               fetch->slice.head_count};
  put.tokens = static_cast<uint16_t>(run->space->tokens_per_block());
  put.form = proto::Form::kImage;
  const Puts::CopyTerms terms = {
      .expires_unix_s = ExpiryOf(run->found.blocks()[fetch->index].ttl, run->matched_at),
      .is_fetched = !run->is_offered};
  parts_.puts.StoreCopy(
      fetch->request, put, image, terms,
      [this, run, fetch](const Request&, const absl::StatusOr<proto::PutReply>& reply) {
        if (reply.ok() &&
            (!IsCurrent(*run->space, run->generation) || table_.IsDeleting(fetch->block))) {
          // The deletion may have passed the block before it was stored.
          parts_.index.Delete(fetch->block.space_id, {&fetch->block.key, 1});
          return End(run, fetch, absl::NotFoundError("deleted meanwhile"));
        }
        End(run, fetch, reply.status());
      });
}

void RemoteBlocks::End(const RunRef& run, const FetchRef& fetch, const absl::Status& status) {
  (status.ok() ? stored_ : absl::IsNotFound(status) ? absent_ : rejected_).Add();
  if (!status.ok()) {
    table_.Forget(fetch->block, run.get());
    LogDebug("peer", "a block was not fetched",
             {{"member", run->found.member()},
              {"key", proto::Hex(std::span(fetch->block.key).first(4))},
              {"error", status}});
  }
  std::vector<std::function<void()>> waiters;
  {
    const MutexLock lock(mutex_);
    const auto found = fetches_.find({fetch->block, fetch->group, fetch->slice});
    if (found != fetches_.end() && found->second == fetch) fetches_.erase(found);
    waiters.swap(fetch->waiters);
  }
  for (const std::function<void()>& waiter : waiters) waiter();
}

void RemoteBlocks::Report(MetricSink& sink) const {
  late_deletes_.Report(sink);
  const auto count = [&sink](std::string_view name, std::string_view help, std::string_view outcome,
                             const Counter& counter) {
    const MetricLabel label{"outcome", outcome};
    sink.AddCounter(name, help, {&label, 1}, counter.Value());
  };
  constexpr std::string_view kMatches = "cairn_peer_matches_total";
  constexpr std::string_view kMatchesHelp = "Matches for which other members were asked.";
  count(kMatches, kMatchesHelp, "found", found_);
  count(kMatches, kMatchesHelp, "nothing", nothing_);
  count(kMatches, kMatchesHelp, "refused", refused_);
  constexpr std::string_view kReads = "cairn_peer_reads_total";
  constexpr std::string_view kReadsHelp = "Images fetched from other members.";
  count(kReads, kReadsHelp, "stored", stored_);
  count(kReads, kReadsHelp, "absent", absent_);
  count(kReads, kReadsHelp, "rejected", rejected_);
  sink.AddCounter("cairn_peer_late_answers_total",
                  "Answers of other members that came after the time for a match.", {},
                  late_.Value());
  sink.AddCounter("cairn_peer_read_bytes_total", "Bytes of images read from other members.", {},
                  read_bytes_.Value());
  sink.AddHistogram("cairn_peer_match_seconds", "Time in which other members were asked.", {},
                    match_seconds_.Snapshot());
  sink.AddHistogram("cairn_peer_read_seconds", "Time of a read of up to 8 images from a member.",
                    {}, read_seconds_.Snapshot());
  sink.AddGauge("cairn_peer_blocks", "Blocks that other members have leased to this daemon.", {},
                static_cast<double>(table_.block_count()));
  const PeerReader::Counters counters = parts_.reader.counters();
  sink.AddGauge("cairn_peer_sessions", "Sessions with other members, one for each tenant.", {},
                static_cast<double>(counters.sessions));
  sink.AddGauge("cairn_peer_members_distrusted",
                "Members that are not read from until they restart, because they delivered damaged "
                "blocks.",
                {}, static_cast<double>(counters.distrusted));
  const MetricLabel where[] = {{"where", "peer"}};
  sink.AddCounter("cairn_corrupt_tiles_total",
                  "Tiles (on the wire: payloads) whose bytes did not match their CRC, by where.",
                  where, counters.corrupt);
}

}  // namespace cairn
