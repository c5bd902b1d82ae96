// SPDX-License-Identifier: Apache-2.0
#include "service/put/put.h"

#include <cstring>
#include <string>
#include <utility>
#include <variant>

#include "base/check.h"
#include "base/status.h"
#include "service/active_backend.h"
#include "service/limits.h"

namespace cairn {

// The steps of a put: Admit → Receive → Encode → Place → Publish → Reply.
void Puts::StartPut(transport::Lane& lane, Replies& replies, Request request,
                    const proto::Frame& frame, transport::Arrival arrival) {
  if (refuses_new_.load(std::memory_order_relaxed)) {
    Count(Outcome::kRefused);
    return replies.RefuseRequest(lane, request, absl::UnavailableError("draining: no new puts"));
  }
  PutOwner op = MakeOp(std::move(request), frame, AnswerTo(replies));
  // On the lane, before the payload is transferred.
  if (absl::Status admitted = Admit(*op); !admitted.ok() || op->is_duplicate) {
    return Reply(std::move(op), std::move(admitted));
  }
  // The lane copies the payload. The rest runs on a thread of the path pool, unless it is short.
  Receive(lane, std::move(op), std::move(arrival), [this](PutOwner op, absl::Status received) {
    return received.ok() ? FinishPut(std::move(op)) : Reply(std::move(op), std::move(received));
  });
}

void Puts::StoreCopy(Request request, const proto::Put& put, std::span<const std::byte> image,
                     const CopyTerms& terms, PutDone done) {
  proto::Frame frame;
  frame.body = put;
  frame.payload_bytes = image.size();
  PutOwner op = MakeOp(std::move(request), frame, std::move(done));
  op->is_copy = true;
  op->copy_expires_unix_s = terms.expires_unix_s;
  op->is_fetched = terms.is_fetched;
  if (absl::Status admitted = Admit(*op); !admitted.ok() || op->is_duplicate) {
    return Reply(std::move(op), std::move(admitted));
  }
  std::memcpy(op->target().data(), image.data(), image.size());
  op->received_crc32c = op->payload_crc32c;  // the tiles have checksums of their own
  FinishPut(std::move(op));
}

void Puts::FinishPut(PutOwner op) {
  op->request.times.started = clock_.Now();
  // Runs on this thread. If a device encodes, it continues on another thread.
  Encode(std::move(op), [this](PutOwner op, absl::Status status) {
    if (status.ok()) status = Place(*op);
    if (status.ok()) status = Publish(*op);
    Reply(std::move(op), std::move(status));
  });
}

// --- Admit ---------------------------------------------------------------------------------------

namespace {

codecs::Digest DigestOf(const proto::BlockKey& bytes) {
  codecs::Digest digest;
  std::memcpy(digest.data(), bytes.data(), digest.size());
  return digest;
}

codecs::Slice SliceOf(const proto::SliceRange& range) {
  return {.layer_first = range.layer_first,
          .layer_count = range.layer_count,
          .head_first = range.head_first,
          .head_count = range.head_count};
}

BlockClaim ClaimOf(const proto::Put& put) {
  return {.name = {put.space_id, put.key},
          .parent = put.parent,
          .first_position = put.first_position,
          .tokens = put.tokens,
          .group = put.group,
          .slice = SliceOf(put.slice)};
}

absl::StatusOr<codecs::ImageSpec> CheckGeometry(const SpaceEntry& space, const proto::Put& put) {
  const codecs::Slice slice = SliceOf(put.slice);
  CAIRN_RETURN_IF_ERROR(space.CheckSlice(put.group, slice));
  if (put.tokens != space.tokens_per_block()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "tokens is ", put.tokens, ": blocks of the space have ", space.tokens_per_block()));
  }
  const codecs::ImageSpec spec = {.space = DigestOf(space.fingerprint()),
                                  .key = DigestOf(put.key),
                                  .group = put.group,
                                  .tile = space.groups()[put.group].tile,
                                  .slice = slice,
                                  .tokens = put.tokens,
                                  .first_position = put.first_position,
                                  .recipe = {}};
  if (const codecs::Error error = codecs::Validate(spec); error != codecs::Error::kOk) {
    return absl::InvalidArgumentError(absl::StrCat("slice: ", ToAbsl(codecs::Name(error))));
  }
  return spec;
}

