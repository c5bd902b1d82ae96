// SPDX-License-Identifier: Apache-2.0
#include "transport/ucx/server.h"

#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/status.h"
#include "proto/frame.h"
#include "transport/address.h"
#include "transport/ucx/connection.h"
#include "transport/ucx/context.h"

namespace cairn::transport {

// --- Listener ------------------------------------------------------------------------------------

namespace {

// Accepts UCX connection requests on its own thread and worker, and hands them to lanes.
//
// Thread-safety: Thread-compatible; `route` runs on the listener's thread.
class UcxListener {
 public:
  // Hands a request to a lane. Returns false if no lane takes it; the listener then rejects it.
  using Route = std::function<bool(ucp_conn_request_h)>;
  // Returns a request that a lane has not accepted, or null if none is left. Stop() calls it.
  using TakeUnaccepted = std::function<ucp_conn_request_h()>;

  UcxListener(const UcxContext& context, Route route)
      : context_(context), route_(std::move(route)) {}
  ~UcxListener() { Stop({}); }

  // Binds the port and starts the thread. Errors: Unavailable if the address cannot be bound.
  absl::Status Start(const SocketAddress& address);
  // The bound address.
  const SocketAddress& address() const { return address_; }

  // Rejects the unaccepted requests (each points to its listener), closes the port and joins the
  // thread.
  void Stop(TakeUnaccepted unaccepted);

 private:
  void Run(const SocketAddress& address);
  absl::Status SetUp(const SocketAddress& address);
  static void OnConnection(ucp_conn_request_h request, void* argument);
  size_t RouteRequested();

  const UcxContext& context_;
  const Route route_;
  TakeUnaccepted unaccepted_;  // set before is_stopping_
  Fd wake_fd_;
  Fd epoll_;
  std::atomic<bool> is_stopping_{false};
  Mutex mutex_;
  CondVar changed_;
  bool is_set_up_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status set_up_status_ ABSL_GUARDED_BY(mutex_);
  SocketAddress address_;
  std::unique_ptr<UcxWorker> worker_;  // used only by the thread, like the next member
  ucp_listener_h listener_ = nullptr;
  std::vector<ucp_conn_request_h> requested_;  // not routed yet
  std::thread thread_;
};

constexpr int kSleepMaxMs = 1000;

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
  // Ends after Stop(). acquire: pairs with the store there.
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

// Runs only when the worker has no events left. A lane takes over the request's socket, and UCX
// 1.13 asserts if an event of that socket is still pending here (docs/internals/transport-ucx.md).
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

}  // namespace

// --- Server --------------------------------------------------------------------------------------

namespace {

constexpr int kLanesMax = 256;  // the limit of a PeerId
constexpr absl::Duration kReachWithin = absl::Seconds(10);

class UcxServer final : public Server {
 public:
  UcxServer(std::unique_ptr<UcxContext> context, const ServerLimits& limits)
      : limits_(limits), context_(std::move(context)) {}
  ~UcxServer() override { UcxServer::Stop(); }

  absl::Status Start(const SocketAddress& address, const UcxLaneOptions& lane_options,
                     LaneHandler& handler) {
    for (int i = 0; i < limits_.lanes; ++i) {
      lanes_.push_back(std::make_unique<UcxLane>(i, *context_, lane_options, handler, metrics_));
      CAIRN_RETURN_IF_ERROR(lanes_.back()->Start());
    }
    listener_ = std::make_unique<UcxListener>(
        *context_, [this](ucp_conn_request_h request) { return Route(request); });
    CAIRN_RETURN_IF_ERROR(listener_->Start(address));
    address_ = AddressText(listener_->address());
    return absl::OkStatus();
  }
  // REQUIRES: started.
  uint16_t port() const {
    return ntohs(reinterpret_cast<const sockaddr_in*>(listener_->address().get())->sin_port);
  }

  // First the lanes stop accepting. Then the listener rejects the remaining requests and ends. Then
  // the lanes break their peers and end.
  void Stop() override {
    const MutexLock lock(stop_mutex_);
    is_stopping_.store(true);
    for (const auto& lane : lanes_) lane->Refuse();
    if (listener_ != nullptr) {
      listener_->Stop([this]() -> ucp_conn_request_h {
        for (const auto& lane : lanes_) {
          if (const ucp_conn_request_h request = lane->TakeUnaccepted()) return request;
        }
        return nullptr;
      });
    }
    for (const auto& lane : lanes_) lane->Finish();
  }

  std::string address() const override { return address_; }
  int lane_count() const override { return static_cast<int>(lanes_.size()); }
  Lane& lane(int index) override { return *lanes_.at(static_cast<size_t>(index)); }
  void Report(MetricSink& sink) const override { metrics_.Report(sink, "ucx"); }

