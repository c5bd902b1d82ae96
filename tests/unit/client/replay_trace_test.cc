// SPDX-License-Identifier: Apache-2.0
// Traces of `cairnctl replay`: what is read of them, what is refused, and their ceiling.
#include "client/cli/replay/trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace cairn::replay {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr uint32_t kTokens = 100;  // of a block of these traces

std::string Line(uint64_t time_ms, uint64_t tokens, const std::string& ids) {
  return absl::StrCat("{\"timestamp\": ", time_ms, ", \"input_length\": ", tokens,
                      ", \"output_length\": 3, \"hash_ids\": [", ids, "]}\n");
}

std::vector<uint64_t> IdsOf(const Trace& trace, const TraceRequest& request) {
  std::vector<uint64_t> ids;
  for (const BlockNumber block : trace.ChainOf(request)) ids.push_back(trace.blocks[block].hash_id);
  return ids;
}

TEST(ReplayTraceTest, RequestsAreReadAsTheyStand) {
  const auto trace = ParseTrace(Line(0, 201, "7, 8, 9") + "\r\n" +
                                    "{\"hash_ids\":[7,9007199254740991],\"output_length\":0,"
                                    "\"type\":\"chat\",\"input_length\":200,\"timestamp\":5}",
                                kTokens);
  ASSERT_TRUE(trace.ok()) << trace.status();
  ASSERT_EQ(trace->requests.size(), 2u);
  EXPECT_THAT(IdsOf(*trace, trace->requests[0]), ElementsAre(7, 8, 9));
  EXPECT_THAT(IdsOf(*trace, trace->requests[1]), ElementsAre(7, kTraceNumberMax));
  EXPECT_THAT(trace->ChainOf(trace->requests[1]), ElementsAre(0, 3));
  EXPECT_EQ(trace->requests[1].time_ms, 5u);
  EXPECT_EQ(trace->blocks.size(), 4u);
  EXPECT_EQ(trace->blocks[0].parent, kNoBlock);
  EXPECT_EQ(trace->blocks[2].parent, 1u);
  // The last block is filled in part.
  EXPECT_EQ(trace->TokensOf(trace->requests[0], 2), 200u);
  EXPECT_EQ(trace->TokensOf(trace->requests[0], 3), 201u);
}

TEST(ReplayTraceTest, OnlyTheFirstRequestsAreReadWhereThatIsAsked) {
  const auto trace = ParseTrace(Line(0, 50, "1") + Line(1, 50, "2") + "not read", kTokens, 2);
  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_EQ(trace->requests.size(), 2u);
}

TEST(ReplayTraceTest, AnIdUnderAnotherPrefixIsAnotherBlock) {
  const auto trace = ParseTrace(Line(0, 200, "1, 2") + Line(0, 200, "3, 2"), kTokens);
  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_EQ(trace->blocks.size(), 4u);
  EXPECT_EQ(CeilingOf(*trace).hit_blocks, 0u);
}

