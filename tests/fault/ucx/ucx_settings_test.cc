// SPDX-License-Identifier: Apache-2.0
// Settings took effect, and a hostile environment changes none. (ucp_config_modify() answers OK to
// any key, so only effects prove anything.)
#include <arpa/inet.h>
#include <dirent.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <set>
#include <string>

#include "tests/fault/ucx/raw_client.h"
#include "tests/fault/ucx/ucx_fixture.h"
#include "transport/ucx/address.h"
#include "transport/ucx/settings.h"

namespace cairn::transport {
namespace {

struct TcpSocket {
  int fd = -1;
  bool is_listening = false;
  std::string local;  // "127.0.0.1"
  uint16_t port = 0;
};

int Option(int fd, int level, int name) {
  int value = -1;
  socklen_t bytes = sizeof(value);
  return getsockopt(fd, level, name, &value, &bytes) == 0 ? value : -1;
}

// All TCP sockets of this process.
std::vector<TcpSocket> TcpSockets() {
  std::vector<TcpSocket> sockets;
  DIR* const folder = opendir("/proc/self/fd");
  while (const dirent* const entry = readdir(folder)) {
    const int fd = atoi(entry->d_name);
    sockaddr_in address{};
    socklen_t bytes = sizeof(address);
    if (entry->d_name[0] == '.' || Option(fd, SOL_SOCKET, SO_PROTOCOL) != IPPROTO_TCP ||
        getsockname(fd, reinterpret_cast<sockaddr*>(&address), &bytes) != 0) {
      continue;
    }
    char text[INET_ADDRSTRLEN] = "?";
    if (address.sin_family == AF_INET) inet_ntop(AF_INET, &address.sin_addr, text, sizeof(text));
    sockets.push_back(
        {fd, Option(fd, SOL_SOCKET, SO_ACCEPTCONN) == 1, text, ntohs(address.sin_port)});
  }
  closedir(folder);
  return sockets;
}

class UcxSettingsTest : public UcxFixture {
 protected:
  // What someone could have put into a pod's environment. Those that abort UCX outright
  // (PROTO_ENABLE) or hang it (MAX_IOV) are here too.
  static void SetHostileEnvironment() {
    for (const auto& [name, value] :
         std::vector<std::pair<const char*, const char*>>{{"UCX_TLS", "all"},
                                                          {"UCX_NET_DEVICES", "all"},
                                                          {"UCX_MAX_RNDV_RAILS", "4"},
                                                          {"UCX_TCP_RX_SEG_SIZE", "8k"},
                                                          {"UCX_TCP_TX_SEG_SIZE", "4k"},
                                                          {"UCX_TCP_MAX_IOV", "32"},
                                                          {"UCX_TCP_CM_REUSEADDR", "n"},
                                                          {"UCX_TCP_KEEPIDLE", "1000s"},
                                                          {"UCX_TCP_KEEPCNT", "20"},
                                                          {"UCX_TCP_KEEPINTVL", "100s"},
                                                          {"UCX_PROTO_ENABLE", "y"},
                                                          {"UCX_CMA_MEMORY_INVALIDATE", "y"},
                                                          {"UCX_MM_ERROR_HANDLING", "y"},
                                                          {"UCX_RNDV_SCHEME", "put_zcopy"}}) {
      ASSERT_EQ(setenv(name, value, 1), 0);
    }
  }
};

TEST_F(UcxSettingsTest, AHostileEnvironmentChangesNothing) {
  SetHostileEnvironment();
  options.limits.lanes = 2;
  StartServer();
  const auto connection = Connect();
  ASSERT_NE(connection, nullptr);
  const std::vector<std::byte> payload = Pattern(32 << 20);
  EXPECT_EQ(Put(*connection, payload, 2), absl::OkStatus());
  std::vector<std::byte> target(200 << 10);
  EXPECT_EQ(Get(*connection, target, 3), absl::OkStatus());

  // Nothing is bound outside the named address, by the daemon or the client.
  int listening = 0;
  int with_keepalive = 0;
  for (const TcpSocket& socket : TcpSockets()) {
    EXPECT_EQ(socket.local, "127.0.0.1") << socket.port;
    if (socket.is_listening) ++listening;
    if (socket.is_listening && socket.port == port) {
      EXPECT_EQ(Option(socket.fd, SOL_SOCKET, SO_REUSEADDR), 1);
    }
    if (!socket.is_listening && Option(socket.fd, SOL_SOCKET, SO_KEEPALIVE) == 1) {
      ++with_keepalive;
      EXPECT_EQ(Option(socket.fd, IPPROTO_TCP, TCP_KEEPIDLE), 5);
      EXPECT_EQ(Option(socket.fd, IPPROTO_TCP, TCP_KEEPINTVL), 1);
      EXPECT_EQ(Option(socket.fd, IPPROTO_TCP, TCP_KEEPCNT), 3);
    }
  }
  EXPECT_GE(listening, 4);  // the listener, and a data port for each worker
  EXPECT_GE(with_keepalive, 1);

  // A peer with segments of 256 KiB is served: the receive segment is ours, not the environment's.
  RawClient large(port, {{"TX_SEG_SIZE", "256k"}});
  HeaderBytes header;
  header.Set(0, PutRequest(9, payload));
  EXPECT_EQ(large.Send(kRequestId, std::span(header.data).first(header.size), payload,
                       RawClient::How::kRendezvous),
            UCS_OK);
  EXPECT_FALSE(large.AwaitReply().empty());
}

// Between processes of one host the environment would make UCX take shared memory: the only
// descriptors are TCP's.
TEST_F(UcxSettingsTest, NoSharedMemoryIsMapped) {
  SetHostileEnvironment();
  StartServer();
  const auto connection = Connect();
  ASSERT_NE(connection, nullptr);
  EXPECT_EQ(Put(*connection, Pattern(4 << 20), 2), absl::OkStatus());
  FILE* const maps = fopen("/proc/self/maps", "r");
  ASSERT_NE(maps, nullptr);
  char line[4096];
  while (fgets(line, sizeof(line), maps) != nullptr) {
    EXPECT_EQ(std::string(line).find("ucx_shm"), std::string::npos) << line;
    EXPECT_EQ(std::string(line).find("SYSV"), std::string::npos) << line;
  }
  fclose(maps);
}

TEST_F(UcxSettingsTest, DataPortsKeepToTheirRange) {
  options.port_range = "42000-42100";
  StartServer();
  int inside = 0;
  for (const TcpSocket& socket : TcpSockets()) {
    if (!socket.is_listening || socket.port == port) continue;
    EXPECT_GE(socket.port, 42000);
    EXPECT_LE(socket.port, 42100);
    ++inside;
  }
  EXPECT_GE(inside, 2);  // of the lane's worker and the listener's
}

TEST_F(UcxSettingsTest, WildcardsNamesAndForeignAddressesAreRefused) {
  for (const char* host : {"0.0.0.0", "::", "", "localhost", "192.0.2.123", "not an address"}) {
    SCOPED_TRACE(host);
    options.host = host;
    const auto started = StartUcxServer(options, {}, store);
    EXPECT_TRUE(absl::IsInvalidArgument(started.status())) << started.status();
  }
  options.host = "127.0.0.1";
  for (const char* range : {"1", "5-4", "0-10", "40000-70000", "a-b", "1-2-3"}) {
    SCOPED_TRACE(range);
    options.port_range = range;
    const auto started = StartUcxServer(options, {}, store);
    EXPECT_TRUE(absl::IsInvalidArgument(started.status())) << started.status();
  }
  options.port_range = "";
  options.limits.lanes = 0;
  EXPECT_TRUE(absl::IsInvalidArgument(StartUcxServer(options, {}, store).status()));
}

TEST_F(UcxSettingsTest, APortInUseIsUnavailable) {
  StartServer();
  UcxServerOptions same = options;
  same.port = port;
  const auto started = StartUcxServer(same, {}, store);
  EXPECT_TRUE(absl::IsUnavailable(started.status())) << started.status();
}

TEST_F(UcxSettingsTest, TheInterfaceIsTheOneThatReachesTheHost) {
  const auto loopback = ResolveAddress("127.0.0.1", 1);
  ASSERT_TRUE(loopback.ok());
  EXPECT_EQ(*InterfaceTowards(*loopback), "lo");
  EXPECT_EQ(*InterfaceOf(*loopback), "lo");
  EXPECT_EQ(AddressText(*loopback), "127.0.0.1:1");
  const auto loopback6 = ResolveAddress("::1", 80);
  ASSERT_TRUE(loopback6.ok());
  EXPECT_EQ(AddressText(*loopback6), "[::1]:80");
}

// Read by UCX before main(), so only looked at.
TEST_F(UcxSettingsTest, WhatOnlyTheEnvironmentCanSayIsWarnedOf) {
  setenv("UCX_MEM_EVENTS", "n", 1);
  const size_t warnings = EnvironmentWarnings().size();
  setenv("UCX_MEM_EVENTS", "y", 1);
  EXPECT_EQ(EnvironmentWarnings().size(), warnings + 1);
  unsetenv("UCX_MEM_EVENTS");
  EXPECT_EQ(EnvironmentWarnings().size(), warnings + 1);
  const char* const handled = getenv("UCX_HANDLE_ERRORS");
  const bool is_none = handled != nullptr && std::string(handled) == "none";
  EXPECT_EQ(warnings, is_none ? 0u : 1u);
}

}  // namespace
}  // namespace cairn::transport
