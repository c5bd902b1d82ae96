// SPDX-License-Identifier: Apache-2.0
#include "service/members/kubernetes_source.h"

#include <curl/curl.h>
#include <google/protobuf/util/json_util.h>
#include <pthread.h>

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/status.h"
#include "base/text.h"
#include "kubernetes/discovery.pb.h"
#include "service/config_value.h"
#include "service/members/roll.h"

namespace cairn {
namespace {

namespace pb = kubernetes;

constexpr size_t kListBytesMax = size_t{16} << 20;  // a list of kMembersMax
constexpr size_t kEventBytesMax = size_t{1} << 20;  // a slice has at most 1000 endpoints
constexpr size_t kSlicesMax = kMembersMax;
constexpr size_t kRefusalBytesMax = 4096;
constexpr size_t kTokenBytesMax = size_t{64} << 10;
constexpr long kOk = 200, kGone = 410;

template <typename Message>
absl::StatusOr<Message> Parse(std::string_view json) {
  Message message;
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = true;
  if (!google::protobuf::util::JsonStringToMessage({json.data(), json.size()}, &message, options)
           .ok()) {
    return absl::UnavailableError("the API server's answer is not what was asked for");
  }
  return message;
}

// --- One call at a time over HTTPS, which another thread can end.

class Https {
 public:
  // Takes a part of the answer. An error ends the call.
  using Take = std::function<absl::Status(std::string_view)>;

  explicit Https(const KubernetesOptions& options) : options_(options), multi_(curl_multi_init()) {
    CAIRN_CHECK(multi_ != nullptr, "libcurl has no memory");
  }
  ~Https() { curl_multi_cleanup(multi_); }
  Https(const Https&) = delete;
  Https& operator=(const Https&) = delete;

  // Ends the call that runs, and later ones. Thread-safe.
  void Stop() {
    {
      const MutexLock lock(mutex_);
      is_stopped_ = true;
    }
    curl_multi_wakeup(multi_);
  }

  // Errors: OutOfRange (410), PermissionDenied (401, 403), Unavailable, those of `take`.
  absl::Status Get(const std::string& path, absl::Duration time, Take take) {
    if (options_.server.empty()) {
      return absl::UnavailableError("not in a pod: KUBERNETES_SERVICE_HOST is not set");
    }
    CAIRN_ASSIGN_OR_RETURN(const std::string token, ReadFile(options_.token_file, kTokenBytesMax));
    Call call;
    call.take = std::move(take);
    call.easy = curl_easy_init();
    CAIRN_CHECK(call.easy != nullptr, "libcurl has no memory");
    const std::string bearer =
        absl::StrCat("Authorization: Bearer ", absl::StripAsciiWhitespace(token));
    curl_slist* const headers =
        curl_slist_append(curl_slist_append(nullptr, bearer.c_str()), "Accept: application/json");
    SetUp(call, absl::StrCat("https://", options_.server, path), headers, time);
    curl_multi_add_handle(multi_, call.easy);
    const CURLcode code = Run(MonotonicNow() + time);
    long answer = 0;
    curl_easy_getinfo(call.easy, CURLINFO_RESPONSE_CODE, &answer);
    curl_multi_remove_handle(multi_, call.easy);
    curl_easy_cleanup(call.easy);
    curl_slist_free_all(headers);
    if (!call.status.ok()) return call.status;
    if (answer == kGone) return absl::OutOfRangeError("the API server answers 410 Gone");
    if (code != CURLE_OK) {
      return absl::UnavailableError(
          absl::StrCat("API server at ", options_.server, ": ",
                       call.error[0] != '\0' ? call.error.data() : curl_easy_strerror(code)));
    }
    return answer == kOk ? absl::OkStatus() : Refusal(answer, call.refusal);
  }

 private:
  struct Call {
    Take take;
    CURL* easy = nullptr;
    absl::Status status;  // of `take`
    std::string refusal;  // the beginning of an answer that is not OK
    std::array<char, CURL_ERROR_SIZE> error{};
  };

  static absl::Status Refusal(long answer, const std::string& body) {
    const absl::StatusOr<pb::Slice> status = Parse<pb::Slice>(body);
    const std::string text = absl::StrCat("the API server answers ", answer,
                                          status.ok() && !status->message().empty() ? ": " : "",
                                          status.ok() ? status->message() : "");
    return answer == 401 || answer == 403 ? absl::PermissionDeniedError(text)
                                          : absl::UnavailableError(text);
  }

  static size_t OnBytes(char* bytes, size_t, size_t count, void* argument) {
    Call& call = *static_cast<Call*>(argument);
    long answer = 0;
    curl_easy_getinfo(call.easy, CURLINFO_RESPONSE_CODE, &answer);
    if (answer != kOk) {
      call.refusal.append(bytes, std::min(count, kRefusalBytesMax - call.refusal.size()));
      return count;
    }
    call.status = call.take({bytes, count});
    return call.status.ok() ? count : CURL_WRITEFUNC_ERROR;
  }

