// SPDX-License-Identifier: Apache-2.0
#include "transport/local/socket.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <thread>
#include <vector>

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

TEST(SocketFile, IsNotKeptFromStartingByALockOnItsFolder) {
  const TempDir folder;
  const Fd shared(open(folder.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  ASSERT_EQ(flock(shared.get(), LOCK_SH), 0);
  const auto file = SocketFile::Listen(folder.File("socket"));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_FALSE(Exists(folder.File("socket.lock"))) << "left behind";
}

TEST(SocketFile, FollowsNoLinkForItsLock) {
  const TempDir folder;
  std::ofstream(folder.File("precious")) << "precious";
  ASSERT_EQ(symlink(folder.File("precious").c_str(), folder.File("socket.lock").c_str()), 0);
  const auto file = SocketFile::Listen(folder.File("socket"));
  EXPECT_THAT(file.status().message(), ::testing::HasSubstr("socket.lock"));
  EXPECT_FALSE(file.ok());
}

TEST(SocketFile, OfTwoThatStartAtOnceOneWins) {
  const TempDir folder;
  for (int round = 0; round < 50; ++round) {
    std::atomic<int> won = 0;
    std::array<std::unique_ptr<SocketFile>, 4> files;
    std::vector<std::thread> threads;
    for (std::unique_ptr<SocketFile>& file : files) {
      threads.emplace_back([&] {
        auto made = SocketFile::Listen(folder.File("socket"));
        if (!made.ok()) return;
        file = std::make_unique<SocketFile>(*std::move(made));
        ++won;
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(won, 1);
    EXPECT_TRUE(ConnectSocketFile(folder.File("socket"), absl::InfiniteFuture()).ok());
  }
}

TEST(SocketFile, MakesAFileAgainThatHasGone) {
  const TempDir folder;
  const std::string path = folder.File("socket");
  auto file = SocketFile::Listen(path, SOCK_SEQPACKET, 0600);
  ASSERT_TRUE(file.ok());
  const int number = file->get();
  EXPECT_EQ(file->Keep().value(), false) << "nothing has happened";
  ASSERT_EQ(unlink(path.c_str()), 0);
  EXPECT_EQ(file->Keep().value(), true);
  EXPECT_EQ(file->get(), number);
  EXPECT_EQ(ModeOf(path) & 0777, 0600u);
  const auto client = ConnectSocketFile(path, absl::InfiniteFuture());
  ASSERT_TRUE(client.ok());
  EXPECT_TRUE(Fd(accept4(number, nullptr, nullptr, SOCK_CLOEXEC)).is_valid());
  EXPECT_EQ(file->Keep().value(), false);
  file = absl::CancelledError();
  EXPECT_FALSE(Exists(path));
}

TEST(SocketFile, MakesItsFolderAgain) {
  const TempDir folder;
  const std::string path = folder.File("made/socket");
  auto file = SocketFile::Listen(path);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(ModeOf(folder.File("made")) & 0777, 0700u);
  ASSERT_EQ(unlink(path.c_str()), 0);
  ASSERT_EQ(rmdir(folder.File("made").c_str()), 0);
  EXPECT_EQ(file->Keep().value(), true);
  EXPECT_TRUE(ConnectSocketFile(path, absl::InfiniteFuture()).ok());
}

TEST(SocketFile, LeavesNoFileWhereItWasMoved) {
  const TempDir folder;
  const std::string path = folder.File("socket"), moved = folder.File("moved");
  {
    auto file = SocketFile::Listen(path);
    ASSERT_TRUE(file.ok());
    ASSERT_EQ(rename(path.c_str(), moved.c_str()), 0);
  }
  EXPECT_FALSE(Exists(moved)) << "moved, and the daemon ended";
  {
    auto file = SocketFile::Listen(path);
    ASSERT_TRUE(file.ok());
    ASSERT_EQ(rename(path.c_str(), moved.c_str()), 0);
    EXPECT_EQ(file->Keep().value(), true);
    EXPECT_FALSE(Exists(moved));
    EXPECT_TRUE(Exists(path));
  }
  EXPECT_FALSE(Exists(path));
}

TEST(SocketFile, DoesNotFightOneThatTookItsPlace) {
  const TempDir folder;
  const std::string path = folder.File("socket");
  auto ours = SocketFile::Listen(path);
  ASSERT_TRUE(ours.ok());
  ASSERT_EQ(unlink(path.c_str()), 0);
  auto theirs = SocketFile::Listen(path);
  ASSERT_TRUE(theirs.ok());
  EXPECT_EQ(ours->Keep().status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(theirs->Keep().value(), false);
  theirs = absl::CancelledError();
  EXPECT_EQ(ours->Keep().value(), true) << "the other has gone";
  EXPECT_TRUE(ConnectSocketFile(path, absl::InfiniteFuture()).ok());
}

TEST(SocketFile, IsRefusedAFolderThatEverybodyMayWrite) {
  const TempDir temporary;
  const std::string folder = temporary.File("folder"), path = folder + "/socket";
  const uid_t uid = geteuid();
  ASSERT_EQ(mkdir(folder.c_str(), 0700), 0);
  const auto risk = [&](mode_t mode) {
    EXPECT_EQ(chmod(folder.c_str(), mode), 0);
    return FolderRiskOf(path, uid);
  };
  for (const mode_t mode : {0700, 0755, 02750}) EXPECT_EQ(risk(mode).text, "") << mode;
  EXPECT_THAT(risk(02770).text, ::testing::HasSubstr("is writable by group"));
  EXPECT_TRUE(SocketFile::Listen(path).ok()) << "its group is trusted, with a warning";
  EXPECT_THAT(risk(01777).text, ::testing::HasSubstr("is writable by everybody"));
  EXPECT_TRUE(SocketFile::Listen(path).ok()) << "nobody can take a file of ours away";
  EXPECT_TRUE(risk(0777).is_refused);
  EXPECT_EQ(SocketFile::Listen(path).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_FALSE(risk(0700).is_refused);
  if (uid != 0) {
    EXPECT_THAT(FolderRiskOf(path, uid + 1).text, ::testing::HasSubstr("uid"));
  }
}

// Anybody can make a folder of that name before the daemon does.
TEST(SocketFile, WantsTheDefaultFolderForItselfAlone) {
  const TempDir temporary;  // of such a name
  if (!temporary.path().string().starts_with("/tmp/cairn-")) GTEST_SKIP() << "TMPDIR is elsewhere";
  EXPECT_FALSE(FolderRiskOf(temporary.File("socket"), geteuid()).is_refused);
  ASSERT_EQ(chmod(temporary.path().c_str(), 0750), 0);
  EXPECT_EQ(SocketFile::Listen(temporary.File("socket")).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

// A client that does not wait, as gRPC's, is refused where the backlog is full.
TEST(SocketFile, HoldsACrowdThatNobodyHasAcceptedYet) {
  const TempDir folder;
  const auto file = SocketFile::Listen(folder.File("socket"));
  ASSERT_TRUE(file.ok());
  std::vector<Fd> crowd;
  for (int i = 0; i < 512; ++i) {
    auto next = ConnectSocketFile(folder.File("socket"), absl::InfinitePast());
    ASSERT_TRUE(next.ok()) << i << ": " << next.status();
    crowd.push_back(*std::move(next));
  }
}

TEST(ConnectSocketFile, WaitsForAFullBacklogNoLongerThanItsDeadline) {
  const TempDir folder;
  const auto file = SocketFile::Listen(folder.File("socket"));
  ASSERT_TRUE(file.ok());
  ASSERT_EQ(listen(file->get(), 16), 0);
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
