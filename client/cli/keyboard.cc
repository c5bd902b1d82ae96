// SPDX-License-Identifier: Apache-2.0
#include "client/cli/keyboard.h"

#include <poll.h>
#include <signal.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>

#include "absl/time/clock.h"
#include "base/clock.h"

namespace cairn::cli {
namespace {

constexpr int kSignals[] = {SIGINT, SIGTERM, SIGHUP};
constexpr char kEndOfInput = 4;  // ^D

// The original settings of the terminal. A global, because a signal handler has no argument for it.
termios before;

void RestoreAndEnd(int number) {
  tcsetattr(STDIN_FILENO, TCSANOW, &before);
  ::raise(number);  // SA_RESETHAND: this ends the process now
}

bool TakeOver() {
  if (isatty(STDIN_FILENO) == 0 || tcgetattr(STDIN_FILENO, &before) != 0) return false;
  struct sigaction action {};
  action.sa_handler = RestoreAndEnd;
  action.sa_flags = static_cast<int>(SA_RESETHAND | SA_NODEFER);
  for (const int number : kSignals) sigaction(number, &action, nullptr);
  termios keys = before;
  keys.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);  // keys arrive without Enter
  tcsetattr(STDIN_FILENO, TCSANOW, &keys);
  return true;
}

}  // namespace

Keyboard::Keyboard() : is_there_(TakeOver()) {}

Keyboard::~Keyboard() {
  if (is_there_) tcsetattr(STDIN_FILENO, TCSANOW, &before);
}

bool Keyboard::AwaitQuit(absl::Duration time) {
  if (!is_there_) {
    absl::SleepFor(time);
    return false;
  }
  const absl::Time end = MonotonicNow() + time;
  for (absl::Duration left = time; left > absl::ZeroDuration(); left = end - MonotonicNow()) {
    pollfd input{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
    const int64_t left_ms = std::max<int64_t>(absl::ToInt64Milliseconds(left), 1);
    if (::poll(&input, 1, static_cast<int>(left_ms)) <= 0) continue;
    char key = 0;
    if (::read(STDIN_FILENO, &key, 1) != 1) return true;  // the terminal is gone
    if (key == 'q' || key == 'Q' || key == kEndOfInput) return true;
  }
  return false;
}

}  // namespace cairn::cli
