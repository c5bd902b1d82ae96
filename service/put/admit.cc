// SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <utility>
#include <variant>

#include "base/check.h"
#include "base/metric.h"
#include "base/status.h"
#include "service/limits.h"
#include "service/put/put.h"

namespace cairn {
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
  const uint64_t aux_bytes = StatisticsBytes(put.statistics, spec);
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

absl::StatusOr<OwnedPut> Admit(PutPath& path, const Session& session, const proto::Frame& frame,
                               absl::Time deadline) {
  const StepTimer timer(path.seconds(PutPath::Step::kAdmit));
  const auto* body = std::get_if<proto::Put>(&frame.body);
  CAIRN_CHECK(body != nullptr);
  const auto admit = [&]() -> absl::StatusOr<OwnedPut> {
    OwnedPut put;
    put.path = &path;
    put.session_id = session.id;
    put.deadline = deadline;
    put.put = *body;
    put.payload_crc32c = frame.payload_crc32c;
    CAIRN_ASSIGN_OR_RETURN(put.space, path.spaces.Find(body->space_id, session.tenant.view()));
    CAIRN_ASSIGN_OR_RETURN(put.spec, CheckGeometry(*put.space, *body));
    CAIRN_RETURN_IF_ERROR(CheckPayloadBytes(put.spec, *body, frame.payload_bytes));
    if (body->is_derived && put.space->recipe().IsLossless()) {
      return absl::FailedPreconditionError(
          "is_derived: a lossless space accepts no KV that was computed from a lossy prefix");
    }
    CAIRN_ASSIGN_OR_RETURN(const std::optional<uint64_t> covered, path.index.Check(ClaimOf(*body)));
    if (covered.has_value()) {
      put.is_duplicate = true;
      put.image_bytes = *covered;
      return put;
    }
    // Payloads leave room for the images that are made of them, and for answers.
    const uint64_t staging_max =
        path.tiers.host().staging_capacity_bytes() / 100 * limits::kPutStagingPercentMax;
    if (path.tiers.host().staging_bytes() + frame.payload_bytes > staging_max) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "staging: payloads in flight use all of their share of ", staging_max, " bytes"));
    }
    CAIRN_ASSIGN_OR_RETURN(put.in_flight, path.sessions.BeginPut(session.id, frame.payload_bytes));
    const BlockClaim claim = ClaimOf(*body);
    CAIRN_ASSIGN_OR_RETURN(put.expected, path.index.ReservePut(claim));
    CAIRN_ASSIGN_OR_RETURN(put.staging,
                           path.tiers.host().AllocateStaging(frame.payload_bytes, &claim.name));
    return put;
  };
  absl::StatusOr<OwnedPut> put = admit();
  if (!put.ok()) {
    path.CountFailure(put.status());
  } else if (put->is_duplicate) {
    path.Count(PutPath::Outcome::kDuplicate);
  }
  return put;
}

}  // namespace cairn
