// SPDX-License-Identifier: Apache-2.0
// Where a tier may lie.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/mount.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/support/ssd_shelf.h"
#include "tests/support/temp_dir.h"
#include "tests/support/wait.h"

namespace cairn {
namespace {

using testing::HasSubstr;

TEST(SsdFolderTest, RefusesFoldersThatItCannotUse) {
  const auto error_of = [](const std::string& path, uint64_t bytes) {
    return std::string(SsdTier::Make({.devices = {{path, bytes}},
                                      .io = IoChoice::kThreads,
                                      .keep_free_bytes = 0,
                                      .lock_wait = absl::ZeroDuration()})
                           .status()
                           .ToString());
  };
  SsdShelf shelf;
  EXPECT_THAT(error_of(shelf.folder(), 1_GiB), HasSubstr("another process still uses it"));
  EXPECT_THAT(error_of(shelf.folder(7), 1_MiB), HasSubstr("at least 256MiB"));
  EXPECT_TRUE(absl::IsInvalidArgument(SsdTier::Make({}).status()));
}

TEST(SsdFolderTest, RefusesTwoPathsOfOneFolder) {
  const TempDir folder(std::filesystem::current_path());
  const std::string path = folder.File("drive"), link = folder.File("link");
  std::filesystem::create_symlink(path, link);
  const auto tier = SsdTier::Make({.devices = {{path, 256_MiB}, {link, 256_MiB}},
                                   .io = IoChoice::kThreads,
                                   .keep_free_bytes = 0,
                                   .lock_wait = absl::ZeroDuration()});
  EXPECT_TRUE(absl::IsInvalidArgument(tier.status())) << tier.status();
  EXPECT_THAT(std::string(tier.status().message()), HasSubstr(link + " are the same folder"));
}

// Whoever may write to the folder would have another file of the daemon's user made or locked.
TEST(SsdFolderTest, FollowsNoLinkInTheFolder) {
  const TempDir folder(std::filesystem::current_path());
  const std::string path = folder.File("drive"), other = folder.File("other");
  std::filesystem::create_directory(path);
  std::filesystem::create_symlink(other, path + "/LOCK");
  const auto tier = SsdTier::Make({.devices = {{path, 256_MiB}},
                                   .io = IoChoice::kThreads,
                                   .keep_free_bytes = 0,
                                   .lock_wait = absl::ZeroDuration()});
  ASSERT_TRUE(tier.ok()) << tier.status();
  EXPECT_EQ((*tier)->Devices()[0].state, DeviceState::kOut);
  EXPECT_FALSE(std::filesystem::exists(other));
}

TEST(SsdFolderTest, AFolderOfADiskThatIsNotMountedIsMissingUntilItIs) {
  const TempDir folder(std::filesystem::current_path());
  const std::string fstab = (folder.path() / "fstab").string();
  const std::string point = (folder.path() / "disk").string();
  std::filesystem::create_directories(point);
  std::ofstream(fstab) << "# a comment\nUUID=1 / ext4 defaults 0 1\nUUID=2 none swap sw 0 0\n"
                       << "UUID=3 /proc proc defaults 0 0\n"
                       << "UUID=4 " << point << "/ ext4 defaults 0 2\n";
  SsdShelf shelf({.folder = point, .fstab = fstab, .probe_after = absl::Milliseconds(100)});
  const auto state = [&] { return shelf.tier().Devices()[0]; };
  EXPECT_EQ(state().state, DeviceState::kOut);
  EXPECT_EQ(state().reason, point + " is not mounted, but " + fstab + " lists a file system there");
  EXPECT_TRUE(absl::IsUnavailable(shelf.Put(1)));
  EXPECT_TRUE(std::filesystem::is_empty(point)) << "nothing is written to the disk above";
  std::ofstream(fstab) << "UUID=3 /proc proc defaults 0 0\n";  // as if it were mounted
  EXPECT_TRUE(WaitFor([&] { return state().state == DeviceState::kOk; }));
  EXPECT_TRUE(shelf.Put(1).ok());
}

TEST(SsdFolderTest, RefusesAFileSystemInMemory) {
  const TempDir folder;
  const std::string path = folder.path().string();
  if (::mount("tmpfs", path.c_str(), "tmpfs", 0, "size=1m") != 0) {
    GTEST_SKIP() << "mounting a tmpfs is not permitted here";
  }
  SsdTier::Options options;
  options.devices.push_back({path, 1_GiB});
  const auto tier = SsdTier::Make(options);
  EXPECT_EQ(::umount(path.c_str()), 0);
  EXPECT_TRUE(absl::IsInvalidArgument(tier.status()));
  EXPECT_THAT(std::string(tier.status().message()), HasSubstr("is memory"));
}

TEST(SsdFolderTest, RefusesTheFileSystemOfAContainer) {
  const TempDir folder;
  const std::string root = folder.path().string();
  for (const char* name : {"/lower", "/upper", "/work", "/merged"}) {
    std::filesystem::create_directory(root + name);
  }
  const std::string options =
      absl::StrCat("lowerdir=", root, "/lower,upperdir=", root, "/upper,workdir=", root, "/work");
  const std::string path = root + "/merged";
  if (::mount("overlay", path.c_str(), "overlay", 0, options.c_str()) != 0) {
    GTEST_SKIP() << "mounting an overlayfs is not permitted here";
  }
  SsdTier::Options tier_options;
  tier_options.devices.push_back({path, 1_GiB});
  const auto tier = SsdTier::Make(tier_options);
  EXPECT_EQ(::umount(path.c_str()), 0);
  EXPECT_TRUE(absl::IsInvalidArgument(tier.status()));
  EXPECT_THAT(std::string(tier.status().message()), HasSubstr("overlayfs"));
}

}  // namespace
}  // namespace cairn
