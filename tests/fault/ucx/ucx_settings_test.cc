// SPDX-License-Identifier: Apache-2.0
// Settings took effect, and a hostile environment changes none. (ucp_config_modify() answers OK to
// any key, so only effects prove anything.)
#include <arpa/inet.h>
#include <dirent.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <unistd.h>

#include <fstream>
#include <set>
#include <string>

#include "tests/fault/ucx/raw_client.h"
#include "tests/fault/ucx/ucx_fixture.h"
#include "tests/fault/ucx/ucx_process.h"
#include "tests/support/temp_dir.h"
#include "transport/address.h"
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
  static constexpr std::pair<const char*, const char*> kHostile[] = {
      {"UCX_TLS", "all"},
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
      {"UCX_RNDV_SCHEME", "put_zcopy"}};
  static void SetHostileEnvironment() {
    for (const auto& [name, value] : kHostile) ASSERT_EQ(setenv(name, value, 1), 0);
  }
  void TearDown() override {
    for (const auto& [name, value] : kHostile) unsetenv(name);
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
  const auto loopback = ResolveAddresses("127.0.0.1", 1);
  ASSERT_TRUE(loopback.ok());
  EXPECT_EQ(*InterfaceTowards(loopback->front()), "lo");
  EXPECT_EQ(*InterfaceOf(loopback->front()), "lo");
  EXPECT_EQ(AddressText(loopback->front()), "127.0.0.1:1");
  const auto loopback6 = ResolveAddresses("::1", 80);
  ASSERT_TRUE(loopback6.ok());
  EXPECT_EQ(AddressText(loopback6->front()), "[::1]:80");
}

// What a node has for other users of UCX, and what is merely odd: a client or a daemon with it goes
// on as without, and UCX prints nothing.
TEST_F(UcxSettingsTest, NoVariableEndsTheProcess) {
  const std::vector<std::pair<std::string, std::string>> variables = {
      {"UCX_SOCKADDR_TLS_PRIORITY", "rdmacm"},
      {"UCX_SOCKADDR_TLS_PRIORITY", "sockcm"},
      {"UCX_CM_USE_ALL_DEVICES", "n"},
      {"UCX_TCP_AF_PRIO", "inet6"},
      {"UCX_UNIFIED_MODE", "y"},
      {"UCX_ALLOC_PRIO", "x"},
      {"UCX_KEEPALIVE_NUM_EPS", "0"},
      {"UCX_NUM_PPN", "inf"},
      {"UCX_RCACHE_ENABLE", "y"},
      {"UCX_RX_MPOOL_SIZES", "0"},
      {"UCX_SEG_SIZE", "inf"},
      {"UCX_SHM_DEVICES", "x"},
      {"UCX_TCP_CM_PRIV_DATA_LEN", "0"},
      {"UCX_TCP_FAILURE", "fatal"},
      {"UCX_TCP_MAX_CONN_RETRIES", "0"},
      {"UCX_TCP_MAX_POLL", "0"},
      {"UCX_TCP_RX_MAX_BUFS", "1"},
      {"UCX_TCP_SYN_CNT", "0"},
      {"UCX_TCP_TX_MAX_BUFS", "1"},
      {"UCX_TLS", "rc,cuda_copy"},
      {"UCX_NET_DEVICES", "mlx5_0:1"}};
  StartServer();
  for (const auto& variable : variables) {
    SCOPED_TRACE(variable.first + "=" + variable.second);
    UcxProcess client({"once", std::to_string(port)}, {variable});
    EXPECT_EQ(client.AwaitLine(absl::Seconds(30)), "");
    EXPECT_EQ(client.AwaitEnd(absl::Seconds(30)), 0);
  }
  UcxProcess daemon({"serve", "0"}, variables);
  const uint16_t there = daemon.AwaitPort();
  ASSERT_NE(there, 0);
  const auto connection = Connect(there);
  ASSERT_NE(connection, nullptr);
  EXPECT_EQ(Put(*connection, Pattern(1 << 20), 2), absl::OkStatus());
}

TEST_F(UcxSettingsTest, AValueThatUcxCannotReadIsRefusedByName) {
  StartServer();
  for (const char* name : {"UCX_BCOPY_BW", "UCX_TCP_MAX_IOV"}) {
    UcxProcess client({"once", std::to_string(port)}, {{name, "x"}, {"UCX_LOG_LEVEL", "fatal"}});
    const std::string line = client.AwaitLine(absl::Seconds(30));
    EXPECT_NE(line.find(name), line.npos) << line;
    EXPECT_EQ(client.AwaitEnd(absl::Seconds(30)), 1 << 8);
  }
}

