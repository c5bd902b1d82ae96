// SPDX-License-Identifier: Apache-2.0
#include "service/peer/peer_reader.h"

#include <algorithm>
#include <atomic>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"

namespace cairn {
namespace {

constexpr absl::Duration kReleaseTime = absl::Milliseconds(500);
constexpr absl::Duration kRetryMin = absl::Seconds(1), kRetryMax = absl::Seconds(30);
constexpr int kConnectsMax = 2;  // to a member, at once

// A member that failed twice is not asked for a second, and for twice as long after each failure.
constexpr BreakerOptions kBreaker = {
    .failures_to_open = 2, .open_min = absl::Seconds(1), .open_max = absl::Seconds(30)};

absl::StatusOr<absl::Duration> TimeLeft(absl::Time deadline) {
  const absl::Duration left = deadline - MonotonicNow();
  if (left <= absl::ZeroDuration()) return absl::DeadlineExceededError("no time is left");
  return std::min(left, kTimeoutMax);
}

}  // namespace

// A session with one member for one tenant.
struct PeerReader::Line {
  explicit Line(Strikes& of_members) : strikes(of_members) {}

  Strikes& strikes;  // of the reader, which outlives it
  std::string member, address, tls_server;
  uint64_t incarnation = 0;

  // Returns the space, and opens it if needed.
  absl::StatusOr<std::shared_ptr<Space>> SpaceOf(const proto::SpaceIdentity& identity,
                                                 const std::string& recipe, absl::Time deadline) {
    const Fingerprint fingerprint = proto::FingerprintOf(identity);
    {
      const MutexLock lock(mutex);
      if (const auto found = spaces.find(fingerprint); found != spaces.end()) return found->second;
    }
    CAIRN_ASSIGN_OR_RETURN(const absl::Duration left, TimeLeft(deadline));
    CAIRN_ASSIGN_OR_RETURN(std::unique_ptr<Space> opened,
                           client->OpenSpace(identity, recipe, left));
    const MutexLock lock(mutex);
    return spaces.try_emplace(fingerprint, std::move(opened)).first->second;
  }
  // Logs a failure that differs from the last one.
  void NoteFailure(const absl::Status& status) {
    {
      const MutexLock lock(mutex);
      if (std::exchange(failure, status) == status) return;
    }
    LogWarn("peer", "a member cannot be read from", {{"name", member}, {"error", status}});
  }
  // Errors: Unavailable: a call that waits for the member would only hold up others.
  absl::Status MayRead() const {
    if (client->counters().breaker_state == Breaker::State::kOpen) {
      return absl::UnavailableError("not asked, because it failed");
    }
    return strikes.MayRead(member, incarnation, MonotonicNow());
  }
  // Notes what was read. Damaged images are those that the client has counted since the last call.
  void NoteRead(Strikes::Delivered delivered) {
    {
      const MutexLock lock(mutex);
      const uint64_t corrupt = client->counters().corrupt;
      delivered.damaged += corrupt - std::exchange(corrupt_noted, corrupt);
    }
    if (!strikes.Note(member, incarnation, delivered, MonotonicNow())) return;
    LogWarn("peer", "a member delivered damaged blocks: it is not read from until it restarts",
            {{"name", member}});
  }
  void Use() { used_at.store(absl::ToUnixNanos(MonotonicNow()), std::memory_order_relaxed); }
  bool IsIdle(absl::Time now) const {
    return now - absl::FromUnixNanos(used_at.load(std::memory_order_relaxed)) >= kIdle;
  }

