// SPDX-License-Identifier: Apache-2.0
#include "transport/ucx/context.h"

#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "base/status.h"
#include "base/text.h"
#include "transport/ucx/wire.h"

namespace cairn::transport {
namespace {

ucs_status_t IgnoreMessage(void*, const void*, size_t, void*, size_t,
                           const ucp_am_recv_param_t* param) {
  return RefusedPayload(param);
}

// If UCX cannot parse a value, its error does not name the variable.
absl::Status WithVariables(absl::Status status) {
  if (status.ok()) return status;
  const std::vector<std::string> variables = VariablesOfOthers();
  if (variables.empty()) return status;
  return {status.code(), absl::StrCat(status.message(), "; the environment has ",
                                      absl::StrJoin(variables, ", "), ": try without")};
}

// If UCX has no transport for the interface, it only logs a warning, and later aborts the process
// when it connects.
absl::Status CheckDevice(ucp_context_h context, const UcxSettings& settings) {
  char* text = nullptr;
  size_t bytes = 0;
  std::FILE* const stream = open_memstream(&text, &bytes);
  if (stream == nullptr) return absl::ResourceExhaustedError("no memory for UCX's resources");
  ucp_context_print_info(context, stream);
  std::fclose(stream);
  const std::unique_ptr<char, decltype(&std::free)> owner(text, &std::free);
  const std::string wanted = absl::StrCat(" tcp/", settings.device, "\n");
  if (std::string_view(text, bytes).find(wanted) != std::string_view::npos) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(
      "UCX has no ", settings.family == AF_INET6 ? "IPv6" : "IPv4", " on the interface ",
      settings.device, ": it is down, /sys/class/net does not show it, or it is IPv6 on loopback"));
}

}  // namespace

// --- Errors --------------------------------------------------------------------------------------

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

// --- Handles -------------------------------------------------------------------------------------

absl::StatusOr<std::unique_ptr<UcxContext>> UcxContext::Make(const UcxSettings& settings) {
  CAIRN_RETURN_IF_ERROR(CheckPortRange(settings.port_range));
  ucp_config_t* config = nullptr;
  CAIRN_RETURN_IF_ERROR(WithVariables(
      FromUcs(ucp_config_read(nullptr, nullptr, &config), "UCX's environment variables")));
  const std::unique_ptr<ucp_config_t, decltype(&ucp_config_release)> owner(config,
                                                                           &ucp_config_release);
  for (const auto& [key, value] : PinnedSettings(settings)) {
    CAIRN_RETURN_IF_ERROR(
        FromUcs(ucp_config_modify(config, key.c_str(), value.c_str()), "UCX setting " + key));
  }
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_MT_WORKERS_SHARED;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  params.mt_workers_shared = 1;
  ucp_context_h context = nullptr;
  CAIRN_RETURN_IF_ERROR(WithVariables(
      FromUcs(ucp_init(&params, config, &context), "UCX context on interface " + settings.device)));
  std::unique_ptr<UcxContext> made(new UcxContext(context));
  CAIRN_RETURN_IF_ERROR(CheckDevice(context, settings));
  ucp_context_attr_t attr{};
  attr.field_mask = UCP_ATTR_FIELD_MEMORY_TYPES;
  CAIRN_RETURN_IF_ERROR(FromUcs(ucp_context_query(context, &attr), "UCX context attributes"));
  made->memory_types_ = attr.memory_types;
  return made;
}

UcxContext::~UcxContext() { ucp_cleanup(context_); }

absl::StatusOr<std::unique_ptr<UcxWorker>> UcxWorker::Make(const UcxContext& context) {
  ucp_worker_params_t params{};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  params.thread_mode = UCS_THREAD_MODE_SINGLE;
  ucp_worker_h worker = nullptr;
  CAIRN_RETURN_IF_ERROR(
      WithVariables(FromUcs(ucp_worker_create(context.get(), &params, &worker), "UCX worker")));
  std::unique_ptr<UcxWorker> made(new UcxWorker(worker));
  CAIRN_RETURN_IF_ERROR(
      FromUcs(ucp_worker_get_efd(worker, &made->event_fd_), "UCX worker wake-up"));
  // In descending order, so that the table is allocated only once.
  for (unsigned id = kIdMax + 1; id-- > 0;) {
    CAIRN_RETURN_IF_ERROR(made->Handle(id, &IgnoreMessage, nullptr));
  }
  return made;
}

UcxWorker::~UcxWorker() { ucp_worker_destroy(worker_); }

bool UcxWorker::Arm() {
  const ucs_status_t armed = ucp_worker_arm(worker_);
  CAIRN_CHECK(armed == UCS_OK || armed == UCS_ERR_BUSY, ucs_status_string(armed));
  return armed == UCS_OK;
}

absl::Status UcxWorker::Handle(unsigned id, ucp_am_recv_callback_t callback, void* argument) {
  ucp_am_handler_param_t params{};
  params.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                      UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
  params.id = id;
  params.flags = UCP_AM_FLAG_WHOLE_MSG;
  params.cb = callback;
  params.arg = argument;
  return FromUcs(ucp_worker_set_am_recv_handler(worker_, &params), "UCX message handler");
}

}  // namespace cairn::transport
