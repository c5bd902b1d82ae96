// SPDX-License-Identifier: Apache-2.0
#pragma once
// Traces, and `cairnctl replay` of them against a daemon.

#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/e2e/daemon/daemon_process.h"
#include "tests/support/random.h"
#include "tests/support/run_command.h"

namespace cairn {

inline constexpr uint64_t kTraceTokens = 512;  // of a block

struct Asked {
  std::vector<uint64_t> ids;
  uint64_t tokens = 0;
};

// Sessions under a few system prompts: a turn asks for all of its session so far and some blocks
// more, then others have their turn, and some sessions never come back.
inline std::vector<Asked> Sessions(size_t turns, size_t session_count = 12) {
  constexpr uint64_t kPrompts = 3, kPromptBlocks = 4;
  std::mt19937_64 random = SeededRandom();
  std::vector<std::vector<uint64_t>> sessions;
  uint64_t next_id = 1000;
  std::vector<Asked> asked;
  for (size_t turn = 0; turn < turns; ++turn) {
    const size_t which = random() % session_count;
    if (which >= sessions.size()) {
      sessions.emplace_back();
      for (uint64_t i = 0; i < kPromptBlocks; ++i) {
        sessions.back().push_back(random() % kPrompts * 100 + i);
        if (i > 0) sessions.back().back() = sessions.back().front() + i;
      }
    } else if (random() % 8 == 0) {
      sessions.erase(sessions.begin() + static_cast<ptrdiff_t>(which));
      continue;
    }
    auto& session = sessions[std::min(which, sessions.size() - 1)];
    for (uint64_t i = random() % 4; i > 0; --i) session.push_back(next_id++);
    asked.push_back({session, session.size() * kTraceTokens - random() % kTraceTokens});
  }
  return asked;
}

inline std::string TraceOf(const std::vector<Asked>& asked, uint64_t step_ms) {
  std::string text;
  uint64_t time_ms = 0;
  for (const Asked& one : asked) {
    absl::StrAppend(&text, "{\"timestamp\": ", time_ms, ", \"input_length\": ", one.tokens,
                    ", \"output_length\": 10, \"hash_ids\": [", absl::StrJoin(one.ids, ", "),
                    "]}\n");
    time_ms += step_ms;
  }
  return text;
}

struct Played {
  int code = -1;
  std::string output;
  google::protobuf::Struct figures;

  // "hits.host.blocks"
  double Figure(const std::string& path) const {
    const google::protobuf::Struct* at = &figures;
    std::stringstream names(path);
    std::string name;
    while (std::getline(names, name, '.')) {
      const auto found = at->fields().find(name);
      if (found == at->fields().end()) {
        ADD_FAILURE() << "no " << path << " in " << output;
        return -1;
      }
      if (found->second.has_number_value()) return found->second.number_value();
      at = &found->second.struct_value();
    }
    ADD_FAILURE() << path << " is no number";
    return -1;
  }
};

// Of what `cairnctl replay --json` printed; what went wrong is said beside the figures.
inline Played PlayedOf(int code, const std::string& output) {
  Played played{.code = code, .output = output, .figures = {}};
  const size_t start = output.find("{\n");
  const size_t end = output.rfind('}');
  if (start != std::string::npos && end != std::string::npos) {
    const std::string json = output.substr(start, end + 1 - start);
    EXPECT_TRUE(google::protobuf::util::JsonStringToMessage(json, &played.figures).ok()) << json;
  }
  return played;
}
// Plays the trace, which it leaves at `path`.
inline Played PlayTrace(const DaemonProcess& daemon, const std::string& path,
                        const std::string& trace, const std::string& flags) {
  std::ofstream(path) << trace;
  const Ran ran = RunCommand(absl::StrCat(CAIRNCTL_PATH, " replay ", path, " --json --control ",
                                          daemon.endpoint("control"), " ", flags));
  return PlayedOf(ran.code, ran.output);
}

}  // namespace cairn
