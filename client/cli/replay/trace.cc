// SPDX-License-Identifier: Apache-2.0
#include "client/cli/replay/trace.h"

#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>

#include <cmath>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "proto/convert.h"

namespace cairn::replay {
namespace {

using google::protobuf::Struct;
using google::protobuf::Value;

absl::Status WrongLine(uint64_t line, std::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("line ", line, ": ", ToAbsl(what)));
}

bool IsWhole(const Value& value) {
  const double number = value.number_value();
  return value.has_number_value() && number >= 0 && number == std::floor(number) &&
         number <= static_cast<double>(kTraceNumberMax);
}

absl::StatusOr<uint64_t> NumberOf(const Struct& fields, const char* name, uint64_t line) {
  const auto found = fields.fields().find(name);
  if (found == fields.fields().end()) {
    return WrongLine(line, absl::StrCat("has no ", name));
  }
  if (!IsWhole(found->second)) {
    return WrongLine(line, absl::StrCat(name, " is not a whole number below 2^53"));
  }
  return static_cast<uint64_t>(found->second.number_value());
}

// Numbers blocks in the order of their first use.
class TraceReader {
 public:
  explicit TraceReader(uint32_t block_tokens) { trace_.block_tokens = block_tokens; }

  absl::Status Add(std::string_view text, uint64_t line) {
    Struct fields;
    const std::string json(text);
    if (json.find_first_not_of(" \t\r") == std::string::npos) {
      return absl::OkStatus();
    }
    if (!google::protobuf::util::JsonStringToMessage(json, &fields).ok()) {
      return WrongLine(line, "is not a JSON object");
    }
    TraceRequest request;
    CAIRN_ASSIGN_OR_RETURN(request.time_ms, NumberOf(fields, "timestamp", line));
    CAIRN_ASSIGN_OR_RETURN(request.tokens, NumberOf(fields, "input_length", line));
    CAIRN_RETURN_IF_ERROR(NumberOf(fields, "output_length", line).status());
    if (!trace_.requests.empty() && request.time_ms < trace_.requests.back().time_ms) {
      return WrongLine(line, "timestamp is before the previous line's");
    }
    return AddChain(request, fields, line);
  }

  Trace Take() && { return std::move(trace_); }
  size_t count() const { return trace_.requests.size(); }

 private:
  absl::Status AddChain(TraceRequest request, const Struct& fields, uint64_t line) {
    const auto ids = fields.fields().find("hash_ids");
    if (ids == fields.fields().end() || !ids->second.has_list_value()) {
      return WrongLine(line, "has no list of hash_ids");
    }
    const auto& values = ids->second.list_value().values();
    const uint64_t blocks =
        request.tokens / trace_.block_tokens + (request.tokens % trace_.block_tokens != 0 ? 1 : 0);
    if (static_cast<uint64_t>(values.size()) != blocks) {
      return WrongLine(line, absl::StrCat("has ", values.size(), " hash_ids where ", request.tokens,
                                          " tokens are ", blocks, " blocks of ",
                                          trace_.block_tokens, " (--block-tokens)"));
    }
    if (values.size() > proto::kMatchKeysMax) {
      return WrongLine(line, absl::StrCat("has more than ", proto::kMatchKeysMax, " hash_ids"));
    }
    if (trace_.chains.size() + blocks > kTraceBlocksMax) {
      return WrongLine(line, absl::StrCat("the trace has more than ", kTraceBlocksMax, " blocks"));
    }
    request.first_block = trace_.chains.size();
    request.block_count = static_cast<uint32_t>(blocks);
    BlockNumber parent = kNoBlock;
    for (const Value& value : values) {
      if (!IsWhole(value)) {
        return WrongLine(line, "a hash id is not a whole number below 2^53");
      }
      const TraceBlock block{static_cast<uint64_t>(value.number_value()), parent};
      const auto [found, is_new] = numbers_.try_emplace(
          {parent, block.hash_id}, static_cast<BlockNumber>(trace_.blocks.size()));
      if (is_new) {
        trace_.blocks.push_back(block);
      }
      parent = found->second;
      trace_.chains.push_back(parent);
    }
    trace_.requests.push_back(request);
    return absl::OkStatus();
  }

  Trace trace_;
  absl::flat_hash_map<std::pair<BlockNumber, uint64_t>, BlockNumber> numbers_;
};

}  // namespace

absl::StatusOr<Trace> ParseTrace(std::string_view text, uint32_t block_tokens,
                                 uint64_t requests_max) {
  TraceReader reader(block_tokens);
  for (uint64_t line = 1; !text.empty() && reader.count() < requests_max; ++line) {
    const size_t end = text.find('\n');
    CAIRN_RETURN_IF_ERROR(reader.Add(text.substr(0, end), line));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  if (reader.count() == 0) {
    return absl::InvalidArgumentError("the trace has no requests");
  }
  return std::move(reader).Take();
}

std::vector<TurnEnd> TurnEndsOf(const Trace& trace) {
  std::vector<TurnEnd> ends(trace.requests.size());
  std::vector<bool> is_later(trace.blocks.size());
  for (size_t i = ends.size(); i-- > 0;) {
    const TraceRequest& request = trace.requests[i];
    const std::span<const BlockNumber> chain = trace.ChainOf(request);
    TurnEnd& end = ends[i];
    while (end.used_later < chain.size() && is_later[chain[end.used_later]]) {
      ++end.used_later;
    }
    const uint64_t full = request.tokens / trace.block_tokens;
    end.goes_on = full > 0 && end.used_later >= full;
    for (const BlockNumber block : chain) {
      is_later[block] = true;
    }
  }
  return ends;
}

Ceiling CeilingOf(const Trace& trace) {
  Ceiling ceiling;
  std::vector<bool> is_there(trace.blocks.size());
  for (const TraceRequest& request : trace.requests) {
    const std::span<const BlockNumber> chain = trace.ChainOf(request);
    uint32_t hits = 0;
    while (hits < chain.size() && is_there[chain[hits]]) {
      ++hits;
    }
    for (const BlockNumber block : chain.subspan(hits)) {
      is_there[block] = true;
    }
    ceiling.block_count += chain.size();
    ceiling.token_count += request.tokens;
    ceiling.hit_blocks += hits;
    ceiling.hit_tokens += trace.TokensOf(request, hits);
    ceiling.request_hits.push_back(hits);
  }
  return ceiling;
}

}  // namespace cairn::replay
