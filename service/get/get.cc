// SPDX-License-Identifier: Apache-2.0
#include "service/get/get.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "base/check.h"
#include "base/log.h"
#include "base/status.h"
#include "proto/block_key.h"
#include "service/active_backend.h"
#include "service/limits.h"

namespace cairn {
namespace {

constexpr uint8_t kPeerTier = 4;  // TIER_PEER of cairn.v1.Tier

// Returns true if some pinned images must be read through their tier.
bool NeedsReads(const CopyPins& pins) {
  return std::any_of(pins.begin(), pins.end(),
                     [](const CopyPin& pin) { return pin.bytes().empty(); });
}

}  // namespace

// The steps of a get: Check → Lookup → Promote → Transcode, which ends with Reply.
void Gets::StartGet(Replies& replies, Request request, const proto::Frame& frame) {
  GetOwner op = MakeOp(std::move(request), std::get<proto::Get>(frame.body), AnswerTo(replies));
  // On the lane, if only look-ups are needed.
  if (LookupAtOnce(*op)) return Transcode(std::move(op));
  pool_.Submit(
      [this, op = std::move(op)](const absl::Status& refusal) mutable {
        return refusal.ok() ? RunGet(std::move(op)) : Reply(std::move(op), refusal);
      },
      PathPool::Kind::kGet);
}

void Gets::RunGet(GetOwner op) {
  op->request.times.started = clock_.Now();
  absl::Status found = Check(*op);
  if (found.ok()) found = Lookup(*op);
  if (absl::IsNotFound(found) && !op->space.is_empty() && AwaitFetch(op)) return;
  if (!found.ok()) return Reply(std::move(op), std::move(found));
  PromoteAndTranscode(std::move(op));
}

// Continues on this thread, or after a tier's reads. If a device decodes, continues once more
// later.
void Gets::PromoteAndTranscode(GetOwner op) {
  Promote(std::move(op), [this](GetOwner op, absl::Status promoted) {
    return promoted.ok() ? Transcode(std::move(op)) : Reply(std::move(op), std::move(promoted));
  });
}

// --- Lookup --------------------------------------------------------------------------------------

GetOwner Gets::MakeOp(Request request, const proto::Get& get, GetDone done) {
  GetOwner op = ops_.Make();
  op->get = get;
  op->target_bytes = std::min(get.target_bytes, request.reply_to.capacity_bytes);
  op->is_checked_by_client = request.reply_to.takes_loan && get.form == proto::Form::kImage;
  op->request = std::move(request);
  op->done = std::move(done);
  return op;
}

bool Gets::LookupAtOnce(GetOp& op) {
  if (!op.is_checked_by_client) return false;
  uint64_t prefix_bytes = 0;
  if (Check(op).ok() && Lookup(op).ok() && op.pins.size() == 1 && !NeedsReads(op.pins) &&
      (op.pins.front().facts().slice == op.slice ||
       (op.request.reply_to.takes_places && op.slice.layer_count <= limits::kLentPlacesMax)) &&
      codecs::PeekPrefixBytes(op.pins.front().bytes(), &prefix_bytes) == codecs::Error::kOk &&
      prefix_bytes <= limits::kPrefixBytesAtOnce) {
    op.request.times.started = clock_.Now();
    return true;
  }
  op.pins.clear();  // no pins while the get waits for a thread
  op.space.Reset();
  return false;
}

absl::Status Gets::Check(GetOp& op) const {
  const proto::Get& get = op.get;
  if (clock_.Now() >= op.request.deadline) {
    return absl::DeadlineExceededError("waited too long for its turn");
  }
  CAIRN_ASSIGN_OR_RETURN(op.space, spaces_.Find(get.space_id, op.request.session.tenant.view()));
  op.slice = {.layer_first = get.slice.layer_first,
              .layer_count = get.slice.layer_count,
              .head_first = get.slice.head_first,
              .head_count = get.slice.head_count};
  CAIRN_RETURN_IF_ERROR(op.space->CheckSlice(get.group, op.slice));
  const codecs::GroupShape& shape = op.space->groups()[get.group];
  const codecs::Error error = codecs::SourceBytes(
      shape.tile, op.slice, static_cast<uint32_t>(shape.tokens_per_block), &op.source_bytes);
  if (error != codecs::Error::kOk) {
    return absl::InvalidArgumentError(absl::StrCat("slice: ", ToAbsl(codecs::Name(error))));
  }
  return absl::OkStatus();
}

absl::Status Gets::Lookup(GetOp& op) {
  const StepTimer timer(seconds(Step::kLookup));
  op.pins = index_.Lookup(op.block(), op.get.group, op.slice);
  // The status has no text, because a miss must not allocate.
  return op.pins.empty() ? absl::Status(absl::StatusCode::kNotFound, "") : absl::OkStatus();
}

bool Gets::AwaitFetch(GetOwner& op) {
  if (fetch_ == nullptr || op->request.session.is_member) return false;
  const GetId id = waiting_.OpenGet();
  if (id == 0) return false;
  if (!fetch_(op->request, op->get, op->slice, [this, id] { EndRead(id); })) {
    waiting_.CloseGet(id);
    return false;
  }
  op->promote_began = clock_.Now();
  op->next = [this](GetOwner op, absl::Status status) {
    if (status.ok()) status = Lookup(*op);
    op->was_elsewhere = status.ok();
    return status.ok() ? PromoteAndTranscode(std::move(op))
                       : Reply(std::move(op), std::move(status));
  };
  AwaitReads(id, std::move(op), 1);
  return true;
}

// --- Promote -------------------------------------------------------------------------------------

void Gets::RunNext(GetOwner op, absl::Status status) {
  GetNext next = std::move(op->next);
  next(std::move(op), std::move(status));
}

void Gets::Promote(GetOwner op, GetNext next) {
  op->next = std::move(next);
  return NeedsReads(op->pins) ? BeginReads(std::move(op))
                              : RunNext(std::move(op), absl::OkStatus());
}

void Gets::BeginReads(GetOwner op) {
  op->promote_began = clock_.Now();
  op->reads.resize(op->pins.size());
  const GetId id = waiting_.OpenGet();
  absl::Status joined =
      id != 0 ? absl::OkStatus() : absl::ResourceExhaustedError("too many gets wait for a tier");
  const absl::Time deadline = op->request.deadline;
  size_t reads = 0;
  uint64_t whole_bytes = 0;
  for (size_t i = 0; joined.ok() && i < op->pins.size(); ++i) {
    if (!op->pins[i].bytes().empty()) {
      continue;
    }
    const codecs::Slice wanted = PartWithin(op->slice, op->pins[i].facts().slice);
    auto read = promotions_.JoinRead(std::move(op->pins[i]), op->space, wanted, id, deadline);
    joined = read.status();
    if (joined.ok()) {
      op->reads[i] = *std::move(read);
      ++reads;
      whole_bytes += op->reads[i]->is_whole() ? op->reads[i]->pin().copy().image_bytes : 0;
    }
  }
  if (!joined.ok()) {  // the reads that the get has joined continue without it
    waiting_.CloseGet(id);
    return RunNext(std::move(op), absl::NotFoundError(joined.message()));
  }
  const BlockName block = op->block();
  const uint16_t group = op->get.group;
  const codecs::Slice slice = op->slice;
  AwaitReads(id, std::move(op), reads);
  if (whole_bytes > 0) {  // a reader of single slices does not need whole images
    prefetches_.ReadAhead(block, group, slice, whole_bytes);
  }
}

void Gets::AwaitReads(GetId id, GetOwner op, size_t reads) {
  const absl::Time deadline = op->request.deadline;
  if (GetOwner ready = waiting_.AwaitReads(id, std::move(op), reads, deadline); ready != nullptr) {
    Resume(std::move(ready));
  } else {
    pool_.Wake();  // to wait for its deadline
  }
}

void Gets::EndRead(GetId id) {
  GetOwner op = waiting_.CountRead(id);
  if (op == nullptr) {
    return;  // the get waits for other reads, or was answered late
  }
  pool_.Continue(
      [this, op = std::move(op)](const absl::Status& refusal) mutable {
        return refusal.ok() ? Resume(std::move(op)) : RunNext(std::move(op), refusal);
      },
      PathPool::Kind::kGet);
}

void Gets::Resume(GetOwner op) {
  op->request.times.promote = clock_.Now() - op->promote_began;
  seconds(Step::kPromote).Observe(op->request.times.promote);
  if (!op->is_retry && DropSpares(*op)) {
    return Retry(std::move(op));
  }
  for (const std::shared_ptr<const Promotion>& read : op->reads) {
    if (read == nullptr || read->status().ok()) {
      continue;
    }
    op->damaged_tier = read->pin().copy().tier;
    absl::Status status = absl::IsDataLoss(read->status())
                              ? read->status()
                              : absl::NotFoundError(read->status().message());
    return RunNext(std::move(op), std::move(status));
  }
  RunNext(std::move(op), absl::OkStatus());
}

bool Gets::DropSpares(const GetOp& op) {
  bool has_dropped = false;
  for (const std::shared_ptr<const Promotion>& read : op.reads) {
    if (read == nullptr || tiers_.Find(read->pin().copy().tier)->traits().may_hold_last) {
      continue;
    }
    if (absl::IsUnavailable(read->status())) {
      index_.Drop(read->pin());
    }
    has_dropped |= absl::IsUnavailable(read->status()) || absl::IsDataLoss(read->status());
  }
  return has_dropped;
}

void Gets::Retry(GetOwner op) {
  op->is_retry = true;
  op->reads.clear();
  const absl::Status found = Lookup(*op);
  return found.ok() && NeedsReads(op->pins) ? BeginReads(std::move(op))
                                            : RunNext(std::move(op), found);
}

absl::Duration Gets::AnswerLate() {
  for (GetOwner& op : waiting_.TakeLateGets(clock_.Now())) {
    RunNext(std::move(op), absl::NotFoundError("its tier did not respond in time"));
  }
  return waiting_.next_deadline() - clock_.Now();
}

GetId WaitingGets::OpenGet() {
  const MutexLock lock(mutex_);
  if (entries_.size() >= limits::kWaitingGetsMax) {
    return 0;
  }
  entries_.try_emplace(++last_id_);
  return last_id_;
}

void WaitingGets::CloseGet(GetId id) {
  const MutexLock lock(mutex_);
  entries_.erase(id);
}

GetOwner WaitingGets::AwaitReads(GetId id, GetOwner op, size_t reads, absl::Time deadline) {
  const MutexLock lock(mutex_);
  const auto found = entries_.find(id);
  CAIRN_CHECK(found != entries_.end() && found->second.op == nullptr);
  Entry& entry = found->second;
  if (entry.arrived == reads) {
    entries_.erase(found);
    return op;
  }
  entry.op = std::move(op);
  entry.reads = reads;
  entry.deadline = deadline;
  deadlines_.emplace(deadline, id);
  return nullptr;
}

GetOwner WaitingGets::CountRead(GetId id) {
  const MutexLock lock(mutex_);
  const auto found = entries_.find(id);
  if (found == entries_.end()) {
    return nullptr;
  }
  Entry& entry = found->second;
  ++entry.arrived;
  return entry.op != nullptr && entry.arrived == entry.reads ? TakeGet(id) : nullptr;
}

std::vector<GetOwner> WaitingGets::TakeLateGets(absl::Time now) {
  std::vector<GetOwner> late;
  const MutexLock lock(mutex_);
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    late.push_back(TakeGet(deadlines_.begin()->second));
  }
  return late;
}

