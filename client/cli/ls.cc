// SPDX-License-Identifier: Apache-2.0
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "base/units.h"
#include "client/cli/block_json.h"
#include "client/cli/command.h"
#include "client/cli/daemon.h"
#include "client/cli/output.h"
#include "proto/convert.h"

namespace cairn::cli {
namespace {

constexpr uint64_t kLimitMax = 1'000'000;
constexpr uint32_t kPageBlocks = 1000;

constexpr Flag kLsFlags[] = {
    kSpaceFlag,
    {"--limit", "COUNT", "list at most COUNT blocks [1000]"},
    {"--after", "KEY", "start after this key"},
};

std::vector<std::string> Row(const v1::BlockInfo& block) {
  uint64_t image_bytes = 0;
  uint64_t source_bytes = 0;
  uint32_t pins = 0;
  std::string recipe;
  std::string tier;
  for (const v1::ImageInfo& image : block.images()) {
    image_bytes += image.image_bytes();
    source_bytes += image.source_bytes();
    pins += image.pin_count();
    recipe = recipe.empty() || recipe == image.recipe() ? image.recipe() : "mixed";
    const std::string name(TierName(image.tier()));
    tier = tier.empty() || tier == name ? name : "mixed";
  }
  return {HexOf(block.key()),
          block.parent().empty() ? "-" : ShortHexOf(block.parent()),
          absl::StrCat(block.first_position()),
          block.complete() ? "yes" : "no",
          absl::StrCat(block.images_size()),
          recipe,
          tier,
          FormatBytes(image_bytes),
          Ratio(source_bytes, image_bytes),
          absl::StrCat(pins),
          absl::StrCat(block.idle_ms() / 1000, "s")};
}

absl::Status RunLs(const Arguments& arguments) {
  CAIRN_ASSIGN_OR_RETURN(const auto admin, OpenAdmin(arguments));
  CAIRN_ASSIGN_OR_RETURN(const v1::SpaceInfo space, ChooseSpace(arguments, *admin));
  CAIRN_ASSIGN_OR_RETURN(const uint64_t limit, arguments.GetNumber("--limit", 1000, kLimitMax));
  if (limit == 0) return absl::InvalidArgumentError("--limit is 0; expected at least 1");
  CAIRN_ASSIGN_OR_RETURN(const absl::Time deadline, DeadlineOf(arguments));
  v1::ListBlocksRequest request;
  request.set_space_id(space.space_id());
  if (arguments.Has("--after")) {
    CAIRN_ASSIGN_OR_RETURN(const BlockKey after, ParseKey(arguments.Get("--after")));
    request.set_after_key(proto::ToBytes(after));
  }
  Progress progress(arguments.shows_progress());
  std::vector<v1::BlockInfo> blocks;
  bool has_more = true;
  while (has_more && blocks.size() < limit) {  // ends: each page has new keys
    request.set_limit(
        static_cast<uint32_t>(std::min<uint64_t>(kPageBlocks, limit - blocks.size())));
    CAIRN_ASSIGN_OR_RETURN(const v1::ListBlocksReply page, admin->ListBlocks(request, deadline));
    blocks.insert(blocks.end(), page.blocks().begin(), page.blocks().end());
    has_more = page.more() && !page.blocks().empty();
    if (has_more) {
      request.set_after_key(page.blocks().rbegin()->key());
    }
    progress.Update("blocks", blocks.size(), std::min(limit, space.block_count()));
  }
  if (arguments.is_json()) {
    JsonWriter json;
    json.BeginObject().Field("space_id", space.space_id()).Field("more", has_more);
    json.Key("blocks").BeginArray();
    for (const v1::BlockInfo& block : blocks) {
      WriteBlock(block, json);
    }
    json.EndArray().EndObject().Print();
    return absl::OkStatus();
  }
  std::vector<std::vector<std::string>> rows;
  for (const v1::BlockInfo& block : blocks) {
    rows.push_back(Row(block));
  }
  PrintTable({"KEY", "PARENT", "POSITION", "COMPLETE", "IMAGES", "RECIPE", "TIER", "BYTES", "RATIO",
              "PINS", "IDLE"},
             rows);
  if (has_more) {
    absl::PrintF("… more: --after %s\n", HexOf(blocks.back().key()));
  }
  return absl::OkStatus();
}

}  // namespace

const Command kLs{
    .name = "ls",
    .operands = "",
    .summary = "Lists the blocks of a space in the order of their keys",
    .examples = "  cairnctl ls --space default/qwen3-8b --limit 20\n",
    .details = "",
    .flags = kLsFlags,
    .operands_min = 0,
    .operands_max = 0,
    .run = RunLs,
};

}  // namespace cairn::cli
