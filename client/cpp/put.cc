// SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <optional>
#include <string>
#include <type_traits>
#include <variant>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "client/cpp/transfer.h"
#include "codecs/backend/backends.h"
#include "codecs/checksum/checksum.h"
#include "codecs/image/chain.h"
#include "codecs/image/crc_join.h"
#include "codecs/image/encode.h"
#include "codecs/image/settle.h"

namespace cairn {
namespace {

absl::Status WrongSize(std::string_view what, uint64_t bytes, uint64_t expected) {
  return absl::InvalidArgumentError(
      absl::StrCat(ToAbsl(what), " has ", bytes, " bytes; the slice has ", expected));
}

// Returns the CRC of a payload that is sent from its place. An image has the CRCs of its tiles;
// joining them saves a pass over the image. The daemon computes the CRC of the bytes that arrive,
// and so detects a tile that does not match its image. It also refuses bytes that are not an image.
uint32_t CrcOf(std::span<const std::byte> bytes, proto::Form form) {
  codecs::ImageView view;
  if (form == proto::Form::kImage && codecs::ParseImage(bytes, &view) == codecs::Error::kOk &&
      view.bytes().size() == bytes.size()) {
    return codecs::JoinCrc32c(view);
  }
  return codecs::Crc32c(bytes);
}

// Type URL of the status payload: a PutResult, as in memory.
constexpr absl::string_view kNotDurableUrl = "cairn/not_durable";

absl::Status NotDurable(const PutResult& result) {
  static_assert(std::is_trivially_copyable_v<PutResult>);
  absl::Status status = absl::AbortedError(
      absl::StrCat("stored, but not durable: ", ToAbsl(Name(result.durability))));
  status.SetPayload(kNotDurableUrl, absl::Cord(absl::string_view(
                                        reinterpret_cast<const char*>(&result), sizeof(result))));
  return status;
}

}  // namespace

bool PutExchange::IsEncodedHere() const {
  return request_.encode == Side::kClient &&
         !codecs::FollowsChain(context_.recipe, request_.first_position);
}

const void* PutExchange::place() const {
  if (const auto* source = std::get_if<SourceBytes>(&request_.source)) {
    return IsEncodedHere() ? nullptr : source->bytes.data();
  }
  if (const auto* image = std::get_if<ImageBytes>(&request_.source)) {
    return image->bytes.data();
  }
  return nullptr;
}

absl::Status PutExchange::SetStatistics() {
  const std::span<const float> given[] = {request_.query_squares, request_.query_magnitudes,
                                          request_.token_scores};
  sent_ = {};
  sent_bytes_ = 0;
  for (const proto::Statistic kind : proto::kStatistics) {
    const auto place = static_cast<size_t>(kind);
    const uint64_t count = given[place].size();
    const uint64_t expected = proto::CountOf(kind, slice_.tile, slice_.slice, slice_.tokens);
    if (count == 0) {
      continue;
    }
    if (count != expected) {
      return absl::InvalidArgumentError(absl::StrCat(proto::Name(kind), " has ", count,
                                                     " values; the slice has ", expected, " (",
                                                     proto::ShapeOf(kind), ")"));
    }
    const bool is_for_coder = kind != proto::Statistic::kQuerySquares;
    if (is_for_coder && std::holds_alternative<ImageBytes>(request_.source)) {
      return absl::InvalidArgumentError(
          absl::StrCat(proto::Name(kind), ": the source is an image, which is encoded already"));
    }
    if (!is_for_coder || (!IsEncodedHere() && proto::IsCodedWith(context_.recipe, kind))) {
      sent_[place] = given[place];
      sent_bytes_ += given[place].size_bytes();
    }
  }
  return absl::OkStatus();
}

absl::Status PutExchange::SetNames(proto::Put* put) {
  const BlockNames& names = request_.names;
  CAIRN_ASSIGN_OR_RETURN(const auto hash, proto::EngineHash::From(names.hash, "names.hash"));
  CAIRN_ASSIGN_OR_RETURN(const auto parent, proto::EngineHash::From(names.parent, "names.parent"));
  if (hash.empty() && !parent.empty()) {
    return absl::InvalidArgumentError("names.hash is empty, but names.parent is not");
  }
  if (!names.tokens.empty() && names.tokens.size() != slice_.tokens) {
    return absl::InvalidArgumentError(absl::StrCat("names.tokens has ", names.tokens.size(),
                                                   " ids; a block has ", slice_.tokens));
  }
  if (context_.takes_engine_hashes) {
    put->engine_hash = hash;
    put->engine_parent = parent;
  }
  sent_tokens_ = context_.takes_tokens ? names.tokens : std::span<const uint32_t>();
  put->has_tokens = !sent_tokens_.empty();
  sent_bytes_ += sent_tokens_.size_bytes();
  return absl::OkStatus();
}

// Returns a caller's payload. If the transport would copy it anyway, copies it here, with its
// checksum in the same pass.
PutExchange::Payload PutExchange::PlacePayload(Scratch& scratch, std::span<const std::byte> bytes,
                                               proto::Form form) const {
  if (sent_bytes_ == 0 && (is_lent || !scratch.is_region_shared())) {
    return {bytes, CrcOf(bytes, form), form};
  }
  const std::span<std::byte> copy = scratch.Region(bytes.size() + sent_bytes_);
  const uint32_t crc = codecs::CopyCrc32c(0, copy.data(), bytes);
  return {copy.first(bytes.size()), crc, form, copy.subspan(bytes.size())};
}

absl::StatusOr<PutExchange::Payload> PutExchange::MakeSource(Scratch& scratch) const {
  const uint64_t source_bytes = SourceBytesOf(slice_);
  if (const auto* source = std::get_if<SourceBytes>(&request_.source)) {
    if (source->bytes.size() != source_bytes) {
      return WrongSize("source", source->bytes.size(), source_bytes);
    }
    return PlacePayload(scratch, source->bytes, proto::Form::kSource);
  }
  const ViewShape shape = slice_.view_shape();
  const auto& views = std::get<PlaneViews>(request_.source);
  CAIRN_RETURN_IF_ERROR(Validate(shape, views, ViewUse::kSource));
  const std::span<std::byte> payload = scratch.Region(source_bytes + sent_bytes_);
  const size_t head_bytes = HeadBytes(shape);
  uint32_t crc = 0;
  size_t offset = 0;
  for (uint16_t layer = 0; layer < shape.layers; ++layer) {
    for (uint16_t head = 0; head < shape.heads; ++head, offset += head_bytes) {
      const std::span<std::byte> target = payload.subspan(offset, head_bytes);
      GatherHead(shape, views, layer, head, target);
      crc = codecs::ExtendCrc32c(crc, target);
    }
  }
  return Payload{payload.first(source_bytes), crc, proto::Form::kSource,
                 payload.subspan(source_bytes)};
}

// Sets the space's recipe and returns its side object. Like the daemon, sets `exact` if the recipe
// needs a side object and there is none.
absl::StatusOr<SideObjectHandle> PutExchange::SetRecipe(codecs::ImageSpec* spec) const {
  SideObjectHandle current;
  if (const auto kind = proto::KindFor(context_.recipe); kind.has_value()) {
    CAIRN_ASSIGN_OR_RETURN(current, context_.current({slice_.group, *kind}));
  }
  const Digest id = current == nullptr ? Digest{} : current->id();
  return codecs::SetRecipeOrExact(context_.recipe, InputsOf(current), id, spec)
             ? current
             : SideObjectHandle();
}

absl::StatusOr<PutExchange::Payload> PutExchange::MakeImage(Scratch& scratch) const {
  const ViewShape shape = slice_.view_shape();
  PlaneViews source;
  if (const auto* given = std::get_if<SourceBytes>(&request_.source)) {
    if (given->bytes.size() != SourceBytesOf(slice_)) {
      return WrongSize("source", given->bytes.size(), SourceBytesOf(slice_));
    }
    // The source is only read.
    source = ContiguousViews(shape, const_cast<std::byte*>(given->bytes.data()));
  } else {
    source = std::get<PlaneViews>(request_.source);
    CAIRN_RETURN_IF_ERROR(Validate(shape, source, ViewUse::kSource));
  }
  codecs::ImageSpec spec =
      SpecOf(slice_, context_.fingerprint, request_.key, request_.first_position);
  CAIRN_ASSIGN_OR_RETURN(const SideObjectHandle side_object, SetRecipe(&spec));
  CAIRN_ASSIGN_OR_RETURN(const codecs::Backend* backend, FindBackend());
  const std::span<std::byte> target = scratch.Region(ImageBytesMaxOf(slice_) + sent_bytes_);
  size_t bytes = 0;
  codecs::EncodeInputs inputs = codecs::EncodeWith(InputsOf(side_object));
  inputs.query_magnitudes = request_.query_magnitudes;
  inputs.token_scores = request_.token_scores;
  const std::span<std::byte> gathered = scratch.Heap(codecs::ScratchBytes(spec, source));
  CAIRN_RETURN_IF_ERROR(FromCodec(
      codecs::Encode(*backend, spec, source, gathered, target, &bytes, inputs), "encode"));
  const std::span<const std::byte> image = target.first(bytes);
  return Payload{image, CrcOf(image, proto::Form::kImage), proto::Form::kImage,
                 target.subspan(bytes)};
}

absl::StatusOr<PutExchange::Payload> PutExchange::MakePayload(Scratch& scratch) const {
  if (const auto* image = std::get_if<ImageBytes>(&request_.source)) {
    return PlacePayload(scratch, image->bytes, proto::Form::kImage);
  }
  return IsEncodedHere() ? MakeImage(scratch) : MakeSource(scratch);
}

absl::Status PutExchange::Prepare(Scratch& scratch, proto::Frame& request, transport::Call& call) {
  proto::Put put = {.space_id = context_.space_id,
                    .key = request_.key,
                    .parent = request_.parent,
                    .first_position = request_.first_position,
                    .group = slice_.group,
                    .slice = slice_.range(),
                    .tokens = slice_.tokens,
                    .is_derived = request_.is_derived,
                    .is_durable = request_.is_durable};
  CAIRN_RETURN_IF_ERROR(SetStatistics());
  CAIRN_RETURN_IF_ERROR(SetNames(&put));
  CAIRN_ASSIGN_OR_RETURN(Payload payload, MakePayload(scratch));
  const auto append = [&payload](std::span<const std::byte> values) {
    payload.crc = codecs::CopyCrc32c(payload.crc, payload.rest.data(), values);
    payload.rest = payload.rest.subspan(values.size());
    payload.bytes = {payload.bytes.data(), payload.bytes.size() + values.size()};
  };
  for (const proto::Statistic kind : proto::kStatistics) {
    const auto values = std::as_bytes(sent_[static_cast<size_t>(kind)]);
    if (!values.empty()) {
      put.statistics.Add(kind);
      append(values);
    }
  }
  if (put.has_tokens) {
    append(std::as_bytes(sent_tokens_));
  }
  put.form = payload.form;
  if (payload.bytes.empty() || payload.bytes.size() > context_.payload_bytes_max) {
    return absl::InvalidArgumentError(absl::StrCat("the payload has ", payload.bytes.size(),
                                                   " bytes; the limits are 1 to ",
                                                   context_.payload_bytes_max));
  }
  request.payload_crc32c = payload.crc;
  request.body = std::move(put);
  call.payload = payload.bytes;
  wire_bytes_ = payload.bytes.size();
  return absl::OkStatus();
}

void PutExchange::Finish(const proto::Frame& reply, std::span<const std::byte> /*payload*/) {
  const auto* put = std::get_if<proto::PutReply>(&reply.body);
  if (put == nullptr) {
    return Fail(absl::InternalError("the daemon answered a put with another kind of frame"));
  }
  const PutResult result = {.is_duplicate = put->is_duplicate,
                            .image_bytes = put->image_bytes,
                            .durability = put->durability};
  stored_ = result;
  if (request_.is_durable && result.durability != Durability::kDurable) {
    return Fail(NotDurable(result));
  }
  result_ = result;
}

std::optional<PutResult> NotDurableOf(const absl::Status& status) {
  const auto payload = status.GetPayload(kNotDurableUrl);  // of Abseil's optional
  PutResult result;
  if (!payload.has_value() || payload->size() != sizeof(result)) {
    return std::nullopt;
  }
  const std::string bytes(*payload);
  std::memcpy(&result, bytes.data(), sizeof(result));
  return result;
}

}  // namespace cairn