absl::Time WaitingGets::next_deadline() const {
  const MutexLock lock(mutex_);
  return deadlines_.empty() ? absl::InfiniteFuture() : deadlines_.begin()->first;
}

size_t WaitingGets::count() const {
  const MutexLock lock(mutex_);
  return entries_.size();
}

GetOwner WaitingGets::TakeGet(GetId id) {
  const auto found = entries_.find(id);
  GetOwner op = std::move(found->second.op);
  deadlines_.erase({found->second.deadline, id});
  entries_.erase(found);
  return op;
}

// --- Reply ---------------------------------------------------------------------------------------

void Gets::Reply(GetOwner op, absl::Status status) {
  status = CountOutcome(*op, std::move(status));
  if (op->was_elsewhere && op->request.session.reads_peer_tier) {
    op->answer.reply.tier = kPeerTier;
  }
  absl::StatusOr<Answer> answer =
      status.ok() ? absl::StatusOr<Answer>(std::move(op->answer)) : std::move(status);
  Request request = std::move(op->request);
  GetDone done = std::move(op->done);
  op.reset();  // releases unneeded pins before the answer is sent
  done(std::move(request), std::move(answer));
}

// Counts the outcome. Changes DataLoss to NotFound: for the reader, damaged bytes are a miss.
absl::Status Gets::CountOutcome(const GetOp& op, absl::Status status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      Count(Outcome::kHit, static_cast<TierId>(op.answer.reply.tier));
      return status;
    case absl::StatusCode::kNotFound:
      Count(Outcome::kMiss);
      return status;
    case absl::StatusCode::kDataLoss:
      Count(Outcome::kCorrupt, op.damaged_tier);
      return absl::NotFoundError(status.message());
    default:
      Count(Outcome::kRefused);
      return status;
  }
}

