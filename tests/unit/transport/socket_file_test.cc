// SPDX-License-Identifier: Apache-2.0
#include "transport/local/socket_file.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <optional>

#include "base/clock.h"
#include "tests/support/temp_dir.h"

namespace cairn::transport {
namespace {

mode_t ModeOf(const std::string& path) {
  struct stat file {};
  EXPECT_EQ(lstat(path.c_str(), &file), 0);
  return file.st_mode;
}

bool Exists(const std::string& path) { return access(path.c_str(), F_OK) == 0; }

TEST(SocketFile, IsForOwnerAndGroupWhateverTheUmask) {
  const TempDir folder;
  for (const mode_t mask : {0, 022, 077}) {
    const mode_t before = umask(mask);
    const auto file = SocketFile::Listen(folder.File("socket"));
    umask(before);
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_EQ(ModeOf(folder.File("socket")) & 0777, 0660u);
    EXPECT_TRUE(ConnectSocketFile(folder.File("socket"), absl::InfiniteFuture()).ok());
  }
  EXPECT_FALSE(Exists(folder.File("socket")));
}

TEST(SocketFile, ReplacesOneThatNobodyListensAt) {
  const TempDir folder;
  const std::string path = folder.File("socket");
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strcpy(address.sun_path, path.c_str());
  {
    const Fd dead(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    ASSERT_EQ(bind(dead.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  }
  ASSERT_TRUE(Exists(path));
  const auto file = SocketFile::Listen(path);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_TRUE(ConnectSocketFile(path, absl::InfiniteFuture()).ok());
}

TEST(SocketFile, LeavesALivingOneAlone) {
  const TempDir folder;
  const std::string path = folder.File("socket");
  const auto first = SocketFile::Listen(path);
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(SocketFile::Listen(path).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(ConnectSocketFile(path, absl::InfiniteFuture()).ok());

  // Somebody else's socket of another type is alive too.
  const std::string other = folder.File("stream");
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strcpy(address.sun_path, other.c_str());
  const Fd stream(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(bind(stream.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_EQ(listen(stream.get(), 1), 0);
  EXPECT_EQ(SocketFile::Listen(other).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(SocketFile, TouchesNothingThatIsNoSocket) {
  const TempDir folder;
  std::ofstream(folder.File("file")) << "precious";
  EXPECT_EQ(SocketFile::Listen(folder.File("file")).status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(S_ISREG(ModeOf(folder.File("file"))));
  EXPECT_EQ(SocketFile::Listen(folder.File("no/such/folder")).status().code(),
            absl::StatusCode::kUnavailable);
  EXPECT_EQ(SocketFile::Listen("").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(SocketFile::Listen(std::string(108, 'x')).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(SocketFile, RemovesOnlyItsOwnFile) {
  const TempDir folder;
  const std::string path = folder.File("socket");
  auto first = SocketFile::Listen(path);
  ASSERT_TRUE(first.ok());
  ASSERT_EQ(unlink(path.c_str()), 0);
  const auto second = SocketFile::Listen(path);
  ASSERT_TRUE(second.ok());
  first = absl::CancelledError();
  EXPECT_TRUE(Exists(path));
}

TEST(ConnectSocketFile, WaitsForAFullBacklogNoLongerThanItsDeadline) {
  const TempDir folder;
  const auto file = SocketFile::Listen(folder.File("socket"));
  ASSERT_TRUE(file.ok());
  std::vector<Fd> waiting;
  absl::Status status;
  while (status.ok() && waiting.size() < 1000) {
    auto next = ConnectSocketFile(folder.File("socket"), MonotonicNow() + absl::Milliseconds(50));
    status = next.status();
    if (next.ok()) {
      waiting.push_back(*std::move(next));
    }
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
}

}  // namespace
}  // namespace cairn::transport
