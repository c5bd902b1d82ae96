// SPDX-License-Identifier: Apache-2.0
#include "transport/ucx/status.h"

#include "absl/strings/str_cat.h"
#include "base/text.h"

namespace cairn::transport {

absl::Status FromUcs(ucs_status_t status, std::string_view what) {
  const auto message = [&] { return absl::StrCat(ToAbsl(what), ": ", ucs_status_string(status)); };
  switch (status) {
    case UCS_OK:
      return absl::OkStatus();
    case UCS_ERR_CONNECTION_RESET:
    case UCS_ERR_ENDPOINT_TIMEOUT:
    case UCS_ERR_NOT_CONNECTED:
    case UCS_ERR_TIMED_OUT:
    case UCS_ERR_CANCELED:
    case UCS_ERR_IO_ERROR:
    case UCS_ERR_REJECTED:
    case UCS_ERR_UNREACHABLE:
      return absl::UnavailableError(message());
    case UCS_ERR_NO_MEMORY:
      return absl::ResourceExhaustedError(message());
    default:
      return absl::InternalError(message());
  }
}

}  // namespace cairn::transport