GetDone Gets::AnswerTo(Replies& replies) {
  return [this, &replies](Request request, absl::StatusOr<Answer> answer) {
    request.times.made = clock_.Now();
    if (answer.ok()) return SendAnswer(replies, std::move(request), *std::move(answer));
    proto::Frame frame = request.Error(answer.status());
    replies.PostReply({.request = std::move(request), .frame = std::move(frame)});
  };
}

LoanBudget::Bytes Answer::lent_bytes() const {
  LoanBudget::Bytes bytes;
  const auto add_pin = [&bytes](const CopyPin& kept) { bytes.host += kept.bytes().size(); };
  const auto add_read = [&](const Promotion& kept) {
    if (kept.resident().is_empty()) {
      bytes.staging += kept.staging_bytes();
    } else {
      add_pin(kept.resident());
    }
  };
  if (placed != nullptr) {
    for (const CopyPin& kept : placed->pins) add_pin(kept);
    for (const auto& kept : placed->reads) add_read(*kept);
  } else if (read != nullptr) {
    add_read(*read);
  } else if (!pin.is_empty()) {
    add_pin(pin);
  }
  return bytes;
}

// The lane sends or lends the payload in place, and then drops the answer.
void Gets::SendAnswer(Replies& replies, Request request, Answer answer) {
  Outgoing outgoing = {.request = std::move(request), .frame = {}};
  const Request& asked = outgoing.request;
  outgoing.frame = asked.Reply(answer.reply);
  outgoing.payload = answer.payload;
  if (answer.placed != nullptr) outgoing.places = answer.placed->places;
  outgoing.frame.payload_bytes = transport::PlacedPayload{answer.payload, outgoing.places}.bytes();
  outgoing.frame.payload_crc32c = answer.payload_crc32c;
  if (asked.reply_to.takes_loan) {
    outgoing.lent_bytes = answer.lent_bytes();
    const uint32_t ms_max =
        outgoing.lent_bytes.staging > 0 ? limits::kStagingLoanMsMax : limits::kLoanMsMax;
    outgoing.lent_until = std::min(asked.deadline, asked.times.made + absl::Milliseconds(ms_max));
  }
  outgoing.sent = [this, bytes = outgoing.frame.payload_bytes,
                   made = asked.times.made](const absl::Status& status) {
    seconds(Step::kSend).Observe(clock_.Now() - made);
    if (status.ok()) sent_bytes_.Add(bytes);
  };
  outgoing.kept = [answer = std::move(answer)] {};
  replies.PostReply(std::move(outgoing));
}

