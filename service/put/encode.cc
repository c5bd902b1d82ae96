// SPDX-License-Identifier: Apache-2.0
// The step Encode of a put: makes a verified image from the payload.
#include "codecs/image/encode.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "codecs/image/chain.h"
#include "codecs/image/settle.h"
#include "proto/block_key.h"
#include "service/put/put.h"

namespace cairn {
namespace {

// Checks that the space allows the recipe and has its side object, and sets *side_object to it.
absl::Status CheckCoding(const SpaceEntry& space, const codecs::ImageSpec& spec, bool is_copy,
                         SideObjectRef* side_object) {
  codecs::ImageSpec wanted = spec;
  wanted.recipe = space.recipe();
  // Another member's policy may differ.
  const bool allows_any = is_copy && !wanted.recipe.IsLossless();
  if (!spec.recipe.IsLossless() && !allows_any && !space.coding().IsInForce(spec.recipe) &&
      !(spec.recipe == codecs::RecordedSpec(wanted, {}).recipe)) {
    return absl::FailedPreconditionError(
        absl::StrCat("payload: the image is ", ToAbsl(codecs::FormatRecipe(spec.recipe)),
                     ", but the space accepts ", ToAbsl(codecs::FormatRecipe(space.recipe())),
                     " or lossless ones"));
  }
  if (spec.side_object_count == 0) {
    return absl::OkStatus();
  }
  const codecs::Digest& id = spec.side_objects[0];
  *side_object = space.coding().Find(id);
  if (side_object->get() == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(
        "payload: the image names side object ", proto::Hex(std::as_bytes(std::span(id))),
        ", which the space does not have: put the side object first"));
  }
  if (proto::KindFor(spec.recipe) != side_object->get()->kind() ||
      codecs::CheckCodableWith(spec, side_object->inputs()) != codecs::Error::kOk) {
    return absl::InvalidArgumentError(
        "payload: the image does not match the side object that it names");
  }
  return absl::OkStatus();
}

codecs::EncodeInputs InputsOf(const Sources& sources) {
  codecs::EncodeInputs inputs = codecs::EncodeWith(sources.side_object.inputs());
  inputs.query_magnitudes = sources.statistics.of(proto::Statistic::kQueryMagnitudes);
  inputs.token_scores = sources.statistics.of(proto::Statistic::kTokenScores);
  inputs.parents = sources.parents.views;
  return inputs;
}

}  // namespace

void Puts::Encode(PutOwner op, PutNext next) {
  op->next = std::move(next);
  if (clock_.Now() >= op->request.deadline) {
    return RunNext(std::move(op), absl::DeadlineExceededError("waited too long for its turn"));
  }
  op->began = MonotonicNow();
  absl::Status status = Prepare(*op);
  if (status.ok() && IsForDevice(*op)) return EncodeOnDevice(std::move(op));
  if (status.ok()) status = EncodeHere(*op);
  EndEncode(std::move(op), std::move(status));
}

void Puts::EndEncode(PutOwner op, absl::Status status) {
  seconds(Step::kEncode).Observe(MonotonicNow() - op->began);
  op->sources.reset();
  op->shared = nullptr;
  RunNext(std::move(op), std::move(status));
}

// --- The payload ---------------------------------------------------------------------------------

absl::Status Puts::Prepare(PutOp& op) {
  Extent payload = std::move(op.payload);
  if (op.received_crc32c != op.payload_crc32c) {
    return NoteCorrupt(op.put, "payload");
  }
  if (op.put.has_tokens) {
    const size_t bytes = payload.size_bytes() - TokensBytes(op.put);
    op.tokens.resize(op.put.tokens);
    std::memcpy(op.tokens.data(), payload.bytes().data() + bytes, TokensBytes(op.put));
    payload.ShrinkTo(bytes);
  }
  const proto::StatisticSet kinds = op.put.statistics;
  if (kinds.bits() != 0) {
    const size_t bytes = payload.size_bytes() - StatisticsBytes(kinds, op.spec);
    CAIRN_ASSIGN_OR_RETURN(op.statistics,
                           ReadStatistics(kinds, op.spec, payload.bytes().subspan(bytes)));
    payload.ShrinkTo(bytes);
  }
  if (op.put.form == proto::Form::kImage) {
    CAIRN_RETURN_IF_ERROR(CheckImage(op, payload.bytes()));
    op.image = std::move(payload);
    return absl::OkStatus();
  }
  ChooseEncoding(op, std::move(payload));
  return absl::OkStatus();
}

