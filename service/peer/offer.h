// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a member that drains offers to another one, and the answer.
//
// All functions are pure.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cairn/v1/peer.pb.h"
#include "client/cpp/block_io.h"
#include "proto/block_key.h"

namespace cairn {

// Blocks of one space, whose images have the same slices. A block comes after those before it in
// its chain. A value.
struct BlockOffer {
  proto::SpaceIdentity identity;
  std::string recipe;  // of the space, if the member has to make it
  std::vector<proto::BlockKey> keys;
  // Of each key: the block before it in its chain, all zero for none, and the bytes of its images,
  // which are not 0. The member that takes the block reads no more.
  std::vector<proto::BlockKey> parents;
  std::vector<uint64_t> image_bytes;
  std::vector<GroupSlice> slices;  // of the images of each block; counts are not 0
};

// The numbers are those of cairn.v1.OfferAnswer.
enum class OfferAnswer : uint8_t { kTaken = 1, kHad = 2, kDeclined = 3, kFailed = 4 };

// REQUIRES: a slice of an offer, which fits.
codecs::Slice SliceOf(const GroupSlice& slice);

// Sets all fields but `self`.
v1::OfferRequest RequestOf(const BlockOffer& offer);
// Parses an offer, which is not trusted. Errors: InvalidArgument (it is not one, or has more than
// `keys_max` keys).
absl::StatusOr<BlockOffer> ParseOffer(const v1::OfferRequest& request, size_t keys_max);

v1::OfferReply ReplyOf(std::span<const OfferAnswer> answers);
// Parses the answer to an offer of `count` blocks, which is not trusted. Errors: InvalidArgument.
absl::StatusOr<std::vector<OfferAnswer>> ParseAnswers(const v1::OfferReply& reply, size_t count);

}  // namespace cairn