// --- Components and metrics ----------------------------------------------------------------------

Gets::Gets(Spaces& spaces, BlockIndex& index, Tiers& tiers, PathPool& pool, const Clock& clock)
    : spaces_(spaces),
      index_(index),
      tiers_(tiers),
      pool_(pool),
      clock_(clock),
      backend_(ActiveBackend()),
      promotions_({.index = index,
                   .tiers = tiers,
                   .pool = pool,
                   .clock = clock,
                   .drop_damaged = [this](const CopyPin& pin,
                                          std::string_view what) { return DropDamaged(pin, what); },
                   .ended = [this](GetId get) { EndRead(get); },
                   .has_room = [this] { prefetches_.StartReads(); }}),
      prefetches_(spaces, index, promotions_),
      seconds_{Histogram(LatencyBounds()), Histogram(LatencyBounds()), Histogram(LatencyBounds()),
               Histogram(LatencyBounds())} {
  pool.SetAnswerLate([this] { return AnswerLate(); });
}

absl::Status Gets::DropDamaged(const CopyPin& pin, std::string_view what) {
  if (index_.Drop(pin)) {
    corrupt_tiles_[IndexOf(pin.copy().tier)].Add();
    LogWarn("get", "image is damaged: dropped",
            {{"error", what},
             {"key", proto::Hex(std::span(pin.facts().key).first(4))},
             {"space", pin.facts().space_id},
             {"place", pin.place()}});
  }
  return absl::DataLossError("damaged and dropped");
}

