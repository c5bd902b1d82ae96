// SPDX-License-Identifier: Apache-2.0
#pragma once
// A real etcd of the test, at a free port of 127.0.0.1. CAIRN_ETCD names the program.

#include <sys/types.h>
#include <csignal>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/temp_dir.h"

namespace cairn {

class EtcdServer {
 public:
  // Empty: there is none.
  static std::string Program();

  // Of an etcd that speaks TLS only, and asks for certificates of its own CA.
  struct Tls {
    std::string ca, certificate, key;  // paths
  };
  EtcdServer() { Start(); }
  EtcdServer(std::optional<Tls> tls, std::vector<std::string> flags)
      : tls_(std::move(tls)), flags_(std::move(flags)) {
    Start();
  }
  ~EtcdServer() { Kill(); }
  EtcdServer(const EtcdServer&) = delete;
  EtcdServer& operator=(const EtcdServer&) = delete;

  const std::string& endpoint() const { return endpoint_; }
  void Signal(int number) const;
  // Runs a script of the shell, in which `ctl` is etcdctl with the endpoint and the certificates.
  // Returns whether all of it succeeded.
  bool Control(const std::string& script) const;
  // Ends it as a power cut would.
  void Kill();
  // Starts it again, at the same port and with what it had.
  void Start();

 private:
  TempDir folder_;
  const std::optional<Tls> tls_;
  const std::vector<std::string> flags_;
  std::string endpoint_;
  pid_t pid_ = 0;
};

}  // namespace cairn