absl::Status CheckPayloadBytes(const codecs::ImageSpec& spec, const proto::Put& put,
                               uint64_t bytes) {
  std::string names;
  for (const proto::Statistic kind : proto::kStatistics) {
    if (!put.statistics.Has(kind)) {
      continue;
    }
    if (proto::CountOf(kind, spec.tile, spec.slice, spec.tokens) == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(proto::Name(kind), ": group ", put.group, " has no K"));
    }
    if (put.form == proto::Form::kImage && kind != proto::Statistic::kQuerySquares) {
      return absl::InvalidArgumentError(
          absl::StrCat(proto::Name(kind), ": the payload is an image, which is encoded already"));
    }
    absl::StrAppend(&names, names.empty() ? "" : " and ", proto::Name(kind));
  }
  if (put.has_tokens) {
    absl::StrAppend(&names, names.empty() ? "" : " and ", "tokens");
  }
  const uint64_t aux_bytes = StatisticsBytes(put.statistics, spec) + TokensBytes(put);
  uint64_t bytes_min = codecs::kHeaderBytes, bytes_max = 0;
  if (put.form == proto::Form::kSource) {
    CAIRN_CHECK(codecs::SourceBytes(spec.tile, spec.slice, spec.tokens, &bytes_max) ==
                codecs::Error::kOk);
    bytes_min = bytes_max;
  } else {
    CAIRN_CHECK(codecs::MaxImageBytes(spec, &bytes_max) == codecs::Error::kOk);
  }
  if (bytes < bytes_min + aux_bytes || bytes > bytes_max + aux_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "payload_bytes is ", bytes, ": ", bytes_min + aux_bytes, " to ", bytes_max + aux_bytes,
        names.empty() ? "" : absl::StrCat(", of which ", names, " are ", aux_bytes)));
  }
  return absl::OkStatus();
}

}  // namespace

namespace {

// Returns null if the put has no names.
EngineNamesRef NamesOf(PutOp& op) {
  return ShareNames(
      {.hash = op.put.engine_hash, .parent = op.put.engine_parent, .tokens = std::move(op.tokens)});
}

}  // namespace

PutOwner Puts::MakeOp(Request request, const proto::Frame& frame, PutDone done) {
  const auto* put = std::get_if<proto::Put>(&frame.body);
  CAIRN_CHECK(put != nullptr);
  PutOwner op = ops_.Make();
  op->request = std::move(request);
  op->done = std::move(done);
  op->put = *put;
  op->payload_bytes = frame.payload_bytes;
  op->payload_crc32c = frame.payload_crc32c;
  return op;
}

absl::Status Puts::Admit(PutOp& op) {
  const StepTimer timer(seconds(Step::kAdmit));
  const proto::Put& put = op.put;
  const Session& session = op.request.session;
  CAIRN_ASSIGN_OR_RETURN(op.space, spaces_.Find(put.space_id, session.tenant.view()));
  CAIRN_ASSIGN_OR_RETURN(op.spec, CheckGeometry(*op.space, put));
  CAIRN_RETURN_IF_ERROR(CheckPayloadBytes(op.spec, put, op.payload_bytes));
  if (put.is_derived && op.space->recipe().IsLossless()) {
    return absl::FailedPreconditionError(
        "is_derived: a lossless space accepts no KV that was computed from a lossy prefix");
  }
  if (put.has_tokens && !index_.keeps_tokens()) {
    return absl::InvalidArgumentError("tokens: this daemon keeps none (event-tokens is off)");
  }
  const BlockClaim claim = ClaimOf(put);
  CAIRN_ASSIGN_OR_RETURN(const std::optional<uint64_t> covered, index_.Check(claim));
  if (covered.has_value()) {
    if (!put.engine_hash.empty()) index_.SetNames(claim.name, NamesOf(op));
    op.is_duplicate = true;
    op.image_bytes = *covered;
    return absl::OkStatus();
  }
  // Payloads must leave room for their images and for answers.
  HostTier& host = tiers_.host();
  const uint64_t staging_max = host.staging_capacity_bytes() / 100 * limits::kPutStagingPercentMax;
  if (host.staging_bytes() + op.payload_bytes > staging_max) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "staging: payloads in flight use all of their share of ", staging_max, " bytes"));
  }
  CAIRN_ASSIGN_OR_RETURN(op.in_flight, sessions_.BeginPut(session.id, op.payload_bytes));
  CAIRN_ASSIGN_OR_RETURN(op.reservation, index_.ReservePut(claim));
  const bool is_plain = put.form == proto::Form::kSource && put.statistics.bits() == 0;
  const codecs::Recipe recipe = op.space->recipe();
  op.payload_offset = is_plain && recipe.IsRaw() ? codecs::RawPrefixBytes(op.spec) : 0;
  const uint64_t bytes = op.payload_offset + op.payload_bytes;
  // The lane runs only short work: no eviction, no parents, no device, and little to encode.
  op.ends_on_lane = is_plain && !put.is_durable && !recipe.FollowsChain() && device_ == nullptr &&
                    op.payload_bytes <= (op.payload_offset > 0 ? limits::kRawPutBytesAtOnce
                                                               : limits::kPutBytesAtOnce) &&
                    host.used_bytes() + 2 * bytes <= host.capacity_bytes();
  CAIRN_ASSIGN_OR_RETURN(op.payload, host.AllocateStaging(bytes, &claim.name));
  return absl::OkStatus();
}

