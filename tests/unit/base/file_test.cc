// SPDX-License-Identifier: Apache-2.0
#include "base/file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <span>
#include <string>

#include "tests/support/temp_dir.h"

namespace cairn {
namespace {

bool IsOpen(int fd) { return ::fcntl(fd, F_GETFD) >= 0; }

TEST(Fd, ClosesWhatItOwns) {
  Fd first(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  const int number = first.get();
  ASSERT_TRUE(first.is_valid());
  Fd second(std::move(first));
  EXPECT_FALSE(
      first.is_valid());  // NOLINT(bugprone-use-after-move): the moved-from state is the subject
  EXPECT_EQ(second.get(), number);
  Fd third;
  third = std::move(second);
  EXPECT_TRUE(IsOpen(number));
  third.Reset();
  EXPECT_FALSE(IsOpen(number));
  Fd fourth(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  const int released = fourth.Release();
  fourth.Reset();
  EXPECT_TRUE(IsOpen(released));
  ::close(released);
}

TEST(ReadFile, ReadsUpToItsLimit) {
  const TempDir folder;
  const std::string path = folder.File("text");
  for (const std::size_t bytes : {0, 1, 65535, 65536, 65537, 200000}) {
    const std::string text(bytes, 'x');
    std::ofstream(path, std::ios::binary) << text;
    EXPECT_EQ(ReadFile(path, bytes).value(), text);
    EXPECT_EQ(ReadFile(path, 1 << 20).value(), text);
    if (bytes > 0) {
      EXPECT_EQ(ReadFile(path, bytes - 1).status().code(), absl::StatusCode::kResourceExhausted);
    }
  }
}

TEST(ReadFile, SaysWhatIsWrong) {
  const TempDir folder;
  const absl::Status missing = ReadFile(folder.File("none"), 10).status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_NE(missing.message().find(folder.File("none")), absl::string_view::npos);
  EXPECT_FALSE(ReadFile(folder.path().string(), 10).ok());
  EXPECT_EQ(ReadFile("/dev/zero", 100).status().code(), absl::StatusCode::kResourceExhausted);
}

TEST(WriteFileDurably, ReplacesAFile) {
  const TempDir folder;
  const std::string path = folder.File("file");
  const std::string longer(100'000, 'x');
  for (const std::string& text : {longer, std::string("short"), std::string()}) {
    ASSERT_TRUE(WriteFileDurably(path, std::as_bytes(std::span(text))).ok());
    EXPECT_EQ(ReadFile(path, 1 << 20).value(), text);
  }
  EXPECT_TRUE(absl::IsNotFound(ReadFile(path + ".new", 1).status()));
}

TEST(WriteFileDurably, LeavesWhatItCannotReplace) {
  const TempDir folder;
  EXPECT_TRUE(absl::IsNotFound(WriteFileDurably(folder.File("no/file"), {})));
  const std::string inner = folder.File("folder");
  std::filesystem::create_directory(inner);
  EXPECT_FALSE(WriteFileDurably(inner, {}).ok());
  EXPECT_TRUE(std::filesystem::is_directory(inner));
  EXPECT_FALSE(std::filesystem::exists(inner + ".new"));
  EXPECT_TRUE(SyncFolder(folder.path().string()).ok());
  EXPECT_TRUE(absl::IsNotFound(SyncFolder(folder.File("no"))));
}

}  // namespace
}  // namespace cairn