// UCX listens at the first address of an interface only; another one would take connections that
// never come to anything.
TEST_F(UcxSettingsTest, AnAddressThatNobodyGetsThroughToIsRefused) {
  options.host = "127.0.0.2";
  const absl::Status second = StartUcxServer(options, {}, store).status();
  EXPECT_TRUE(absl::IsInvalidArgument(second)) << second;
  EXPECT_NE(second.message().find("of the interface lo, which is 127.0.0.1"),
            absl::string_view::npos)
      << second;
  // UCX 1.13 has no IPv6 on loopback, and ends the process of a client that tries it all the same.
  options.host = "::1";
  const absl::Status loopback6 = StartUcxServer(options, {}, store).status();
  EXPECT_TRUE(absl::IsUnavailable(loopback6)) << loopback6;
  EXPECT_NE(loopback6.message().find("no IPv6 on the interface lo"), absl::string_view::npos)
      << loopback6;
  UcxProcess client({"once", "7"}, {{"CAIRN_TEST_HOST", "::1"}, {"UCX_LOG_LEVEL", "fatal"}});
  EXPECT_NE(client.AwaitLine(absl::Seconds(30)).find("no IPv6 on the interface lo"),
            std::string::npos);
  EXPECT_EQ(client.AwaitEnd(absl::Seconds(30)), 1 << 8);
}

// Addresses of both families, of which each interface has a first and a second one.
TEST_F(UcxSettingsTest, TheFirstAddressOfEitherFamilyServes) {
  const auto run = [](const std::string& command) {
    return system((command + " >/dev/null 2>&1").c_str()) == 0;
  };
  // A mount namespace too: UCX looks for interfaces in /sys, which has to show the new one.
  if (unshare(CLONE_NEWNET | CLONE_NEWNS) != 0 ||
      mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
      mount("sysfs", "/sys", "sysfs", 0, nullptr) != 0 || !run("ip link set lo up") ||
      !run("ip link add cairn0 type veth peer name cairn1 && ip link set cairn1 up") ||
      !run("ip addr add 10.78.0.1/24 dev cairn0 && ip addr add 10.78.0.2/24 dev cairn0") ||
      !run("ip -6 addr add fd78::1/64 dev cairn0 nodad && ip link set cairn0 up")) {
    GTEST_SKIP() << "needs CAP_SYS_ADMIN and CAP_NET_ADMIN, ip and veth";
  }
  // UCX takes no interface that the kernel has not found to be running.
  ASSERT_TRUE(WaitFor([&] { return run("ip -o link show cairn0 | grep -q 'state UP'"); }));
  for (const char* host : {"10.78.0.1", "fd78::1"}) {
    SCOPED_TRACE(host);
    options.host = host;
    auto started = StartUcxServer(options, {}, store);
    ASSERT_TRUE(started.ok()) << started.status();
    const std::string address = (*started)->address();
    UcxProcess client({"once", address.substr(address.rfind(':') + 1)},
                      {{"CAIRN_TEST_HOST", host}});
    EXPECT_EQ(client.AwaitLine(absl::Seconds(30)), "");
    EXPECT_EQ(client.AwaitEnd(absl::Seconds(30)), 0);
  }
  options.host = "10.78.0.2";
  const absl::Status second = StartUcxServer(options, {}, store).status();
  EXPECT_TRUE(absl::IsInvalidArgument(second)) << second;
}

// A name of which only the second address has a daemon.
TEST_F(UcxSettingsTest, EachAddressOfANameIsTried) {
  const TempDir folder;
  const std::string hosts = folder.File("hosts");
  std::ofstream(hosts) << "::1 twofold\n127.0.0.1 twofold\n";
  if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
      mount(hosts.c_str(), "/etc/hosts", nullptr, MS_BIND, nullptr) != 0) {
    GTEST_SKIP() << "needs CAP_SYS_ADMIN";
  }
  const auto addresses = ResolveAddresses("twofold", 1);
  ASSERT_TRUE(addresses.ok()) << addresses.status();
  ASSERT_EQ(addresses->size(), 2);
  StartServer();
  UcxProcess client({"once", std::to_string(port)},
                    {{"CAIRN_TEST_HOST", "twofold"}, {"UCX_LOG_LEVEL", "fatal"}});
  EXPECT_EQ(client.AwaitLine(absl::Seconds(30)), "");
  EXPECT_EQ(client.AwaitEnd(absl::Seconds(30)), 0);
}

// Read by UCX before main(), so only looked at.
TEST_F(UcxSettingsTest, WhatOnlyTheEnvironmentCanSayIsWarnedOf) {
  const auto is = [](const char* name, const std::string& value) {
    const char* const found = getenv(name);
    return found != nullptr && found == value;
  };
  const size_t expected =
      (is("UCX_MEM_EVENTS", "n") ? 0u : 1u) + (is("UCX_HANDLE_ERRORS", "none") ? 0u : 1u);
  EXPECT_EQ(EnvironmentWarnings().size(), expected);
  setenv("UCX_MEM_EVENTS", "y", 1);  // too late to have an effect
  EXPECT_EQ(EnvironmentWarnings().size(), expected);
}

}  // namespace
}  // namespace cairn::transport