  void SetUp(Call& call, const std::string& url, curl_slist* headers, absl::Duration time) const {
    CURL* const easy = call.easy;
    const auto set = [easy](CURLoption option, auto value) {
      CAIRN_CHECK(curl_easy_setopt(easy, option, value) == CURLE_OK, "libcurl lacks an option");
    };
    set(CURLOPT_URL, url.c_str());
    set(CURLOPT_PROTOCOLS_STR, "https");
    set(CURLOPT_PROXY, "");
    set(CURLOPT_HTTPHEADER, headers);
    set(CURLOPT_CAINFO, options_.ca_file.c_str());
    set(CURLOPT_CAPATH, nullptr);
    set(CURLOPT_SSLVERSION, long{CURL_SSLVERSION_TLSv1_2});
    set(CURLOPT_HTTP_VERSION, long{CURL_HTTP_VERSION_1_1});
    set(CURLOPT_NOSIGNAL, 1L);
    set(CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(absl::ToInt64Milliseconds(options_.call)));
    set(CURLOPT_TIMEOUT_MS, static_cast<long>(absl::ToInt64Milliseconds(time)));
    set(CURLOPT_WRITEFUNCTION, &OnBytes);
    set(CURLOPT_WRITEDATA, static_cast<void*>(&call));
    set(CURLOPT_ERRORBUFFER, call.error.data());
  }

  CURLcode Run(absl::Time deadline) {
    for (int running = 1; running > 0;) {  // ends: the call does, by its time
      if (curl_multi_perform(multi_, &running) != CURLM_OK) return CURLE_FAILED_INIT;
      {
        const MutexLock lock(mutex_);
        if (is_stopped_) return CURLE_ABORTED_BY_CALLBACK;
      }
      if (running == 0) break;
      const absl::Duration left = deadline - MonotonicNow();
      const int64_t wait_ms = std::clamp<int64_t>(absl::ToInt64Milliseconds(left), 1, 1000);
      if (curl_multi_poll(multi_, nullptr, 0, static_cast<int>(wait_ms), nullptr) != CURLM_OK) {
        return CURLE_FAILED_INIT;
      }
    }
    int queued = 0;
    const CURLMsg* const message = curl_multi_info_read(multi_, &queued);
    return message == nullptr ? CURLE_FAILED_INIT : message->data.result;
  }

  const KubernetesOptions& options_;
  CURLM* const multi_;
  Mutex mutex_;
  bool is_stopped_ ABSL_GUARDED_BY(mutex_) = false;
};

// --- The source

class KubernetesSource final : public MemberSource {
 public:
  explicit KubernetesSource(KubernetesOptions options)
      : options_(std::move(options)),
        path_(absl::StrCat("/apis/discovery.k8s.io/v1/namespaces/", options_.name_space,
                           "/endpointslices?labelSelector=kubernetes.io%2Fservice-name%3D",
                           options_.service)),
        https_(options_) {}
  ~KubernetesSource() override { Stop(); }

  void Start(Sink sink) override {
    CAIRN_CHECK(!thread_.joinable(), "a source is started once");
    sink_ = std::move(sink);
    thread_ = std::thread([this] { Run(); });
    ::pthread_setname_np(thread_.native_handle(), "member-source");
  }
  void Stop() override {
    stop_.Set();
    https_.Stop();
    if (thread_.joinable()) thread_.join();
  }
  absl::Status state() const override {
    const MutexLock lock(mutex_);
    return state_;
  }

 private:
  using Slices = std::map<std::string, pb::Slice>;  // by name

  void Run() {
    Slices slices;
    std::string version;  // of the slices; empty: they must be listed
    Backoff backoff(options_.backoff_max);
    absl::Duration wait;
    while (stop_.Wait(wait)) {  // ends: Stop()
      absl::Status status = version.empty() ? List(&slices, &version) : Watch(&slices, &version);
      if (stop_.is_set()) return;
      if (status.ok()) status = Give(slices);
      if (status.ok()) {
        backoff.Reset();
        wait = absl::ZeroDuration();
        continue;
      }
      version.clear();
      if (!absl::IsOutOfRange(status)) SetState(status);  // the list says what was missed
      wait = backoff.Next();
    }
  }

  absl::Status List(Slices* slices, std::string* version) {
    std::string body;
    CAIRN_RETURN_IF_ERROR(https_.Get(path_, options_.call, [&](std::string_view bytes) {
      if (body.size() + bytes.size() > kListBytesMax) {
        return absl::UnavailableError("the API server's list is too long");
      }
      body.append(bytes);
      return absl::OkStatus();
    }));
    CAIRN_ASSIGN_OR_RETURN(const auto list, Parse<pb::SliceList>(body));
    if (list.kind() != "EndpointSliceList" || list.metadata().resourceversion().empty()) {
      return absl::UnavailableError("the API server's answer is no list of EndpointSlices");
    }
    slices->clear();
    for (const pb::Slice& slice : list.items()) (*slices)[slice.metadata().name()] = slice;
    *version = list.metadata().resourceversion();
    return absl::OkStatus();
  }

