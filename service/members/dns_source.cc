// SPDX-License-Identifier: Apache-2.0
#include "service/members/dns_source.h"

#include <arpa/inet.h>
#include <arpa/nameser.h>
#include <netdb.h>
#include <resolv.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "service/config_value.h"

namespace cairn {
namespace {

constexpr size_t kAnswerBytesMax = 65'536;
constexpr int kTrySeconds = 1;
constexpr int kTries = 2;  // of each server

// The resolver's state, read anew for each look, as the system's servers may change.
class Resolver {
 public:
  explicit Resolver(uint16_t server_port) {
    is_ready_ = ::res_ninit(&state_) == 0;
    if (!is_ready_) return;
    state_.retrans = kTrySeconds;
    state_.retry = kTries;
    if (server_port == 0) return;
    state_.nscount = 1;
    state_.nsaddr_list[0].sin_family = AF_INET;
    state_.nsaddr_list[0].sin_port = htons(server_port);
    state_.nsaddr_list[0].sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  }
  ~Resolver() {
    if (is_ready_) ::res_nclose(&state_);
  }
  Resolver(const Resolver&) = delete;
  Resolver& operator=(const Resolver&) = delete;

  // Returns the addresses, none if the name has no record of the type.
  absl::StatusOr<std::vector<std::string>> Ask(const std::string& name, ns_type type) {
    if (!is_ready_) return absl::UnavailableError("no resolver");
    std::vector<unsigned char> answer(kAnswerBytesMax);
    const int bytes = ::res_nsearch(&state_, name.c_str(), ns_c_in, type, answer.data(),
                                    static_cast<int>(answer.size()));
    if (bytes < 0) {
      if (state_.res_h_errno == NO_DATA || state_.res_h_errno == HOST_NOT_FOUND)
        return std::vector<std::string>();
      return absl::UnavailableError(absl::StrCat(name, ": ", ::hstrerror(state_.res_h_errno)));
    }
    answer.resize(std::min(answer.size(), static_cast<size_t>(bytes)));
    return Parse(answer, type);
  }

 private:
  static absl::StatusOr<std::vector<std::string>> Parse(const std::vector<unsigned char>& answer,
                                                        ns_type type) {
    const absl::Status bad = absl::UnavailableError("the answer of the DNS server is malformed");
    ns_msg message;
    if (::ns_initparse(answer.data(), static_cast<int>(answer.size()), &message) != 0) return bad;
    std::vector<std::string> addresses;
    for (int i = 0; i < ns_msg_count(message, ns_s_an); ++i) {
      ns_rr record;
      if (::ns_parserr(&message, ns_s_an, i, &record) != 0) return bad;
      if (ns_rr_type(record) != type) continue;  // an alias on the way
      const int family = type == ns_t_a ? AF_INET : AF_INET6;
      std::array<char, INET6_ADDRSTRLEN> text{};
      if (ns_rr_rdlen(record) != (type == ns_t_a ? 4 : 16) ||
          ::inet_ntop(family, ns_rr_rdata(record), text.data(), text.size()) == nullptr) {
        return bad;
      }
      addresses.emplace_back(text.data());
    }
    return addresses;
  }

  struct __res_state state_ = {};
  bool is_ready_ = false;
};

class DnsSource final : public PolledSource {
 public:
  explicit DnsSource(DnsOptions options)
      : PolledSource(options.period), options_(std::move(options)) {}
  ~DnsSource() override { Stop(); }

 protected:
  absl::StatusOr<std::vector<ListedMember>> Read() override {
    Resolver resolver(options_.server_port);
    std::vector<std::string> addresses;
    for (const ns_type type : {ns_t_a, ns_t_aaaa}) {
      CAIRN_ASSIGN_OR_RETURN(addresses, resolver.Ask(options_.name, type));
      if (!addresses.empty()) break;
    }
    if (addresses.empty())
      return absl::UnavailableError(absl::StrCat(options_.name, ": no address"));
    std::ranges::sort(addresses);
    const auto twice = std::ranges::unique(addresses);
    addresses.erase(twice.begin(), twice.end());
    std::vector<ListedMember> listed;
    for (const std::string& address : addresses) {
      listed.push_back({"", HostPort{address, options_.port}.ToString(), ""});
    }
    return listed;
  }

 private:
  const DnsOptions options_;
};

}  // namespace

std::unique_ptr<MemberSource> MakeDnsSource(DnsOptions options) {
  return std::make_unique<DnsSource>(std::move(options));
}

}  // namespace cairn