absl::Status Puts::NoteCorrupt(const proto::Put& put, std::string_view what) {
  corrupt_wire_.Add();
  LogWarn("put", "payload does not match its checksum",
          {{"what", what},
           {"key", proto::Hex(std::span(put.key).first(4))},
           {"space", put.space_id},
           {"place", "wire"}});
  return absl::DataLossError(absl::StrCat("payload: ", ToAbsl(what)));
}

// Checks that the payload is the announced image, in a recipe that the space allows.
absl::Status Puts::CheckImage(PutOp& op, std::span<const std::byte> payload) {
  codecs::ImageView view;
  codecs::Error error = codecs::ParseImage(payload, &view);
  if (error == codecs::Error::kBadChecksum) {
    return NoteCorrupt(op.put, "header and directory");
  }
  if (error != codecs::Error::kOk) {
    return absl::InvalidArgumentError(
        absl::StrCat("payload: not an image: ", ToAbsl(codecs::Name(error))));
  }
  if (view.bytes().size() != payload.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("payload: an image of ", view.bytes().size(), " bytes in ", payload.size()));
  }
  const codecs::ImageSpec& spec = view.spec();
  codecs::ImageSpec expected = op.spec;
  expected.recipe = spec.recipe;
  expected.domain = spec.domain;
  expected.side_object_count = spec.side_object_count;
  expected.side_objects = spec.side_objects;
  if (!(spec == expected)) {
    return absl::InvalidArgumentError(
        "payload: the image has another space, key, group, slice, shape or position");
  }
  CAIRN_RETURN_IF_ERROR(CheckCoding(*op.space, spec, op.is_copy, &op.side_object));
  error = codecs::VerifyTiles(view);
  if (error == codecs::Error::kBadChecksum) {
    return NoteCorrupt(op.put, "tile");
  }
  if (error != codecs::Error::kOk) {
    return absl::InvalidArgumentError(
        absl::StrCat("payload: not an image: ", ToAbsl(codecs::Name(error))));
  }
  op.recipe = spec.recipe;
  return absl::OkStatus();
}

// Decides how to encode a payload in source form.
void Puts::ChooseEncoding(PutOp& op, Extent payload) {
  const codecs::Recipe policy = op.space->recipe();
  const bool keeps_raw = op.keeps_raw || FollowsRaw(op, policy);
  if (keeps_raw && !policy.IsRaw() && !AreCodedWith(op.put.statistics, policy)) {
    op.is_encode_pending = true;
    kept_raw_.Add();
  } else {
    op.side_object = op.space->coding().ChooseRecipe(&op.spec);
    without_side_object_.Add(policy.NeedsSideObject() && op.side_object.get() == nullptr ? 1 : 0);
  }
  Sources& sources = op.sources.emplace();
  sources.payload = std::move(payload);
  sources.side_object = op.side_object.Share();
  sources.parents = FindParents(op);
  for (const proto::Statistic kind :
       {proto::Statistic::kQueryMagnitudes, proto::Statistic::kTokenScores}) {
    sources.statistics.of(kind) = std::move(op.statistics.of(kind));
  }
}

// Returns true if the recipe is `ott` and the parent is stored raw. Upkeep then encodes both. If
// the block were encoded now, it would be local, and all its followers, too.
bool Puts::FollowsRaw(const PutOp& op, const codecs::Recipe& policy) {
  if (!codecs::FollowsChain(policy, op.spec.first_position)) {
    return false;
  }
  const auto pins = index_.Lookup({op.put.space_id, op.put.parent}, op.put.group, op.spec.slice);
  return std::any_of(pins.begin(), pins.end(),
                     [](const CopyPin& pin) { return pin.copy().recipe.IsLossless(); });
}

// Finds the parents of the block. Returns none if they are absent or have changed; the image is
// then encoded as local. Damaged parents are dropped by their readers.
Parents Puts::FindParents(const PutOp& op) {
  Parents parents;
  if (!codecs::FollowsChain(op.spec)) {
    return parents;
  }
  parents.pins = index_.Lookup({op.put.space_id, op.put.parent}, op.put.group, op.spec.slice);
  for (const CopyPin& pin : parents.pins) {
    codecs::ImageView view;
    if (ParsePinned(pin, pin.bytes(), op.space->fingerprint(), &view) != codecs::Error::kOk ||
        codecs::VerifyTiles(view) != codecs::Error::kOk) {
      return {};
    }
    parents.views.push_back(view);
  }
  return parents;
}

