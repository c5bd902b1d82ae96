// SPDX-License-Identifier: Apache-2.0
#pragma once
// Hostile peers of a TLS address, one function a kind. Each works until `ends`, from addresses of
// its own, and gives back all that it holds. Those before the proof have no certificate that
// counts. The others have one, and a session if they need it. What the daemon answers is not their
// concern.

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <random>
#include <string>

#include "transport/tls/tls_files.h"

namespace cairn {

struct TlsAttack {
  const bool is_control;  // else: the data plane
  const uint16_t port;
  const std::string alpn;
  const std::string control;  // where sessions are opened
  const transport::TlsFiles& server_files;
  const transport::TlsFiles& client_files;
  std::mt19937_64 random;
  std::atomic<bool> ends{false};
  // Counted by the attack: of what its name says, what the daemon has judged. 0: it never began.
  std::atomic<uint64_t> blows{0};
  std::atomic<uint64_t> connections{0};
};

// --- before the proof
void MutateHandshakes(TlsAttack& attack);  // blows are changed bytes
void CutHandshakes(TlsAttack& attack);     // one byte later each time
void CrowdSilently(TlsAttack& attack);     // more connections than may wait, which say nothing
void DribbleHandshakes(TlsAttack& attack);

// --- after the proof
void MutateCalls(TlsAttack& attack);   // HTTP/2 of every call, with bytes changed
void MutateChunks(TlsAttack& attack);  // of the data plane
void RenewKeys(TlsAttack& attack);     // with every byte
void NeverRead(TlsAttack& attack);     // and ask for much

}  // namespace cairn