  // Follows changes until the server ends the watch.
  absl::Status Watch(Slices* slices, std::string* version) {
    const std::string path =
        absl::StrCat(path_, "&watch=1&allowWatchBookmarks=true&resourceVersion=", *version,
                     "&timeoutSeconds=", absl::ToInt64Seconds(options_.watch));
    std::string line;
    return https_.Get(path, options_.watch + options_.call, [&](std::string_view bytes) {
      while (!bytes.empty()) {  // ends: each turn takes bytes
        const size_t end = bytes.find('\n');
        const std::string_view part = bytes.substr(0, end);
        if (line.size() + part.size() > kEventBytesMax) {
          return absl::UnavailableError("an event of the API server is too long");
        }
        line.append(part);
        if (end == std::string_view::npos) break;
        bytes.remove_prefix(end + 1);
        CAIRN_RETURN_IF_ERROR(Take(std::exchange(line, ""), slices, version));
      }
      return absl::OkStatus();
    });
  }

  absl::Status Take(const std::string& line, Slices* slices, std::string* version) {
    if (line.empty()) return absl::OkStatus();
    CAIRN_ASSIGN_OR_RETURN(const auto event, Parse<pb::Event>(line));
    const pb::Slice& slice = event.object();
    if (event.type() == "ERROR") {
      return absl::OutOfRangeError(
          absl::StrCat("the API server ends the watch: ", slice.message()));
    }
    if (event.type() == "ADDED" || event.type() == "MODIFIED") {
      (*slices)[slice.metadata().name()] = slice;
    } else if (event.type() == "DELETED") {
      slices->erase(slice.metadata().name());
    } else if (event.type() != "BOOKMARK") {
      return absl::UnavailableError("an event of the API server is of no known type");
    }
    if (slices->size() > kSlicesMax) return absl::UnavailableError("too many EndpointSlices");
    if (!slice.metadata().resourceversion().empty()) *version = slice.metadata().resourceversion();
    return Give(*slices);
  }

  absl::StatusOr<uint16_t> PortOf(const pb::Slice& slice) const {
    if (options_.port != 0) return options_.port;
    for (const pb::Port& port : slice.ports()) {
      if (port.name() == "peer" && port.port() > 0 && port.port() <= UINT16_MAX) {
        return static_cast<uint16_t>(port.port());
      }
    }
    return absl::InvalidArgumentError(
        absl::StrCat("EndpointSlice ", slice.metadata().name(), " names no port 'peer'"));
  }

  absl::Status AddMembers(const Slices& slices, std::string_view type,
                          std::vector<ListedMember>* listed) const {
    std::set<std::string> addresses;  // an endpoint may be in two slices for a moment
    for (const auto& [name, slice] : slices) {
      if (slice.addresstype() != type) continue;
      CAIRN_ASSIGN_OR_RETURN(const uint16_t port, PortOf(slice));
      for (const pb::Endpoint& endpoint : slice.endpoints()) {
        if (endpoint.addresses().empty()) continue;
        ListedMember one{"", HostPort{endpoint.addresses(0), port}.ToString(), endpoint.zone()};
        const absl::Status status = CheckListed(one);
        if (!status.ok()) return Annotate(status, absl::StrCat("EndpointSlice ", name));
        if (addresses.insert(one.address).second) listed->push_back(std::move(one));
      }
    }
    return absl::OkStatus();
  }

  // Passes the members on, unless one of them is none.
  absl::Status Give(const Slices& slices) {
    std::vector<ListedMember> listed;
    for (const char* type : {"IPv4", "IPv6"}) {
      if (listed.empty()) CAIRN_RETURN_IF_ERROR(AddMembers(slices, type, &listed));
    }
    if (listed.empty()) {
      return absl::UnavailableError(absl::StrCat("service ", options_.name_space, "/",
                                                 options_.service, " has no endpoints"));
    }
    SetState(absl::OkStatus());
    sink_(std::move(listed));
    return absl::OkStatus();
  }

  void SetState(const absl::Status& now) {
    absl::Status before;
    {
      const MutexLock lock(mutex_);
      before = std::exchange(state_, now);
    }
    if (!now.ok() && before.ok()) {
      LogWarn("members", "the source cannot be read: the members known stay", {{"error", now}});
    }
  }

  const KubernetesOptions options_;
  const std::string path_;
  Https https_;
  Sink sink_;
  StopSignal stop_;
  mutable Mutex mutex_;
  absl::Status state_ ABSL_GUARDED_BY(mutex_) = absl::UnavailableError("not read yet");
  std::thread thread_;
};

}  // namespace

std::unique_ptr<MemberSource> MakeKubernetesSource(KubernetesOptions options) {
  static const CURLcode ready = curl_global_init(CURL_GLOBAL_DEFAULT);
  CAIRN_CHECK(ready == CURLE_OK, "libcurl does not start");
  return std::make_unique<KubernetesSource>(std::move(options));
}

}  // namespace cairn