// --- The image -----------------------------------------------------------------------------------

// Allocates staging. If staging is full of payloads, allocates in the tier, which can evict.
absl::StatusOr<Extent> Puts::AllocateTarget(PutOp& op, uint64_t bytes) {
  HostTier& host = tiers_.host();
  const BlockName block = op.block();
  absl::StatusOr<Extent> target = host.AllocateStaging(bytes, &block);
  op.is_placed = !target.ok();
  return target.ok() ? std::move(target) : host.Allocate(bytes, &block);
}

absl::Status Puts::EncodeHere(PutOp& op) {
  if (!op.sources.has_value() && op.shared == nullptr) {
    return absl::OkStatus();  // the payload is an image already
  }
  const Sources& sources = op.shared != nullptr ? *op.shared : *op.sources;
  const std::span<const std::byte> source = sources.payload.bytes().subspan(op.payload_offset);
  if (op.payload_offset > 0 && op.spec.recipe.IsRaw()) {
    op.image = std::move(op.sources->payload);  // the image is made in place, around the source
  } else {
    uint64_t bytes_max = 0;
    CAIRN_CHECK(codecs::MaxImageBytes(op.spec, &bytes_max) == codecs::Error::kOk);
    CAIRN_ASSIGN_OR_RETURN(op.image, AllocateTarget(op, bytes_max));
  }
  const codecs::EncodeInputs inputs = InputsOf(sources);
  size_t bytes = 0;
  const codecs::Error error =
      codecs::Encode(backend_, op.spec, source, op.image.bytes(), &bytes, inputs);
  if (error != codecs::Error::kOk) {
    return absl::InternalError(absl::StrCat("encode: ", ToAbsl(codecs::Name(error))));
  }
  op.image.ShrinkTo(bytes);
  op.recipe = codecs::RecordedSpec(op.spec, inputs).recipe;
  return absl::OkStatus();
}

bool Puts::IsForDevice(const PutOp& op) const {
  const codecs::Recipe& recipe = op.spec.recipe;
  // If the recipe is `ott`, the next block may already be waiting for this image.
  const bool is_awaited = recipe.FollowsChain();
  return device_ != nullptr && op.sources.has_value() && !is_awaited && !recipe.IsRaw();
}

void Puts::EncodeOnDevice(PutOwner op) {
  op->shared = std::make_shared<const Sources>(*std::exchange(op->sources, std::nullopt));
  const Sources& sources = *op->shared;
  const codecs::EncodeInputs inputs = InputsOf(sources);
  op->recipe = codecs::RecordedSpec(op->spec, inputs).recipe;
  EncodeWork work = {.spec = op->spec,
                     .source = sources.payload.bytes(),
                     .side_object = sources.side_object.get(),
                     .query_magnitudes = inputs.query_magnitudes,
                     .token_scores = inputs.token_scores,
                     .parents = sources.parents.views,
                     .keeps = op->shared};
  // `put` outlives `room`, because the completion below owns it and runs last.
  work.room = [this, &put = *op](uint64_t bytes) { return AllocateTarget(put, bytes); };
  const absl::Duration left = op->request.deadline - clock_.Now();
  device_->Encode(std::move(work), left, [this, op = std::move(op)](Coded coded) mutable {
    if (coded.is_refused) return TakeEncoded(std::move(op), std::move(coded.result));
    // Also runs if the pool refuses because the daemon stops. The put is completed anyway.
    pool_.Continue(
        [this, op = std::move(op), image = std::move(coded.result)](const absl::Status&) mutable {
          TakeEncoded(std::move(op), std::move(image));
        },
        PathPool::Kind::kPut);
  });
}

void Puts::TakeEncoded(PutOwner op, absl::StatusOr<Extent> image) {
  absl::Status status;
  if (image.ok()) {
    op->image = *std::move(image);
  } else {
    status = EncodeHere(*op);
  }
  EndEncode(std::move(op), std::move(status));
}

}  // namespace cairn
