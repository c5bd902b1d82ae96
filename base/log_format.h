// SPDX-License-Identifier: Apache-2.0
#pragma once
// How records are written (log.h).
//
//   WARN 2026-01-31T12:00:00.123Z get: tile checksum does not match place=host tile=7
//   {"time":"2026-01-31T12:00:00.123Z","level":"warn","component":"get",
//    "message":"tile checksum does not match","fields":{"place":"host","tile":"7"}}
//
// The second is one line. Values of fields are text. A record that is too long for a line loses its
// fields, and says "cut":true.
//
// Thread-safety: Thread-safe.

#include <cstdint>

namespace cairn {

enum class LogFormat : uint8_t { kText, kJson };

// kText at start.
void SetLogFormat(LogFormat format);

}  // namespace cairn
