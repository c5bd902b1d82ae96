// SPDX-License-Identifier: Apache-2.0
#pragma once
// Hostile clients, one function a kind. Each works against the daemon until `until`, gives back all
// that it holds on its side, and returns. What the daemon answers is not its concern.

#include <atomic>
#include <cstdint>
#include <random>

#include "absl/time/time.h"
#include "tests/e2e/daemon/daemon_process.h"

namespace cairn {

struct Attack {
  DaemonProcess& daemon;
  absl::Time until;
  std::mt19937_64 random;
  std::atomic<uint64_t> blows{0};  // counted by the attack; 0: it never began
};

// --- on the control plane (attacks_control.cc)
void CancelRefusedSessions(Attack& attack);  // sessions that are refused and cancelled at once
void SendVastMessages(Attack& attack);       // megabytes of empty sub-messages
void StallUploads(Attack& attack);           // side objects of which only the first part comes
void OpenReflectionStreams(Attack& attack);  // hundreds, left open
void VerifyWithoutReading(Attack& attack);   // progress that nobody reads
void InventTenants(Attack& attack);          // a space each
void LeaveMatchesWaiting(Attack& attack);    // for blocks that never come
void MatchSlivers(Attack& attack);           // thousands of keys of a block in 64 slices
void MutateCalls(Attack& attack);            // every method, with bytes changed at random

// --- by strangers, who have no session (attacks_strangers.cc)
void SendSlowDescriptors(Attack& attack);  // whose close() takes a minute, to every unix socket
void CrowdDataSocket(Attack& attack);      // connections that say nothing, as many as it takes
void CrowdControl(Attack& attack);         // likewise
void CrowdControlInHttp2(Attack& attack);  // that say no more than that they speak HTTP/2

// --- on the data plane and below it (attacks_data.cc)
void GreetWithBadTickets(Attack& attack);  // as fast as it goes
void PutFromHoles(Attack& attack);         // payloads in memory that has no pages
void MutateFrames(Attack& attack);         // and envelopes
void HoldLoans(Attack& attack);            // and give back what is not theirs, or too early
void HoldDescriptors(Attack& attack);      // more connections than the daemon has descriptors
void StormHttp(Attack& attack);            // connections that say half a request, or nothing

}  // namespace cairn
