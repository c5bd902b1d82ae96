// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/file.h"
#include "base/status.h"
#include "client/cli/command.h"
#include "client/cli/daemon.h"
#include "client/cli/explain/request.h"
#include "client/cli/output.h"
#include "client/cli/python.h"
#include "proto/convert.h"

namespace cairn::cli {
namespace {

constexpr uint64_t kKeysPerCall = 65536;
constexpr std::string_view kTokenizerFlag = "--tokenizer";

constexpr Flag kExplainFlags[] = {
    kSpaceFlag,
    {kTokenizerFlag, "PATH", "tokenizer.json, or its folder, for requests with a text"},
    {kPythonFlag, "PATH", "interpreter that runs the tokenizer [$CAIRN_PYTHON, else python3]"},
};

// A request with the space that it is for.
struct ComparedSpace {
  std::string path;
  explain::Request request;
  v1::SpaceInfo space;
  std::vector<BlockKey> keys;
  v1::ExplainReply fates;
  uint64_t hit_blocks = 0;  // of the completely stored prefix

  uint64_t tokens_per_block() const { return space.spec().tokens_per_block(); }
};

// Consecutive blocks with the same fate.
struct StateRun {
  uint64_t first = 0, count = 0;
  v1::BlockFate fate;
};

std::string_view ReasonName(v1::BlockFate::Reason reason) {
  switch (reason) {
    case v1::BlockFate::REASON_UNSPECIFIED:
      return "";
    case v1::BlockFate::REASON_NEVER_PUT:
      return "never put";
    case v1::BlockFate::REASON_EVICTED:
      return "evicted";
    case v1::BlockFate::REASON_EXPIRED:
      return "expired";
    case v1::BlockFate::REASON_DELETED:
      return "deleted";
    case v1::BlockFate::REASON_INVALIDATED:
      return "invalidated";
    case v1::BlockFate::REASON_DAMAGED:
      return "damaged";
    case v1::BlockFate::REASON_DEVICE_OUT:
      return "device out";
    case v1::BlockFate::REASON_REFUSED:
      return "put refused";
    default:
      return "unknown";
  }
}

std::string_view StateName(v1::BlockFate::State state) {
  switch (state) {
    case v1::BlockFate::STATE_STORED:
      return "stored";
    case v1::BlockFate::STATE_INCOMPLETE:
      return "incomplete";
    case v1::BlockFate::STATE_ABSENT:
      return "absent";
    default:
      return "unknown";
  }
}

std::string TiersOf(const v1::BlockFate& fate) {
  std::vector<std::string> names;
  for (const int tier : fate.tiers()) {
    names.emplace_back(TierName(static_cast<v1::Tier>(tier)));
  }
  return names.empty() ? "-" : absl::StrJoin(names, ", ");
}

std::string Ago(uint64_t ms) {
  return absl::FormatDuration(absl::Seconds(static_cast<int64_t>(ms / 1000))) + " ago";
}

std::string WhyOf(const v1::BlockFate& fate, uint64_t recorded_ms) {
  if (fate.state() == v1::BlockFate::STATE_INCOMPLETE) {
    return absl::StrCat("a part of group ", fate.missing_group(), " is missing");
  }
  if (fate.state() != v1::BlockFate::STATE_ABSENT) return "-";
  if (fate.reason() == v1::BlockFate::REASON_NEVER_PUT) {
    return absl::StrCat("never put since the daemon started, ", Ago(recorded_ms));
  }
  if (fate.reason() == v1::BlockFate::REASON_UNKNOWN) {
    return absl::StrCat("unknown: never put, or removed before ", Ago(recorded_ms));
  }
  return absl::StrCat(ToAbsl(ReasonName(fate.reason())), " ", Ago(fate.removed_ms()));
}

std::vector<StateRun> RunsOf(const ComparedSpace& side) {
  std::vector<StateRun> runs;
  for (uint64_t i = 0; i < side.keys.size(); ++i) {
    const v1::BlockFate& fate = side.fates.blocks(static_cast<int>(i));
    const bool goes_on =
        !runs.empty() && runs.back().fate.state() == fate.state() &&
        runs.back().fate.reason() == fate.reason() &&
        runs.back().fate.missing_group() == fate.missing_group() &&
        std::equal(runs.back().fate.tiers().begin(), runs.back().fate.tiers().end(),
                   fate.tiers().begin(), fate.tiers().end());
    if (!goes_on) runs.push_back({.first = i, .count = 0, .fate = fate});
    StateRun& run = runs.back();
    ++run.count;
    run.fate.set_removed_ms(std::min(run.fate.removed_ms(), fate.removed_ms()));
  }
  return runs;
}

// Runs the tokenizer, which writes the text's tokens to a file, and reads the file.
absl::Status Tokenize(const Arguments& arguments, ComparedSpace& side) {
  if (!arguments.Has(kTokenizerFlag)) {
    return absl::InvalidArgumentError(
        absl::StrCat(side.path, " has a text: name its --tokenizer, or give its tokens"));
  }
  char path[] = "/tmp/cairnctl-tokens-XXXXXX";
  const int fd = ::mkstemp(path);
  if (fd < 0) return absl::ErrnoToStatus(errno, "cannot make a temporary file");
  ::close(fd);
  const std::string python =
      arguments.Has(kPythonFlag) ? arguments.Get(kPythonFlag) : DefaultPython();
  const absl::Status status = RunModule(python, "cairn.tokenize",
                                        {arguments.Get(kTokenizerFlag), path}, *side.request.text);
  const absl::StatusOr<std::string> tokens = ReadFile(path, explain::kRequestBytesMax);
  ::unlink(path);
  CAIRN_RETURN_IF_ERROR(status);
  CAIRN_RETURN_IF_ERROR(tokens.status());
  CAIRN_ASSIGN_OR_RETURN(const explain::Request read, explain::ParseRequest(*tokens));
  side.request.tokens = read.tokens;
  return absl::OkStatus();
}

absl::StatusOr<ComparedSpace> Load(const Arguments& arguments, AdminClient& admin,
                                   const std::string& path) {
  ComparedSpace side;
  side.path = path;
  CAIRN_ASSIGN_OR_RETURN(const std::string content, ReadFile(path, explain::kRequestBytesMax));
  absl::StatusOr<explain::Request> request = explain::ParseRequest(content);
  if (!request.ok()) return Annotate(request.status(), path);
  side.request = *std::move(request);
  if (side.request.text.has_value()) CAIRN_RETURN_IF_ERROR(Tokenize(arguments, side));
  CAIRN_ASSIGN_OR_RETURN(side.space, ChooseSpace(arguments, admin, side.request.space));
  CAIRN_ASSIGN_OR_RETURN(const proto::SpaceIdentity identity, proto::FromSpec(side.space.spec()));
  if (!side.request.keys.empty()) {
    side.keys = side.request.keys;
    return side;
  }
  side.keys = proto::DeriveChain(proto::FingerprintOf(identity), side.request.tokens,
                                 identity.tokens_per_block, side.request.extras);
  return side;
}

absl::Status Ask(const Arguments& arguments, AdminClient& admin, ComparedSpace& side) {
  CAIRN_ASSIGN_OR_RETURN(const absl::Time deadline, DeadlineOf(arguments));
  for (size_t first = 0; first < side.keys.size(); first += kKeysPerCall) {
    v1::ExplainRequest request;
    request.set_space_id(side.space.space_id());
    const size_t end = std::min(side.keys.size(), first + kKeysPerCall);
    for (size_t i = first; i < end; ++i) request.add_keys(proto::ToBytes(side.keys[i]));
    CAIRN_ASSIGN_OR_RETURN(const v1::ExplainReply reply, admin.Explain(request, deadline));
    if (static_cast<size_t>(reply.blocks_size()) != end - first) {
      return absl::InternalError("the daemon answered with another number of keys");
    }
    side.fates.MergeFrom(reply);
  }
  while (side.hit_blocks < side.keys.size() &&
         side.fates.blocks(static_cast<int>(side.hit_blocks)).state() ==
             v1::BlockFate::STATE_STORED) {
    ++side.hit_blocks;
  }
  return absl::OkStatus();
}

// --- Output

void PrintSide(const ComparedSpace& side, std::string_view name) {
  const uint64_t step = side.tokens_per_block();
  absl::PrintF("%s  %s: %d tokens, %d blocks of %d tokens in space %s/%s (%s)\n", ToAbsl(name),
               side.path, side.request.tokens.size(), side.keys.size(), step,
               side.space.spec().tenant(), side.space.spec().model(),
               ShortHexOf(side.space.fingerprint()));
  if (side.keys.empty()) {
    absl::PrintF("No block: only full blocks are stored.\n\n");
    return;
  }
  std::vector<std::vector<std::string>> rows;
  for (const StateRun& run : RunsOf(side)) {
    const uint64_t past = run.first + run.count;
    rows.push_back({absl::StrCat(run.first, "-", past - 1),
                    absl::StrCat(run.first * step, "-", past * step - 1),
                    std::string(StateName(run.fate.state())), TiersOf(run.fate),
                    WhyOf(run.fate, side.fates.recorded_ms())});
  }
  PrintTable({"BLOCKS", "TOKENS", "STATE", "TIERS", "WHY"}, rows);
  absl::PrintF("A request for these tokens finds %d of %d blocks, %d tokens.\n\n", side.hit_blocks,
               side.keys.size(), side.hit_blocks * step);
}

// Returns sentences about the first difference of two requests.
std::vector<std::string> Compare(const ComparedSpace& a, const ComparedSpace& b,
                                 std::optional<uint64_t>* first_block) {
  if (a.space.fingerprint() != b.space.fingerprint()) {
    *first_block = 0;
    std::vector<std::string> differing = explain::DifferencesOf(a.space.spec(), b.space.spec());
    differing.insert(differing.begin(), "The spaces differ, so that no block is common:");
    return differing;
  }
  if (!a.request.keys.empty() || !b.request.keys.empty()) {
    const auto common = std::min(a.keys.size(), b.keys.size());
    const auto part = std::mismatch(a.keys.begin(), a.keys.begin() + static_cast<ptrdiff_t>(common),
                                    b.keys.begin());
    if (part.first == a.keys.end() && part.second == b.keys.end()) {
      return {"The keys are equal: both requests have the same blocks."};
    }
    *first_block = static_cast<uint64_t>(part.first - a.keys.begin());
    return {absl::StrCat("The keys part at block ", **first_block,
                         ". What they are made of is not known to this command.")};
  }
  const auto parting =
      explain::FindParting(a.request, b.request, static_cast<uint32_t>(a.tokens_per_block()));
  if (!parting.has_value()) {
    return {"The chains are equal: both requests have the same blocks."};
  }
  *first_block = parting->block;
  const uint64_t step = a.tokens_per_block(), first = parting->block * step;
  if (parting->differing.empty()) {
    return {absl::StrCat(a.keys.size() < b.keys.size() ? "A" : "B", " ends before block ",
                         parting->block, " (token ", first, "); all blocks before it are common.")};
  }
  std::vector<std::string> sentences = parting->differing;
  sentences.insert(sentences.begin(),
                   absl::StrCat("The chains part at block ", parting->block, " (tokens ", first,
                                "-", first + step - 1, "):"));
  return sentences;
}

void WriteSide(const ComparedSpace& side, JsonWriter& json) {
  json.BeginObject()
      .Field("file", side.path)
      .Field("space_id", side.space.space_id())
      .Field("fingerprint", HexOf(side.space.fingerprint()))
      .Field("tokens", uint64_t{side.request.tokens.size()})
      .Field("blocks", uint64_t{side.keys.size()})
      .Field("found_blocks", side.hit_blocks)
      .Field("recorded_ms", side.fates.recorded_ms());
  json.Key("runs").BeginArray();
  for (const StateRun& run : RunsOf(side)) {
    json.BeginObject()
        .Field("first_block", run.first)
        .Field("block_count", run.count)
        .Field("first_key", proto::Hex(side.keys[run.first]))
        .Field("state", StateName(run.fate.state()));
    json.Key("tiers").BeginArray();
    for (const int tier : run.fate.tiers()) json.String(TierName(static_cast<v1::Tier>(tier)));
    json.EndArray();
    if (run.fate.state() == v1::BlockFate::STATE_ABSENT) {
      json.Field("reason", ReasonName(run.fate.reason()));
      json.Field("removed_ms", run.fate.removed_ms());
    } else if (run.fate.state() == v1::BlockFate::STATE_INCOMPLETE) {
      json.Field("missing_group", run.fate.missing_group());
    }
    json.EndObject();
  }
  json.EndArray().EndObject();
}

absl::Status ExplainRequests(const Arguments& arguments) {
  CAIRN_ASSIGN_OR_RETURN(const auto admin, OpenAdmin(arguments));
  std::vector<ComparedSpace> sides;
  for (const std::string& path : arguments.positional()) {
    CAIRN_ASSIGN_OR_RETURN(sides.emplace_back(), Load(arguments, *admin, path));
    CAIRN_RETURN_IF_ERROR(Ask(arguments, *admin, sides.back()));
  }
  std::optional<uint64_t> first_block;
  const std::vector<std::string> sentences =
      sides.size() == 2 ? Compare(sides[0], sides[1], &first_block) : std::vector<std::string>();
  if (arguments.is_json()) {
    JsonWriter json;
    json.BeginObject().Key("requests").BeginArray();
    for (const ComparedSpace& side : sides) WriteSide(side, json);
    json.EndArray();
    if (sides.size() == 2) {
      json.Key("first_differing_block");
      first_block.has_value() ? json.Number(*first_block) : json.Null();
      json.Key("differences").BeginArray();
      for (const std::string& sentence : sentences) json.String(sentence);
      json.EndArray();
    }
    json.EndObject().Print();
    return absl::OkStatus();
  }
  for (size_t i = 0; i < sides.size(); ++i) PrintSide(sides[i], i == 0 ? "A" : "B");
  for (size_t i = 0; i < sentences.size(); ++i) {
    absl::PrintF("%s%s\n", i == 0 ? "" : "  ", sentences[i]);
  }
  return absl::OkStatus();
}

}  // namespace

const Command kExplain{
    .name = "explain",
    .operands = "A [B]",
    .summary = "Explains why a request misses, or where two requests part",
    .examples =
        "  cairnctl explain prompt.txt --space default/qwen3-8b\n"
        "  cairnctl explain turn1.json turn2.json --tokenizer ~/models/qwen3-8b\n",
    .details =
        "A and B are files, each of one request: token ids, separated by spaces or commas or as\n"
        "a JSON array, or a JSON object with tokens, text or keys (64 hexadecimal digits each)\n"
        "and with what else the KV depends on:\n"
        "  {\"tokens\": [1, 2, …], \"space\": \"default/qwen3-8b\", \"salt\": \"…\",\n"
        "   \"adapter\": \"…\", \"adapter_revision\": \"…\",\n"
        "   \"media\": [{\"offset\": TOKEN, \"name\": \"…\"}],\n"
        "   \"extras\": [{\"kind\": \"…\", \"offset\": TOKEN, \"value\": \"…\"}]}\n"
        "Prints which tiers have each block and why other blocks are not stored. With two\n"
        "requests, prints the first block that is not common and which input differs. The\n"
        "daemon records the last removals; the reasons of older ones are unknown.\n",
    .flags = kExplainFlags,
    .operands_min = 1,
    .operands_max = 2,
    .run = ExplainRequests,
};

}  // namespace cairn::cli
