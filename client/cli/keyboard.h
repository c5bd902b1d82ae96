// SPDX-License-Identifier: Apache-2.0
#pragma once
// Reads single keys that the user presses in the terminal while a command shows live data.
//
// Thread-compatible. Make only one object at a time, because it changes the mode of the terminal.
// The mode is restored when the object is destroyed, and when a signal ends the process.

#include "absl/time/time.h"

namespace cairn::cli {

class Keyboard {
 public:
  Keyboard();
  ~Keyboard();
  Keyboard(const Keyboard&) = delete;
  Keyboard& operator=(const Keyboard&) = delete;

  // Returns whether the standard input is a terminal. If it is not, no key arrives.
  bool is_there() const { return is_there_; }
  // Waits for `time`, or until the user presses q. Returns whether q was pressed.
  bool AwaitQuit(absl::Duration time);

 private:
  const bool is_there_;
};

}  // namespace cairn::cli
