// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/members/etcd_server.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/file.h"
#include "tests/support/free_port.h"
#include "tests/support/wait.h"

namespace cairn {
namespace {

sockaddr_in Loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  return address;
}

bool Listens(int port) {
  const Fd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in address = Loopback(port);
  return ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
}

}  // namespace

std::string EtcdServer::Program() {
  const char* named = std::getenv("CAIRN_ETCD");
  return named != nullptr && ::access(named, R_OK) == 0 ? named : "";
}

void EtcdServer::Start() {
  if (endpoint_.empty()) {
    // The package's program is not executable where pip has put it.
    std::filesystem::copy_file(Program(), folder_.File("etcd"));
    std::filesystem::permissions(folder_.File("etcd"), std::filesystem::perms::owner_all);
    endpoint_ = absl::StrCat("127.0.0.1:", FreePort());
  }
  const std::string url = (tls_.has_value() ? "https://" : "http://") + endpoint_;
  std::vector<std::string> words = {folder_.File("etcd"),
                                    "--data-dir",
                                    folder_.File("data"),
                                    "--listen-client-urls",
                                    url,
                                    "--advertise-client-urls",
                                    url,
                                    "--listen-peer-urls",
                                    absl::StrCat("http://127.0.0.1:", FreePort()),
                                    "--log-level",
                                    "error",
                                    "--unsafe-no-fsync"};
  if (tls_.has_value()) {
    words.insert(words.end(), {"--client-cert-auth", "--trusted-ca-file", tls_->ca, "--cert-file",
                               tls_->certificate, "--key-file", tls_->key});
  }
  words.insert(words.end(), flags_.begin(), flags_.end());
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  for (const int fd : {1, 2}) {
    ::posix_spawn_file_actions_addopen(&actions, fd, folder_.File("log").c_str(),
                                       O_WRONLY | O_CREAT | O_APPEND, 0600);
  }
  CAIRN_CHECK(
      ::posix_spawn(&pid_, words[0].c_str(), &actions, nullptr, arguments.data(), environ) == 0,
      words[0]);
  ::posix_spawn_file_actions_destroy(&actions);
  const int port = std::atoi(endpoint_.c_str() + endpoint_.find(':') + 1);
  CAIRN_CHECK(WaitFor([port] { return Listens(port); }, absl::Seconds(60), absl::Milliseconds(20)),
              "etcd does not start");
}

bool EtcdServer::Control(const std::string& script) const {
  const std::filesystem::path program = folder_.File("etcdctl");
  if (!std::filesystem::exists(program)) {
    std::filesystem::copy_file(std::filesystem::path(Program()).parent_path() / "etcdctl", program);
    std::filesystem::permissions(program, std::filesystem::perms::owner_all);
  }
  const std::string tls = tls_.has_value() ? absl::StrCat(" --cacert ", tls_->ca, " --cert ",
                                                          tls_->certificate, " --key ", tls_->key)
                                           : "";
  return std::system(absl::StrCat("set -e; ctl() { ", program.string(), " --endpoints ", endpoint_,
                                  tls, " \"$@\"; }; { ", script, "; } >/dev/null")
                         .c_str()) == 0;
}

void EtcdServer::Signal(int number) const { ::kill(pid_, number); }

void EtcdServer::Kill() {
  if (pid_ == 0) return;
  Signal(SIGKILL);
  ::waitpid(pid_, nullptr, 0);
  pid_ = 0;
}

}  // namespace cairn
