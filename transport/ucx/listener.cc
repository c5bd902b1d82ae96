// SPDX-License-Identifier: Apache-2.0
#include "transport/ucx/listener.h"

#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"
#include "transport/ucx/status.h"

namespace cairn::transport {
namespace {

constexpr int kSleepMaxMs = 1000;

}  // namespace

absl::Status UcxListener::Start(const SocketAddress& address) {
  wake_fd_ = Fd(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  epoll_ = Fd(epoll_create1(EPOLL_CLOEXEC));
  if (!wake_fd_.is_valid() || !epoll_.is_valid()) {
    return absl::InternalError(absl::StrCat("listener wake-up: ", std::strerror(errno)));
  }
  thread_ = std::thread([this, address] { Run(address); });
  pthread_setname_np(thread_.native_handle(), "cairn-ucx-conn");
  const absl::Time deadline = MonotonicNow() + absl::Seconds(30);
  const MutexLock lock(mutex_);
  while (!is_set_up_) {
    if (!changed_.WaitUntil(mutex_, deadline) && !is_set_up_) {
      return absl::DeadlineExceededError("the UCX listener did not start");
    }
  }
  return set_up_status_;
}

absl::Status UcxListener::SetUp(const SocketAddress& address) {
  CAIRN_ASSIGN_OR_RETURN(worker_, UcxWorker::Make(context_));
  ucp_listener_params_t params{};
  params.field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER;
  params.sockaddr = {address.get(), address.bytes};
  params.conn_handler = {&OnConnection, this};
  const ucs_status_t status = ucp_listener_create(worker_->get(), &params, &listener_);
  if (status != UCS_OK) {
    return absl::UnavailableError(
        absl::StrCat("cannot listen on ", AddressText(address), ": ", ucs_status_string(status)));
  }
  ucp_listener_attr_t attr{};
  attr.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR;
  CAIRN_RETURN_IF_ERROR(FromUcs(ucp_listener_query(listener_, &attr), "the listener's address"));
  address_ = {attr.sockaddr, address.bytes};
  for (const int fd : {worker_->event_fd(), wake_fd_.get()}) {
    epoll_event event{};
    event.events = EPOLLIN;
    if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
      return absl::InternalError(absl::StrCat("epoll_ctl: ", std::strerror(errno)));
    }
  }
  return absl::OkStatus();
}

void UcxListener::Run(const SocketAddress& address) {
  const absl::Status status = SetUp(address);
  {
    const MutexLock lock(mutex_);
    set_up_status_ = status;
    is_set_up_ = true;
  }
  changed_.NotifyAll();
  // Ends when Stop() says so; acquire: pairs with the store there.
  while (status.ok() && !is_stopping_.load(std::memory_order_acquire)) {
    if (worker_->Progress() > 0 || RouteRequested() > 0 || !worker_->Arm()) continue;
    std::array<epoll_event, 2> events;
    epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), kSleepMaxMs);
  }
  if (listener_ != nullptr) {
    for (const ucp_conn_request_h request : requested_) ucp_listener_reject(listener_, request);
    while (unaccepted_ != nullptr) {
      const ucp_conn_request_h request = unaccepted_();
      if (request == nullptr) break;
      ucp_listener_reject(listener_, request);
    }
    ucp_listener_destroy(listener_);
    listener_ = nullptr;
  }
  worker_.reset();
}

void UcxListener::OnConnection(ucp_conn_request_h request, void* argument) {
  static_cast<UcxListener*>(argument)->requested_.push_back(request);
}

// Only once nothing is left to progress: a lane takes a request's socket over, and UCX 1.13 asserts
// where an event of it still waits here (docs/internals/transport-ucx.md).
size_t UcxListener::RouteRequested() {
  const size_t count = requested_.size();
  for (const ucp_conn_request_h request : requested_) {
    if (!route_(request)) ucp_listener_reject(listener_, request);
  }
  requested_.clear();
  return count;
}

void UcxListener::Stop(TakeUnaccepted unaccepted) {
  if (!thread_.joinable()) return;
  unaccepted_ = std::move(unaccepted);
  is_stopping_.store(true, std::memory_order_release);  // pairs with the load in Run()
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(wake_fd_.get(), &one, sizeof(one));
  thread_.join();
}

}  // namespace cairn::transport
