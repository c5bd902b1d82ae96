// SPDX-License-Identifier: Apache-2.0
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
#include "service/index/pin.h"
#include "service/path_pool.h"
#include "service/put/steps.h"

namespace cairn {
namespace {

absl::Status Corrupt(PutPath& path, const proto::Put& put, std::string_view what) {
  path.corrupt_wire.Add();
  LogWarn("put", "payload does not match its checksum",
          {{"what", what},
           {"key", proto::Hex(std::span(put.key).first(4))},
           {"space", put.space_id},
           {"place", "wire"}});
  return absl::DataLossError(absl::StrCat("payload: ", ToAbsl(what)));
}

// A recipe that the space allows, and what it needs. Sets *side_object to what the image names.
absl::Status CheckCoding(const SpaceEntry& space, const codecs::ImageSpec& spec,
                         SideObjectRef* side_object) {
  codecs::ImageSpec wanted = spec;
  wanted.recipe = space.recipe();
  if (!spec.recipe.IsLossless() && !space.coding().IsInForce(spec.recipe) &&
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

// The image is to be exactly the one that the put announced, coded in a way that the space allows.
absl::Status CheckImage(PutPath& path, const SpaceEntry& space, const proto::Put& put,
                        codecs::ImageSpec expected, std::span<const std::byte> payload,
                        Encoded* encoded) {
  codecs::ImageView view;
  codecs::Error error = codecs::ParseImage(payload, &view);
  if (error == codecs::Error::kBadChecksum) {
    return Corrupt(path, put, "header and directory");
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
  expected.recipe = spec.recipe;
  expected.domain = spec.domain;
  expected.side_object_count = spec.side_object_count;
  expected.side_objects = spec.side_objects;
  if (!(spec == expected)) {
    return absl::InvalidArgumentError(
        "payload: the image has another space, key, group, slice, shape or position");
  }
  CAIRN_RETURN_IF_ERROR(CheckCoding(space, spec, &encoded->side_object));
  error = codecs::VerifyTiles(view);
  if (error == codecs::Error::kBadChecksum) {
    return Corrupt(path, put, "tile");
  }
  if (error != codecs::Error::kOk) {
    return absl::InvalidArgumentError(
        absl::StrCat("payload: not an image: ", ToAbsl(codecs::Name(error))));
  }
  encoded->recipe = spec.recipe;
  return absl::OkStatus();
}

// Nothing if they are not resident or have changed: the image is then encoded as local. Readers of
// the damaged ones drop them.
Parents ParentsOf(PutPath& path, const SpaceEntry& space, const proto::Put& put,
                  const codecs::ImageSpec& spec) {
  Parents parents;
  if (!codecs::FollowsChain(spec)) {
    return parents;
  }
  parents.pins = path.index.Lookup({put.space_id, put.parent}, put.group, spec.slice);
  for (const CopyPin& pin : parents.pins) {
    codecs::ImageView view;
    if (ParsePinned(pin, pin.bytes(), space.fingerprint(), &view) != codecs::Error::kOk ||
        codecs::VerifyTiles(view) != codecs::Error::kOk) {
      return {};
    }
    parents.views.push_back(view);
  }
  return parents;
}

// A block of ott whose block before is kept raw waits for upkeep with it: encoded now it would be
// local, and all that follow it.
bool FollowsRaw(PutPath& path, const proto::Put& put, const codecs::ImageSpec& spec,
                const codecs::Recipe& policy) {
  if (!codecs::FollowsChain(policy, spec.first_position)) {
    return false;
  }
  const auto pins = path.index.Lookup({put.space_id, put.parent}, put.group, spec.slice);
  return std::any_of(pins.begin(), pins.end(),
                     [](const CopyPin& pin) { return pin.copy().recipe.IsLossless(); });
}

// Staging first; when that is full of payloads, straight into the tier, which can make room.
absl::StatusOr<Extent> AllocateTarget(HostTier& host, uint64_t bytes, const BlockName& block,
                                      bool* is_placed) {
  absl::StatusOr<Extent> target = host.AllocateStaging(bytes, &block);
  *is_placed = !target.ok();
  return target.ok() ? std::move(target) : host.Allocate(bytes, &block);
}

// What becomes of a payload in source form.
void ChooseEncoding(PutRun& run, Extent payload) {
  OwnedPut& put = run.put;
  PutPath& path = *put.path;
  run.spec = put.spec;  // raw, so far
  const codecs::Recipe policy = put.space->recipe();
  const bool keeps_raw = put.keeps_raw || FollowsRaw(path, put.put, run.spec, policy);
  if (keeps_raw && !policy.IsRaw() && !AreCodedWith(put.put.statistics, policy)) {
    run.encoded.is_encode_pending = true;
    path.kept_raw.Add();
  } else {
    run.encoded.side_object = put.space->coding().ChooseRecipe(&run.spec);
    path.without_side_object.Add(
        policy.NeedsSideObject() && run.encoded.side_object.get() == nullptr ? 1 : 0);
  }
  Sources& sources = run.sources.emplace();
  sources.payload = std::move(payload);
  sources.side_object = run.encoded.side_object.Share();
  sources.parents = ParentsOf(path, *put.space, put.put, run.spec);
  for (const proto::Statistic kind :
       {proto::Statistic::kQueryMagnitudes, proto::Statistic::kTokenScores}) {
    sources.statistics.of(kind) = std::move(put.statistics.of(kind));
  }
}

codecs::EncodeInputs InputsOf(const Sources& sources) {
  codecs::EncodeInputs inputs = codecs::EncodeWith(sources.side_object.inputs());
  inputs.query_magnitudes = sources.statistics.of(proto::Statistic::kQueryMagnitudes);
  inputs.token_scores = sources.statistics.of(proto::Statistic::kTokenScores);
  inputs.parents = sources.parents.views;
  return inputs;
}

}  // namespace

absl::Status Prepare(PutRun& run, uint32_t crc32c) {
  OwnedPut& put = run.put;
  PutPath& path = *put.path;
  run.began = MonotonicNow();
  Extent payload = std::move(put.staging);
  if (crc32c != put.payload_crc32c) {
    return Corrupt(path, put.put, "payload");
  }
  const proto::StatisticSet kinds = put.put.statistics;
  if (kinds.bits() != 0) {
    const size_t bytes = payload.size_bytes() - StatisticsBytes(kinds, put.spec);
    CAIRN_ASSIGN_OR_RETURN(put.statistics,
                           ReadStatistics(kinds, put.spec, payload.bytes().subspan(bytes)));
    payload.ShrinkTo(bytes);
  }
  if (put.put.form == proto::Form::kImage) {
    CAIRN_RETURN_IF_ERROR(
        CheckImage(path, *put.space, put.put, put.spec, payload.bytes(), &run.encoded));
    run.encoded.image = std::move(payload);
    return absl::OkStatus();
  }
  ChooseEncoding(run, std::move(payload));
  return absl::OkStatus();
}

absl::Status Encode(PutRun& run) {
  if (!run.sources.has_value() && run.shared == nullptr) {
    return absl::OkStatus();
  }
  const Sources& sources = run.shared != nullptr ? *run.shared : *run.sources;
  const OwnedPut& put = run.put;
  PutPath& path = *put.path;
  uint64_t bytes_max = 0;
  CAIRN_CHECK(codecs::MaxImageBytes(run.spec, &bytes_max) == codecs::Error::kOk);
  CAIRN_ASSIGN_OR_RETURN(run.encoded.image,
                         AllocateTarget(path.tiers.host(), bytes_max,
                                        {put.put.space_id, put.put.key}, &run.encoded.is_placed));
  const codecs::EncodeInputs inputs = InputsOf(sources);
  size_t bytes = 0;
  const codecs::Error error = codecs::Encode(path.backend, run.spec, sources.payload.bytes(),
                                             run.encoded.image.bytes(), &bytes, inputs);
  if (error != codecs::Error::kOk) {
    return absl::InternalError(absl::StrCat("encode: ", ToAbsl(codecs::Name(error))));
  }
  run.encoded.image.ShrinkTo(bytes);
  run.encoded.recipe = codecs::RecordedSpec(run.spec, inputs).recipe;
  return absl::OkStatus();
}

bool IsForDevice(const PutRun& run) {
  const codecs::Recipe& recipe = run.spec.recipe;
  // The next block of a chain of ott may be here already, and goes on with this one's image.
  const bool is_awaited = recipe.FollowsChain();
  return run.put.path->device != nullptr && run.sources.has_value() && !is_awaited &&
         !recipe.IsRaw();
}

bool EncodeOnDevice(std::unique_ptr<PutRun>& run) {
  PutPath& path = *run->put.path;
  run->shared = std::make_shared<const Sources>(*std::exchange(run->sources, std::nullopt));
  const Sources& sources = *run->shared;
  const codecs::EncodeInputs inputs = InputsOf(sources);
  run->encoded.recipe = codecs::RecordedSpec(run->spec, inputs).recipe;
  EncodeWork work = {.spec = run->spec,
                     .source = sources.payload.bytes(),
                     .side_object = sources.side_object.get(),
                     .query_magnitudes = inputs.query_magnitudes,
                     .token_scores = inputs.token_scores,
                     .parents = sources.parents.views,
                     .keeps = run->shared};
  work.room = [&host = path.tiers.host(), raw = run.get()](uint64_t bytes) {
    const BlockName block = {raw->put.put.space_id, raw->put.put.key};
    return AllocateTarget(host, bytes, block, &raw->encoded.is_placed);
  };
  const absl::Duration left = run->put.deadline - path.clock.Now();
  // The codec runs every completion, so the run has an owner again in either case.
  PutRun* const released = run.release();
  CodecDone done = [&pool = path.pool, released](absl::StatusOr<Extent> image) {
    PathPool::Job job = [released, image = std::move(image)]() mutable {
      Resume(std::unique_ptr<PutRun>(released), std::move(image));
    };
    if (!pool.Continue(std::move(job), PathPool::Kind::kPut).ok()) {
      job();  // the daemon stops: the put is not to suffer from it
    }
  };
  if (path.device->Encode(work, left, done)) {
    return true;
  }
  run.reset(released);
  return false;
}

}  // namespace cairn