 private:
  // Runs on the listener's thread. Chooses the lane with the fewest peers.
  bool Route(ucp_conn_request_h request) {
    int peers = 0;
    UcxLane* best = nullptr;
    for (const auto& lane : lanes_) {
      peers += lane->peer_count();
      if (best == nullptr || lane->peer_count() < best->peer_count()) best = lane.get();
    }
    if (is_stopping_.load() || peers >= limits_.peers_max || !best->Adopt(request)) {
      metrics_.peers_refused.Add();
      return false;
    }
    return true;
  }

  const ServerLimits limits_;
  TransportMetrics metrics_;
  std::string address_;
  std::atomic<bool> is_stopping_{false};
  Mutex stop_mutex_;
  // Destroyed in reverse order: the listener, the lanes, then the context of their workers.
  std::unique_ptr<UcxContext> context_;
  std::vector<std::unique_ptr<UcxLane>> lanes_;
  std::unique_ptr<UcxListener> listener_;
};

// Answers only hellos.
class Greeter final : public LaneHandler {
 public:
  void OnArrival(Lane& lane, Arrival arrival) override {
    const auto hello = proto::ParseFrame(arrival.frame().bytes());
    if (!hello.ok() || !std::holds_alternative<proto::Hello>(hello->body)) return;
    proto::Frame reply;
    reply.seq = hello->seq;
    reply.body = proto::HelloReply{.window = 1, .payload_bytes_max = 1};
    lane.Reply(arrival.reply_to(), proto::Serialize(reply), {}, MonotonicNow() + kReachWithin,
               [](const absl::Status&) {});
  }
  void OnPeerGone(Lane&, PeerId) override {}
};

// UCX opens its data ports at the first address of the interface. Clients do not find them if the
// listener has another address.
absl::Status CheckIsFirst(const SocketAddress& address, const std::string& device) {
  const auto first = FirstAddressOf(device, address.family());
  if (first.has_value() && IsSameHost(*first, address)) return absl::OkStatus();
  const std::string family = address.family() == AF_INET6 ? "IPv6" : "IPv4";
  return absl::InvalidArgumentError(absl::StrCat(
      "no client would get through to ", HostText(address),
      ": UCX opens the ports behind it at the first ", family, " address of the interface ", device,
      ", which is ", first.has_value() ? HostText(*first) : "none",
      "; name that one, or give this one an interface of its own"));
}

// Connects a client of our own to the listener, before the address is published.
absl::Status ReachSelf(const SocketAddress& address, UcxSettings settings) {
  settings.port_range.clear();  // the range is for the daemon's ports
  CAIRN_ASSIGN_OR_RETURN(std::unique_ptr<UcxContext> context, UcxContext::Make(settings));
  Greeter greeter;
  UcxServer server(std::move(context), {.lanes = 1, .peers_max = 1});
  SocketAddress any_port = address;
  reinterpret_cast<sockaddr_in*>(&any_port.storage)->sin_port =
      0;  // sockaddr_in6 has the port at the same offset
  CAIRN_RETURN_IF_ERROR(server.Start(any_port, {.limits = {.lanes = 1}}, greeter));
  proto::Frame hello;
  hello.seq = 1;
  hello.deadline_ms = 1000;
  hello.body = proto::Hello{.window = 1};
  const auto reached =
      UcxConnection::Connect(HostText(address), server.port(), hello, {.device = settings.device},
                             MonotonicNow() + kReachWithin, nullptr);
  return reached.ok() ? absl::OkStatus()
                      : absl::FailedPreconditionError(
                            absl::StrCat("a test client cannot connect to ", HostText(address),
                                         " over UCX: ", reached.status().message()));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Server>> StartUcxServer(const UcxServerOptions& options,
                                                       UcxLaneOptions lane_options,
                                                       LaneHandler& handler) {
  if (options.limits.lanes < 1 || options.limits.lanes > kLanesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.limits.lanes, " lanes; the limits are 1 and ", kLanesMax));
  }
  CAIRN_ASSIGN_OR_RETURN(const SocketAddress address,
                         ParseLocalAddress(options.host, options.port));
  CAIRN_ASSIGN_OR_RETURN(const std::string device, InterfaceOf(address));
  CAIRN_RETURN_IF_ERROR(CheckIsFirst(address, device));
  const UcxSettings settings{
      .device = device, .port_range = options.port_range, .family = address.family()};
  CAIRN_ASSIGN_OR_RETURN(std::unique_ptr<UcxContext> context, UcxContext::Make(settings));
  CAIRN_RETURN_IF_ERROR(ReachSelf(address, settings));
  const uint64_t memory_types = context->memory_types();
  lane_options.limits = options.limits;
  auto server = std::make_unique<UcxServer>(std::move(context), options.limits);
  CAIRN_RETURN_IF_ERROR(server->Start(address, lane_options, handler));
  LogInfo("ucx", "data plane listens; every peer that can connect is trusted with this process",
          {{"address", server->address()},
           {"interface", device},
           {"lanes", options.limits.lanes},
           {"memory_types", memory_types}});
  return server;
}

}  // namespace cairn::transport
