// SPDX-License-Identifier: Apache-2.0
#include "service/peer/offer.h"

#include <cstring>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "proto/convert.h"
#include "service/limits.h"

namespace cairn {
namespace {

std::string PackKeys(std::span<const proto::BlockKey> keys) {
  return proto::ToBytes(std::as_bytes(keys));
}

absl::StatusOr<std::vector<proto::BlockKey>> ParseKeys(std::string_view packed, size_t count_max) {
  if (packed.size() % sizeof(proto::BlockKey) != 0) {
    return absl::InvalidArgumentError("offer: a key has 32 bytes");
  }
  std::vector<proto::BlockKey> keys(packed.size() / sizeof(proto::BlockKey));
  if (keys.empty() || keys.size() > count_max) {
    return absl::InvalidArgumentError(
        absl::StrCat("offer: ", keys.size(), " blocks: 1 to ", count_max, " are possible"));
  }
  std::memcpy(keys.data(), packed.data(), packed.size());
  return keys;
}

}  // namespace

codecs::Slice SliceOf(const GroupSlice& slice) {
  return {.layer_first = static_cast<uint16_t>(slice.layer_first),
          .layer_count = static_cast<uint16_t>(slice.layer_count),
          .head_first = static_cast<uint16_t>(slice.head_first),
          .head_count = static_cast<uint16_t>(slice.head_count)};
}

v1::OfferRequest RequestOf(const BlockOffer& offer) {
  v1::OfferRequest request;
  *request.mutable_space() = proto::ToSpec(offer.identity);
  request.set_recipe(offer.recipe);
  request.set_keys(PackKeys(offer.keys));
  request.set_parents(PackKeys(offer.parents));
  for (const uint64_t bytes : offer.image_bytes) request.add_image_bytes(bytes);
  for (const GroupSlice& slice : offer.slices) {
    *request.add_slices() = proto::ToSlice(slice.group, SliceOf(slice));
  }
  return request;
}

absl::StatusOr<BlockOffer> ParseOffer(const v1::OfferRequest& request, size_t keys_max) {
  BlockOffer offer;
  CAIRN_ASSIGN_OR_RETURN(offer.identity, proto::FromSpec(request.space()));
  offer.recipe = request.recipe();
  CAIRN_ASSIGN_OR_RETURN(offer.keys, ParseKeys(request.keys(), keys_max));
  CAIRN_ASSIGN_OR_RETURN(offer.parents, ParseKeys(request.parents(), keys_max));
  const size_t count = offer.keys.size();
  const auto slices = static_cast<size_t>(request.slices_size());
  if (offer.parents.size() != count || static_cast<size_t>(request.image_bytes_size()) != count ||
      slices == 0 || slices > codecs::kImagesPerBlockMax) {
    return absl::InvalidArgumentError("offer: its lists do not fit its keys");
  }
  offer.image_bytes.assign(request.image_bytes().begin(), request.image_bytes().end());
  for (const uint64_t bytes : offer.image_bytes) {
    if (bytes == 0 || bytes > limits::kOfferBlockBytesMax) {
      return absl::InvalidArgumentError(absl::StrCat("offer: images of ", bytes, " bytes: 1 to ",
                                                     limits::kOfferBlockBytesMax, " a block"));
    }
  }
  const std::vector<codecs::GroupShape> shapes = proto::ShapesOf(offer.identity);
  for (const v1::GroupSlice& message : request.slices()) {
    CAIRN_ASSIGN_OR_RETURN(const codecs::Slice slice, proto::FromSlice(message, shapes));
    offer.slices.push_back({.group = message.group(),
                            .layer_first = slice.layer_first,
                            .layer_count = slice.layer_count,
                            .head_first = slice.head_first,
                            .head_count = slice.head_count});
  }
  return offer;
}

v1::OfferReply ReplyOf(std::span<const OfferAnswer> answers) {
  v1::OfferReply reply;
  for (const OfferAnswer answer : answers) {
    reply.mutable_answers()->push_back(static_cast<char>(answer));
  }
  return reply;
}

absl::StatusOr<std::vector<OfferAnswer>> ParseAnswers(const v1::OfferReply& reply, size_t count) {
  std::vector<OfferAnswer> answers;
  for (const char c : reply.answers()) {
    if (c < static_cast<char>(OfferAnswer::kTaken) || c > static_cast<char>(OfferAnswer::kFailed)) {
      break;
    }
    answers.push_back(static_cast<OfferAnswer>(c));
  }
  if (answers.size() != count || reply.answers().size() != count) {
    return absl::InvalidArgumentError("not an answer to the offer");
  }
  return answers;
}

}  // namespace cairn