TEST(ReplayTraceTest, EveryBadLineIsRefusedByItsNumber) {
  const struct {
    std::string line, says;
  } kBad[] = {
      {"{\"timestamp\": 1", "line 3: is not a JSON object"},
      {"[1, 2]", "line 3: is not a JSON object"},
      {"{\"input_length\": 1, \"output_length\": 1, \"hash_ids\": [1]}",
       "line 3: has no timestamp"},
      {"{\"timestamp\": 1, \"output_length\": 1, \"hash_ids\": [1]}",
       "line 3: has no input_length"},
      {"{\"timestamp\": 1, \"input_length\": 1, \"hash_ids\": [1]}",
       "line 3: has no output_length"},
      {"{\"timestamp\": 1, \"input_length\": 1, \"output_length\": 1}",
       "line 3: has no list of hash_ids"},
      {"{\"timestamp\": 1, \"input_length\": 1, \"output_length\": 1, \"hash_ids\": 4}",
       "line 3: has no list of hash_ids"},
      {"{\"timestamp\": \"now\", \"input_length\": 1, \"output_length\": 1, \"hash_ids\": [1]}",
       "line 3: timestamp is not a whole number"},
      {"{\"timestamp\": 1.5, \"input_length\": 1, \"output_length\": 1, \"hash_ids\": [1]}",
       "line 3: timestamp is not a whole number"},
      {"{\"timestamp\": 1, \"input_length\": -1, \"output_length\": 1, \"hash_ids\": [1]}",
       "line 3: input_length is not a whole number"},
      {Line(1, 1, "-1"), "line 3: a hash id is not a whole number"},
      {Line(1, 1, "\"a\""), "line 3: a hash id is not a whole number"},
      {Line(1, 1, "9007199254740992"), "line 3: a hash id is not a whole number"},
      {Line(1, 201, "1, 2"),
       "line 3: has 2 hash_ids where 201 tokens are 3 blocks of 100 (--block-tokens)"},
      {Line(1, 100, "1, 2"), "line 3: has 2 hash_ids where 100 tokens are 1 blocks"},
      {Line(0, 1, "1"), "line 3: timestamp is before the previous line's"},
  };
  for (const auto& [line, says] : kBad) {
    // An empty line is no request, and counts.
    const auto trace = ParseTrace(Line(1, 1, "1") + "\n" + line + "\n" + Line(2, 1, "1"), kTokens);
    EXPECT_EQ(trace.status().code(), absl::StatusCode::kInvalidArgument) << line;
    EXPECT_THAT(std::string(trace.status().message()), HasSubstr(says)) << line;
  }
  EXPECT_THAT(std::string(ParseTrace("\n\n", kTokens).status().message()),
              HasSubstr("has no request"));
  std::string ids = "0";
  for (int i = 1; i <= 65536; ++i) absl::StrAppend(&ids, ",", i);
  EXPECT_THAT(std::string(ParseTrace(Line(0, 65537, ids), 1).status().message()),
              HasSubstr("line 1: has more than 65536 hash_ids"));
}

TEST(ReplayTraceTest, TheCeilingIsThePrefixThatCameBefore) {
  const auto trace = ParseTrace(Line(0, 300, "1, 2, 3") +         // nothing is there
                                    Line(1, 250, "1, 2, 4") +     // 1 2
                                    Line(2, 350, "1, 2, 4, 5") +  // 1 2 4
                                    Line(3, 0, "") +              // asks for nothing
                                    Line(4, 150, "1, 2"),         // 1 2, of which 50 tokens
                                kTokens);
  ASSERT_TRUE(trace.ok()) << trace.status();
  const Ceiling ceiling = CeilingOf(*trace);
  EXPECT_THAT(ceiling.request_hits, ElementsAre(0, 2, 3, 0, 2));
  EXPECT_EQ(ceiling.block_count, 12u);
  EXPECT_EQ(ceiling.token_count, 1050u);
  EXPECT_EQ(ceiling.hit_blocks, 7u);
  EXPECT_EQ(ceiling.hit_tokens, 200u + 300u + 150u);
}

// Two sessions with a common first block, whose turns take turns; the last blocks are partial.
TEST(ReplayTraceTest, ATurnEndsWithAPauseOrForGood) {
  const auto trace = ParseTrace(Line(0, 250, "1, 2, 3") + Line(1, 250, "1, 5, 6") +
                                    Line(2, 350, "1, 2, 4, 7") + Line(3, 50, "9"),
                                kTokens);
  ASSERT_TRUE(trace.ok()) << trace.status();
  const std::vector<TurnEnd> ends = TurnEndsOf(*trace);
  ASSERT_EQ(ends.size(), 4u);
  EXPECT_TRUE(ends[0].goes_on);  // blocks 1 and 2 are full, and come again
  EXPECT_EQ(ends[0].used_later, 2u);
  EXPECT_FALSE(ends[1].goes_on);
  EXPECT_EQ(ends[1].used_later, 1u) << "the common block is not the session's own";
  EXPECT_FALSE(ends[2].goes_on);
  EXPECT_EQ(ends[2].used_later, 0u);
  EXPECT_FALSE(ends[3].goes_on) << "no full block";
}

}  // namespace
}  // namespace cairn::replay