void Gets::Report(MetricSink& sink) const {
  constexpr std::string_view kStepNames[kStepCount] = {"lookup", "promote", "transcode", "send"};
  const auto outcome = [&](std::string_view name, std::string_view where, Outcome value,
                           TierId tier) {
    const MetricLabel labels[] = {{"outcome", name}, {"tier", where}};
    sink.AddCounter("cairn_gets_total", "Gets, by outcome and tier.", labels,
                    outcomes_[static_cast<size_t>(value)][IndexOf(tier)].Value());
  };
  for (const CopyTier* tier : tiers_.all()) {
    outcome("hit", Name(tier->id()), Outcome::kHit, tier->id());
    outcome("corrupt", Name(tier->id()), Outcome::kCorrupt, tier->id());
    const MetricLabel where[] = {{"where", Name(tier->id())}};
    sink.AddCounter("cairn_corrupt_tiles_total",
                    "Tiles (on the wire: payloads) whose bytes did not match their CRC, by where.",
                    where, corrupt_tiles_[IndexOf(tier->id())].Value());
  }
  outcome("miss", "none", Outcome::kMiss, TierId::kHost);
  outcome("refused", "none", Outcome::kRefused, TierId::kHost);
  for (size_t i = 0; i < kStepCount; ++i) {
    const MetricLabel labels[] = {{"step", kStepNames[i]}};
    sink.AddHistogram("cairn_get_step_seconds", "Time of each step of a get.", labels,
                      seconds_[i].Snapshot());
  }
  const MetricLabel queue[] = {{"step", "queue"}};
  sink.AddHistogram("cairn_get_step_seconds", "Time of each step of a get.", queue,
                    pool_.queue_seconds(PathPool::Kind::kGet).Snapshot());
  const auto answered = [&](std::string_view how, const Counter& counter) {
    const MetricLabel labels[] = {{"how", how}};
    sink.AddCounter("cairn_get_answers_total", "Hits, by how the payload was made.", labels,
                    counter.Value());
  };
  answered("direct", direct_);
  answered("placed", placed_);
  answered("gathered", gathered_);
  answered("decoded", decoded_);
  answered("recoded", recoded_);
  sink.AddCounter("cairn_get_sent_bytes_total", "Payload bytes sent in answers to gets.", {},
                  sent_bytes_.Value());
  sink.AddGauge("cairn_waiting_gets", "Gets that wait for a colder tier.", {},
                static_cast<double>(waiting_.count()));
  promotions_.Report(sink);
  prefetches_.Report(sink);
}

}  // namespace cairn