// --- Receive -------------------------------------------------------------------------------------

void Puts::Receive(transport::Lane& lane, PutOwner op, transport::Arrival arrival, PutNext next) {
  op->next = std::move(next);
  const std::span<std::byte> target = op->target();
  const absl::Time deadline = op->request.deadline;
  lane.Receive(
      std::move(arrival), target, deadline,
      [this, op = std::move(op), began = clock_.Now()](transport::Received received) mutable {
        op->request.times.landed = clock_.Now();
        seconds(Step::kReceive).Observe(op->request.times.landed - began);
        if (!received.status.ok()) return RunNext(std::move(op), std::move(received.status));
        op->received_crc32c = received.crc32c;
        if (op->ends_on_lane) return RunNext(std::move(op), absl::OkStatus());
        // A durable put must not stay raw, because write-back waits until the image is encoded.
        op->keeps_raw = pool_.is_busy() && !op->put.is_durable;
        pool_.Submit([this, op = std::move(op)](
                         const absl::Status& refusal) mutable { RunNext(std::move(op), refusal); },
                     PathPool::Kind::kPut);
      });
}

void Puts::RunNext(PutOwner op, absl::Status status) {
  PutNext next = std::move(op->next);
  next(std::move(op), std::move(status));
}

// --- Place and Publish ---------------------------------------------------------------------------

absl::Status Puts::Place(PutOp& op) {
  const StepTimer timer(seconds(Step::kPlace));
  if (op.is_placed) return absl::OkStatus();
  const BlockName block = op.block();
  return tiers_.host().PlaceStaged(op.image, &block);
}

absl::Status Puts::Publish(PutOp& op) {
  const StepTimer timer(seconds(Step::kPublish));
  const BlockClaim claim = ClaimOf(op.put);
  uint64_t source_bytes = 0;
  CAIRN_CHECK(codecs::SourceBytes(op.spec.tile, op.spec.slice, op.spec.tokens, &source_bytes) ==
              codecs::Error::kOk);
  const uint64_t image_bytes = op.image.size_bytes();
  NewImage image = {.claim = claim,
                    .source_bytes = source_bytes,
                    .copy = {.recipe = op.recipe,
                             .extent = std::move(op.image),
                             .side_object = std::move(op.side_object)},
                    .is_encode_pending = op.is_encode_pending,
                    .expires_unix_s = op.is_copy
                                          ? op.copy_expires_unix_s
                                          : ExpiryAt(op.space->coding().policy(), clock_.Now()),
                    .names = NamesOf(op),
                    .is_fetched = op.is_fetched};
  // The session cannot end between the check and the publication. So nothing is published after its
  // end.
  CAIRN_RETURN_IF_ERROR(sessions_.IfOpen(op.request.session.id, [&] {
    const absl::StatusOr<bool> is_published = index_.Publish(std::move(image));
    op.is_duplicate = is_published.ok() && !*is_published;
    return is_published.status();
  }));
  op.image_bytes = image_bytes;
  if (op.is_duplicate) return absl::OkStatus();
  source_bytes_.Add(source_bytes);
  image_bytes_.Add(image_bytes);
  index_.Announce(claim.name);
  const std::span<const float> squares = op.statistics.of(proto::Statistic::kQuerySquares);
  if (!squares.empty()) {
    op.space->coding().AddQuerySquares(op.put.group, op.spec.slice, squares, op.put.tokens);
  }
  return absl::OkStatus();
}

// --- Reply ---------------------------------------------------------------------------------------

PutDone Puts::AnswerTo(Replies& replies) {
  return [this, &replies](Request request, const absl::StatusOr<proto::PutReply>& reply) {
    request.times.made = clock_.Now();
    proto::Frame frame = reply.ok() ? request.Reply(*reply) : request.Error(reply.status());
    replies.PostReply({.request = std::move(request), .frame = std::move(frame)});
  };
}

