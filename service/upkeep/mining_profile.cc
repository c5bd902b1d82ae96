// SPDX-License-Identifier: Apache-2.0
// From a sample to a profile that is judged and installed.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/status.h"
#include "codecs/image/decode.h"
#include "codecs/image/encode.h"
#include "codecs/image/settle.h"
#include "proto/block_key.h"
#include "service/upkeep/mining.h"

namespace cairn {

std::string_view Mining::Proceed(Work& work, absl::Time until, bool* is_done) {
  if (const std::string_view reason = ReasonToEnd(work); !reason.empty()) {
    return reason;
  }
  const codecs::GroupShape& shape = work.target.space->groups()[work.target.group];
  const uint32_t heads = uint32_t{shape.layers} * shape.heads;
  do {
    if (work.miner->NeedsPass()) {
      if (!Show(work).ok()) {
        return "a tile of the sample is damaged";
      }
    } else if (work.head < heads) {
      if (!Judge(work).ok()) {
        return "a tile of the sample is damaged";
      }
    } else if (work.profile_bytes > work.exact_bytes) {
      return "a block that it is not made of is larger with it than exact";
    } else {
      *is_done = Install(work).ok();
      return *is_done ? "" : "the profile cannot be kept";
    }
  } while (MonotonicNow() < until);
  return {};
}

absl::Status Mining::DecodeHead(Work& work, const SampleBlock& block, const codecs::Slice& slice) {
  const codecs::GroupShape& shape = work.target.space->groups()[work.target.group];
  uint64_t bytes = 0;
  CAIRN_CHECK(codecs::SourceBytes(shape.tile, slice, block.tokens, &bytes) == codecs::Error::kOk);
  work.source.resize(bytes);
  const codecs::ImageView& view = *ViewOf(block, slice);
  codecs::Error error = codecs::VerifyTiles(view, slice);
  if (error == codecs::Error::kOk) {
    error = codecs::Decode(backend_, view, slice, work.source);
  }
  return error == codecs::Error::kOk ? absl::OkStatus()
                                     : absl::DataLossError(ToAbsl(codecs::Name(error)));
}

absl::Status Mining::Show(Work& work) {
  const SampleBlock& block = work.blocks[work.block];
  const codecs::GroupShape& shape = work.target.space->groups()[work.target.group];
  const codecs::Slice slice = SliceOfHead(shape, work.head);
  if (work.strip == 0) {
    CAIRN_RETURN_IF_ERROR(DecodeHead(work, block, slice));
  }
  const uint32_t first = work.strip * codecs::kStripTokens;
  const uint32_t tokens = std::min(codecs::kStripTokens, block.tokens - first);
  std::span<const std::byte> tiles = work.source;
  for (uint32_t plane = 0; plane < codecs::PlaneCount(shape.tile.kind); ++plane) {
    const uint64_t row_bytes =
        codecs::TileBytes(shape.tile, codecs::PlaneAt(shape.tile.kind, plane), 1);
    work.miner->Add(
        {.at = {slice.layer_first, slice.head_first},
         .plane = plane,
         .part = static_cast<uint32_t>(work.block * codecs::kSampleParts / work.blocks.size()),
         .first_position = block.first_position + first,
         .tokens = tokens,
         .source = tiles.subspan(first * row_bytes, tokens * row_bytes)});
    tiles = tiles.subspan(block.tokens * row_bytes);
  }
  if (first + tokens < block.tokens) {
    ++work.strip;
    return absl::OkStatus();
  }
  work.strip = 0;
  if (++work.head == uint32_t{shape.layers} * shape.heads) {
    work.head = 0;
    if (++work.block == work.blocks.size()) {
      work.block = 0;
      work.miner->EndPass();
    }
  }
  return absl::OkStatus();
}

absl::Status Mining::Judge(Work& work) {
  if (work.profile == nullptr) {
    std::vector<std::byte> bytes;
    CAIRN_CHECK(work.miner->Write(&bytes) == codecs::Error::kOk);
    CAIRN_ASSIGN_OR_RETURN(work.profile, SideObject::Parse(proto::SideObjectKind::kProfile, bytes));
  }
  const codecs::GroupShape& shape = work.target.space->groups()[work.target.group];
  const codecs::Slice slice = SliceOfHead(shape, work.head);
  CAIRN_RETURN_IF_ERROR(DecodeHead(work, *work.judge, slice));
  codecs::ImageSpec spec = ViewOf(*work.judge, slice)->spec();
  spec.slice = slice;
  const codecs::DecodeInputs inputs = work.profile->content().inputs();
  for (uint64_t* sum : {&work.exact_bytes, &work.profile_bytes}) {
    const codecs::Error error =
        sum == &work.exact_bytes
            ? codecs::SetRecipe("exact", {}, {}, &spec)
            : codecs::SetRecipe(work.recipe, inputs, work.profile->id(), &spec);
    uint64_t bytes_max = 0;
    CAIRN_CHECK(error == codecs::Error::kOk &&
                codecs::MaxImageBytes(spec, &bytes_max) == codecs::Error::kOk);
    work.image.resize(bytes_max);
    size_t bytes = 0;
    CAIRN_CHECK(codecs::Encode(backend_, spec, work.source, work.image, &bytes,
                               codecs::EncodeWith(inputs)) == codecs::Error::kOk);
    *sum += bytes;
  }
  ++work.head;
  return absl::OkStatus();
}

absl::Status Mining::Install(const Work& work) {
  const std::span<const std::byte> bytes = work.profile->bytes();
  SpaceEntry& space = *work.target.space;
  CAIRN_ASSIGN_OR_RETURN(const SpaceCoding::Installed installed,
                         space.coding().Install(work.target.group, proto::SideObjectKind::kProfile,
                                                bytes, SideObjectOrigin::kMined));
  mined_.Add();
  replaced_.Add(work.is_replacing ? 1 : 0);
  LogInfo("upkeep", work.is_replacing ? "mined a profile again" : "mined a profile",
          {{"space", space.id()},
           {"group", work.target.group},
           {"tokens", work.tokens},
           {"query_tokens", work.query_tokens},
           {"bytes", bytes.size()},
           {"id", proto::Hex(std::as_bytes(std::span(installed.id)).first(4))}});
  return absl::OkStatus();
}

}  // namespace cairn
