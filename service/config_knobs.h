// SPDX-License-Identifier: Apache-2.0
#pragma once
// The table of all settings, and functions that parse, print and explain one row. All functions are
// pure. The table is Immutable.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "absl/status/status.h"
#include "service/config.h"

namespace cairn {

struct Knob {
  struct Number {
    uint64_t Config::*field;
    uint64_t min, max;
  };
  struct Bytes {
    uint64_t Config::*field;
    uint64_t min, max;
  };
  struct Address {
    HostPort Config::*field;
  };
  struct Choice {
    std::string Config::*field;
    std::span<const std::string_view> words;
  };
  struct Text {
    std::string Config::*field;
    absl::Status (*check)(std::string_view);
    std::string_view (*expects)();
  };

  std::string_view name, fallback;
  std::variant<Number, Bytes, Address, Choice, Text> kind;
  std::string_view help;
};

std::span<const Knob> Knobs();
// Returns null if there is no such setting.
const Knob* FindKnob(std::string_view name);
// Returns " (did you mean NAME?)" for an unknown name, or an empty string.
std::string NearestKnob(std::string_view name);
// Returns a text that describes the accepted values.
std::string Expects(const Knob& knob);
absl::Status SetValue(const Knob& knob, std::string_view text, Config* config);
std::string Print(const Knob& knob, const Config& config);
// Returns the default value. `so_far` has the values of the earlier rows.
std::string DefaultOf(const Knob& knob, const Environment& environment, const Config& so_far);

}  // namespace cairn
