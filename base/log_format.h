// SPDX-License-Identifier: Apache-2.0
#pragma once
// Selects the format of log records (log.h): text or JSON.
//
//   WARN 2026-01-31T12:00:00.123Z get: tile checksum does not match place=host tile=7
//   {"time":"2026-01-31T12:00:00.123Z","level":"warn","component":"get",
//    "message":"tile checksum does not match","fields":{"place":"host","tile":"7"}}
//
// A JSON record is one line; the values of its fields are strings. A record that is too long for a
// line loses its fields and has "cut":true.
//
// Thread-safety: Thread-safe.

#include <cstdint>

namespace cairn {

enum class LogFormat : uint8_t { kText, kJson };

// The format is kText at start.
void SetLogFormat(LogFormat format);

}  // namespace cairn
