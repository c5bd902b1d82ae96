// SPDX-License-Identifier: Apache-2.0
#pragma once
// A real etcd of the test, at a free port of 127.0.0.1. CAIRN_ETCD names the program.

#include <sys/types.h>
#include <csignal>
#include <string>

#include "tests/support/temp_dir.h"

namespace cairn {

class EtcdServer {
 public:
  // Empty: there is none.
  static std::string Program();

  EtcdServer() { Start(); }
  ~EtcdServer() { Kill(); }
  EtcdServer(const EtcdServer&) = delete;
  EtcdServer& operator=(const EtcdServer&) = delete;

  const std::string& endpoint() const { return endpoint_; }
  void Signal(int number) const;
  // Ends it as a power cut would.
  void Kill();
  // Starts it again, at the same port and with what it had.
  void Start();

 private:
  TempDir folder_;
  std::string endpoint_;
  pid_t pid_ = 0;
};

}  // namespace cairn
