// SPDX-License-Identifier: Apache-2.0
#pragma once
// absl::Status reports failures that can occur in production. The code tells the caller what to do:
//
//   NotFound            recompute
//   ResourceExhausted   try again later
//   Unavailable         the peer is gone: reconnect
//   DeadlineExceeded    the call was too slow
//   DataLoss            a checksum does not match: the data was dropped and counted
//   InvalidArgument     a bug of the caller
//   FailedPrecondition  wrong state
//   Internal            a bug of Cairn
//   AlreadyExists       the bytes are stored already
//
//   CAIRN_RETURN_IF_ERROR(Publish(block));
//   CAIRN_ASSIGN_OR_RETURN(Extent extent, arena.Allocate(bytes));
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/text.h"

namespace cairn {

// Returns `status` with "context: " before its message. Code and payloads stay. Returns an OK
// status unchanged.
inline absl::Status Annotate(const absl::Status& status, std::string_view context) {
  if (status.ok()) {
    return status;
  }
  absl::Status annotated(status.code(), absl::StrCat(ToAbsl(context), ": ", status.message()));
  status.ForEachPayload([&annotated](absl::string_view type, const absl::Cord& payload) {
    annotated.SetPayload(type, payload);
  });
  return annotated;
}

namespace internal {
inline const absl::Status& StatusOf(const absl::Status& status) { return status; }
template <typename T>
const absl::Status& StatusOf(const absl::StatusOr<T>& status) {
  return status.status();
}
}  // namespace internal

}  // namespace cairn

#define CAIRN_STATUS_CONCAT_INNER(a, b) a##b
#define CAIRN_STATUS_CONCAT(a, b) CAIRN_STATUS_CONCAT_INNER(a, b)

// Evaluates `expression`, an absl::Status. If it is not OK, returns it from the current function.
#define CAIRN_RETURN_IF_ERROR(expression)                                            \
  do {                                                                               \
    if (absl::Status cairn_status = (expression); !cairn_status.ok()) [[unlikely]] { \
      return cairn_status;                                                           \
    }                                                                                \
  } while (false)

// Evaluates `expression`, an absl::StatusOr, and sets `declaration` to its value. If there is no
// value, returns the status from the current function.
#define CAIRN_ASSIGN_OR_RETURN(declaration, expression)                                   \
  CAIRN_ASSIGN_OR_RETURN_INNER(CAIRN_STATUS_CONCAT(cairn_result_, __LINE__), declaration, \
                               expression)
#define CAIRN_ASSIGN_OR_RETURN_INNER(result, declaration, expression) \
  auto result = (expression);                                         \
  if (!result.ok()) [[unlikely]] {                                    \
    return std::move(result).status();                                \
  }                                                                   \
  declaration = *std::move(result)

// CAIRN_CHECKs that a Status or StatusOr is OK. For calls that cannot fail at that point.
#define CAIRN_CHECK_OK(expression)                                                          \
  do {                                                                                      \
    const auto& cairn_checked = (expression);                                               \
    CAIRN_CHECK(cairn_checked.ok(), ::cairn::internal::StatusOf(cairn_checked).ToString()); \
  } while (false)
