// SPDX-License-Identifier: Apache-2.0
#pragma once
// Keys of the user's terminal, one by one, while a command shows something live.
//
// Thread-compatible. One at a time: it changes the terminal, and restores it at its end and when a
// signal ends the process.

#include "absl/time/time.h"

namespace cairn::cli {

class Keyboard {
 public:
  Keyboard();
  ~Keyboard();
  Keyboard(const Keyboard&) = delete;
  Keyboard& operator=(const Keyboard&) = delete;

  // Returns whether the standard input is a terminal, without which no key arrives.
  bool is_there() const { return is_there_; }
  // Waits for that time, or until the user presses q. Returns whether q was pressed.
  bool AwaitQuit(absl::Duration time);

 private:
  const bool is_there_;
};

}  // namespace cairn::cli