void Puts::Reply(PutOwner op, absl::Status status) {
  if (!op->is_copy) CountOutcome(status, op->is_duplicate);
  proto::PutReply reply = {.is_duplicate = op->is_duplicate, .image_bytes = op->image_bytes};
  const bool is_durable = op->put.is_durable;
  const BlockName block = op->block();
  const WantedGroup wanted = {.group = op->put.group, .slice = op->spec.slice};
  // Only for spaces of the tenant.
  if (!op->space.is_empty() && !op->is_copy && IsRefused(status)) index_.NoteRefused(block);
  Request request = std::move(op->request);
  PutDone done = std::move(op->done);
  op.reset();
  if (!status.ok()) return done(std::move(request), std::move(status));
  if (!is_durable) return done(std::move(request), reply);
  CAIRN_CHECK(await_durable_ != nullptr);
  const absl::Time deadline = request.deadline;
  await_durable_(block, wanted, deadline,
                 [request = std::move(request), reply,
                  done = std::move(done)](proto::Durability durability) mutable {
                   reply.durability = durability;
                   done(std::move(request), reply);
                 });
}

// --- Components and metrics ----------------------------------------------------------------------

Puts::Puts(Spaces& spaces, Sessions& sessions, BlockIndex& index, Tiers& tiers, PathPool& pool,
           const Clock& clock)
    : spaces_(spaces),
      sessions_(sessions),
      index_(index),
      tiers_(tiers),
      pool_(pool),
      clock_(clock),
      backend_(ActiveBackend()),
      seconds_{Histogram(LatencyBounds()), Histogram(LatencyBounds()), Histogram(LatencyBounds()),
               Histogram(LatencyBounds()), Histogram(LatencyBounds())} {}

bool Puts::IsRefused(const absl::Status& status) {
  return !status.ok() && !absl::IsDataLoss(status) && !absl::IsUnavailable(status) &&
         !absl::IsDeadlineExceeded(status);
}

void Puts::CountOutcome(const absl::Status& status, bool is_duplicate) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return Count(is_duplicate ? Outcome::kDuplicate : Outcome::kStored);
    case absl::StatusCode::kDataLoss:
      return Count(Outcome::kCorrupt);
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
      return Count(Outcome::kAborted);
    default:
      return Count(Outcome::kRefused);
  }
}

void Puts::Report(MetricSink& sink) const {
  constexpr std::string_view kOutcomeNames[kOutcomeCount] = {"stored", "duplicate", "refused",
                                                             "corrupt", "aborted"};
  constexpr std::string_view kStepNames[kStepCount] = {"admit", "receive", "encode", "place",
                                                       "publish"};
  for (size_t i = 0; i < kOutcomeCount; ++i) {
    const MetricLabel labels[] = {{"outcome", kOutcomeNames[i]}};
    sink.AddCounter("cairn_puts_total", "Puts, by outcome.", labels, outcomes_[i].Value());
  }
  for (size_t i = 0; i < kStepCount; ++i) {
    const MetricLabel labels[] = {{"step", kStepNames[i]}};
    sink.AddHistogram("cairn_put_step_seconds", "Time of each step of a put.", labels,
                      seconds_[i].Snapshot());
  }
  const MetricLabel queue[] = {{"step", "queue"}};
  sink.AddHistogram("cairn_put_step_seconds", "Time of each step of a put.", queue,
                    pool_.queue_seconds(PathPool::Kind::kPut).Snapshot());
  const MetricLabel wire[] = {{"where", "wire"}};
  sink.AddCounter("cairn_corrupt_tiles_total",
                  "Tiles (on the wire: payloads) whose bytes did not match their CRC, by where.",
                  wire, corrupt_wire_.Value());
  sink.AddCounter("cairn_put_kept_raw_total",
                  "Puts whose block was stored raw because the path pool was busy.", {},
                  kept_raw_.Value());
  sink.AddCounter(
      "cairn_put_without_side_object_total",
      "Puts stored exact because their group had no profile or bank for the space's recipe yet.",
      {}, without_side_object_.Value());
  sink.AddCounter("cairn_put_source_bytes_total", "Source bytes of the slices stored by puts.", {},
                  source_bytes_.Value());
  sink.AddCounter("cairn_put_image_bytes_total", "Image bytes stored by puts.", {},
                  image_bytes_.Value());
}

}  // namespace cairn