  std::atomic<int64_t> used_at{0};
  mutable Mutex mutex;
  bool is_connecting ABSL_GUARDED_BY(mutex) = false;
  // When to connect again after a failure, and the last failure.
  absl::Time retry_at ABSL_GUARDED_BY(mutex) = absl::InfinitePast();
  absl::Duration retry_after ABSL_GUARDED_BY(mutex) = kRetryMin;
  absl::Status failure ABSL_GUARDED_BY(mutex);
  uint64_t corrupt_noted ABSL_GUARDED_BY(mutex) = 0;  // of the client's counter
  // Set once, under the lock. Its spaces are destroyed first.
  std::unique_ptr<Client> client;
  absl::flat_hash_map<Fingerprint, std::shared_ptr<Space>> spaces ABSL_GUARDED_BY(mutex);
};

// --- Found ---------------------------------------------------------------------------------------

PeerReader::Found::Found(Found&&) noexcept = default;

PeerReader::Found& PeerReader::Found::operator=(Found&& other) noexcept {
  std::swap(line_, other.line_);
  std::swap(space_, other.space_);
  std::swap(blocks_, other.blocks_);
  std::swap(lease_, other.lease_);
  std::swap(generation_, other.generation_);
  return *this;
}

PeerReader::Found::~Found() {
  if (line_ == nullptr || lease_ == LeaseToken{}) return;
  // A lease that cannot be given back ends by itself.
  const absl::Status status = line_->client->Release({&lease_, 1}, kReleaseTime);
  if (!status.ok()) LogDebug("peer", "a lease was not given back", {{"error", status}});
}

const std::string& PeerReader::Found::member() const { return line_->member; }

std::vector<absl::StatusOr<GetResult>> PeerReader::Found::GetBatch(
    std::span<const GetRequest> requests, absl::Time deadline) const {
  const absl::StatusOr<absl::Duration> left = TimeLeft(deadline);
  const absl::Status may_read = left.ok() ? line_->MayRead() : left.status();
  if (!may_read.ok()) {
    return std::vector<absl::StatusOr<GetResult>>(requests.size(), may_read);
  }
  line_->Use();
  auto results = space_->GetBatch(requests, *left);
  Strikes::Delivered delivered;
  for (const absl::StatusOr<GetResult>& result : results) {
    delivered.whole += result.ok() ? 1 : 0;
    delivered.missing += absl::IsNotFound(result.status()) ? 1 : 0;
  }
  line_->NoteRead(delivered);
  return results;
}

absl::StatusOr<SideObjectHandle> PeerReader::Found::GetSideObject(const codecs::Digest& id,
                                                                  absl::Time deadline) const {
  CAIRN_ASSIGN_OR_RETURN(const absl::Duration left, TimeLeft(deadline));
  auto held = space_->GetSideObject(id, left);
  if (absl::IsDataLoss(held.status())) line_->NoteRead({.damaged = 1});
  return held;
}

// --- Sessions ------------------------------------------------------------------------------------

absl::StatusOr<std::unique_ptr<Client>> PeerReader::Connect(const Member& member,
                                                            const std::string& tenant,
                                                            absl::Duration timeout) const {
  ConnectOptions options;
  options.control = member.address;
  options.transports = options_.transports;
  options.tenant = tenant;
  options.name = absl::StrCat("member ", options_.self);
  options.connections = options_.connections;
  options.tls = options_.tls;
  if (options.tls.is_on()) options.tls.server = member.tls_server;
  options.breaker = kBreaker;
  options.answer_bytes_max = options_.answer_bytes_max;
  options.timeout = timeout;
  return Client::Connect(options);
}

std::shared_ptr<PeerReader::Line> PeerReader::FindLine(const Member& member,
                                                       const std::string& tenant) {
  std::shared_ptr<Line> old;  // destroyed without the lock
  const MutexLock lock(mutex_);
  if (is_stopped_) return nullptr;
  std::shared_ptr<Line>& line = lines_[{member.name, tenant}];
  if (line != nullptr &&
      (line->address != member.address || line->incarnation != member.incarnation ||
       line->tls_server != member.tls_server)) {
    CountClosed(*line);
    old = std::move(line);
  }
  if (line == nullptr) {
    line = std::make_shared<Line>(strikes_);
    line->member = member.name;
    line->address = member.address;
    line->tls_server = member.tls_server;
    line->incarnation = member.incarnation;
  }
  line->Use();
  return line;
}

absl::Status PeerReader::BeginConnect(const Member& member) {
  const MutexLock lock(mutex_);
  Reach& reach = reaches_[member.name];
  if (reach.address != member.address || reach.incarnation != member.incarnation) {
    reach.address = member.address;
    reach.incarnation = member.incarnation;
    reach.retry_at = absl::InfinitePast();
    reach.retry_after = absl::ZeroDuration();
  }
  if (reach.connecting >= kConnectsMax) return absl::UnavailableError("connecting");
  if (MonotonicNow() < reach.retry_at) return reach.failure;
  ++reach.connecting;
  return absl::OkStatus();
}

void PeerReader::EndConnect(const Member& member, const absl::Status& status) {
  const MutexLock lock(mutex_);
  Reach& reach = reaches_[member.name];
  --reach.connecting;
  if (reach.address != member.address || reach.incarnation != member.incarnation) return;
  if (!absl::IsUnavailable(status) && !absl::IsDeadlineExceeded(status)) {
    reach.retry_after = absl::ZeroDuration();
    return;
  }
  reach.retry_after = std::clamp(reach.retry_after * 2, kRetryMin, kRetryMax);
  reach.retry_at = MonotonicNow() + reach.retry_after;
  reach.failure = status;
}

absl::StatusOr<std::shared_ptr<PeerReader::Line>> PeerReader::LineTo(const Member& member,
                                                                     const std::string& tenant,
                                                                     absl::Duration timeout) {
  std::shared_ptr<Line> line = FindLine(member, tenant);
  if (line == nullptr) return absl::UnavailableError("stopping");
  {
    const MutexLock own(line->mutex);
    if (line->client != nullptr) return line;
    if (line->is_connecting) return absl::UnavailableError("connecting");
    if (MonotonicNow() < line->retry_at) return line->failure;
    line->is_connecting = true;
  }
  if (const absl::Status status = BeginConnect(member); !status.ok()) {
    const MutexLock own(line->mutex);
    line->is_connecting = false;
    return status;
  }
  absl::StatusOr<std::unique_ptr<Client>> client = Connect(member, tenant, timeout);
  EndConnect(member, client.status());
  if (!client.ok()) line->NoteFailure(client.status());
  const MutexLock own(line->mutex);
  line->is_connecting = false;
  if (client.ok()) {
    line->client = *std::move(client);
    return line;
  }
  line->retry_at = MonotonicNow() + line->retry_after;
  line->retry_after = std::min(line->retry_after * 2, kRetryMax);
  return line->failure;
}

absl::StatusOr<PeerReader::Found> PeerReader::Match(const Member& member,
                                                    const PeerQuestion& question,
                                                    absl::Time deadline) {
  CAIRN_RETURN_IF_ERROR(strikes_.MayRead(member.name, member.incarnation, MonotonicNow()));
  Found found;
  // A match has a few milliseconds. A connection may take longer, and serves later ones.
  CAIRN_ASSIGN_OR_RETURN(found.line_,
                         LineTo(member, question.identity.tenant, options_.connect_timeout));
  auto space = found.line_->SpaceOf(question.identity, question.recipe, deadline);
  if (!space.ok()) {
    found.line_->NoteFailure(space.status());
    return space.status();
  }
  found.space_ = *std::move(space);
  CAIRN_ASSIGN_OR_RETURN(const absl::Duration left, TimeLeft(deadline));
  CAIRN_ASSIGN_OR_RETURN(MatchResult result,
                         found.space_->Match({.keys = question.keys,
                                              .slices = question.slices,
                                              .groups_skipped = question.groups_skipped,
                                              .is_counting = !question.wants_lease,
                                              .timeout = left,
                                              .generation = question.generation}));
  if (result.is_breaker_open) return absl::UnavailableError("not asked, because it failed");
  found.blocks_ = std::move(result.blocks);
  found.lease_ = result.lease;
  found.generation_ = result.generation;
  return found;
}

absl::StatusOr<MemberBlocks> PeerReader::Where(const Member& member, const PeerQuestion& question,
                                               absl::Time deadline) {
  CAIRN_ASSIGN_OR_RETURN(const absl::Duration time, TimeLeft(deadline));
  CAIRN_ASSIGN_OR_RETURN(
      const std::shared_ptr<Line> line,
      LineTo(member, question.identity.tenant, std::min(time, options_.connect_timeout)));
  if (line->client->counters().breaker_state == Breaker::State::kOpen) {
    return absl::UnavailableError("not asked, because it failed");
  }
  CAIRN_ASSIGN_OR_RETURN(const std::shared_ptr<Space> space,
                         line->SpaceOf(question.identity, question.recipe, deadline));
  CAIRN_ASSIGN_OR_RETURN(const absl::Duration left, TimeLeft(deadline));
  CAIRN_ASSIGN_OR_RETURN(WhereResult result, space->Where(question.keys, left));
  MemberBlocks answer = std::move(result.members.front());
  answer.member = member.name;
  answer.is_self = false;
  answer.failure.clear();
  return answer;
}

absl::StatusOr<SideObjectHandle> PeerReader::GetSideObject(const Member& member,
                                                           const proto::SpaceIdentity& identity,
                                                           const std::string& recipe,
                                                           const codecs::Digest& id,
                                                           absl::Time deadline) {
  CAIRN_ASSIGN_OR_RETURN(const absl::Duration time, TimeLeft(deadline));
  CAIRN_ASSIGN_OR_RETURN(const std::shared_ptr<Line> line,
                         LineTo(member, identity.tenant, std::min(time, options_.connect_timeout)));
  CAIRN_ASSIGN_OR_RETURN(const std::shared_ptr<Space> space,
                         line->SpaceOf(identity, recipe, deadline));
  CAIRN_ASSIGN_OR_RETURN(const absl::Duration left, TimeLeft(deadline));
  return space->GetSideObject(id, left);
}

absl::StatusOr<uint64_t> PeerReader::Delete(const Member& member,
                                            const proto::SpaceIdentity& identity,
                                            std::span<const proto::BlockKey> keys,
                                            uint64_t generation, absl::Time deadline) {
  CAIRN_ASSIGN_OR_RETURN(const absl::Duration time, TimeLeft(deadline));
  CAIRN_ASSIGN_OR_RETURN(const std::shared_ptr<Line> line,
                         LineTo(member, identity.tenant, std::min(time, options_.connect_timeout)));
  CAIRN_ASSIGN_OR_RETURN(const std::shared_ptr<Space> space, line->SpaceOf(identity, "", deadline));
  CAIRN_ASSIGN_OR_RETURN(const absl::Duration left, TimeLeft(deadline));
  return keys.empty() ? space->Invalidate(left, generation) : space->Delete(keys, left);
}

void PeerReader::CloseUnused(const View& view) {
  strikes_.Keep(view);
  std::vector<std::shared_ptr<Line>> closed;  // destroyed without the lock
  const absl::Time now = MonotonicNow();
  const MutexLock lock(mutex_);
  std::erase_if(reaches_, [&](const auto& entry) {
    return entry.second.connecting == 0 && view.Find(entry.first) == nullptr;
  });
  std::erase_if(lines_, [&](auto& entry) {
    if (view.Find(entry.first.first) != nullptr && !entry.second->IsIdle(now)) return false;
    CountClosed(*entry.second);
    closed.push_back(std::move(entry.second));
    return true;
  });
}

void PeerReader::Stop() {
  decltype(lines_) closed;  // destroyed without the lock
  const MutexLock lock(mutex_);
  is_stopped_ = true;
  closed.swap(lines_);
}

void PeerReader::CountClosed(const Line& line) {
  const MutexLock own(line.mutex);
  if (line.client != nullptr) closed_corrupt_ += line.client->counters().corrupt;
}

PeerReader::Counters PeerReader::counters() const {
  const MutexLock lock(mutex_);
  Counters counters = {.corrupt = closed_corrupt_, .distrusted = strikes_.distrusted_count()};
  for (const auto& [name, line] : lines_) {
    const MutexLock own(line->mutex);
    if (line->client == nullptr) continue;
    ++counters.sessions;
    counters.corrupt += line->client->counters().corrupt;
  }
  return counters;
}

}  // namespace cairn
