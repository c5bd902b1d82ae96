// SPDX-License-Identifier: Apache-2.0
#include "base/file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
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

}  // namespace
}  // namespace cairn
