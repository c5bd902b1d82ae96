// SPDX-License-Identifier: Apache-2.0
// io_uring refused as the seccomp profiles of containers refuse it.
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <cstddef>
#include <functional>
#include <thread>

#include "tests/conformance/io/suite.h"
#include "tests/support/log_capture.h"

namespace cairn {
namespace {

// On a thread of its own, to which the filter is confined.
void WithoutCall(long number, int error, const std::function<void()>& run) {
  std::thread thread([&] {
    const auto action = static_cast<uint32_t>(SECCOMP_RET_ERRNO | error);
    sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(number), 0, 1),
        BPF_STMT(BPF_RET | BPF_K, action),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const sock_fprog filter = {.len = std::size(code), .filter = code};
    if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0) {
      GTEST_SKIP() << "no seccomp filter may be set here";
    }
    run();
  });
  thread.join();
}

class IoRefused : public ::testing::TestWithParam<std::pair<long, int>> {};

INSTANTIATE_TEST_SUITE_P(Calls, IoRefused,
                         ::testing::Values(std::pair{SYS_io_uring_setup, EPERM},
                                           std::pair{SYS_io_uring_setup, ENOSYS},
                                           std::pair{SYS_io_uring_enter, EPERM}));

TEST_P(IoRefused, ThreadsMoveTheBytesAndTheLogSaysWhy) {
  const auto& [number, error] = GetParam();
  WithoutCall(number, error, [error = error] {
    const LogCapture log;
    const auto uring = MakeIoEngine(IoChoice::kUring, {});
    EXPECT_TRUE(absl::IsFailedPrecondition(uring.status())) << uring.status();
    EXPECT_EQ(log.Lines().size(), 0u);
    const auto engine = MakeIoEngine(IoChoice::kAuto, {});
    ASSERT_TRUE(engine.ok()) << engine.status();
    EXPECT_EQ((*engine)->name(), "threads");
    EXPECT_EQ(log.Count("io_uring is refused"), 1u);
    const bool is_built = uring.status().message().find("liburing") == std::string::npos;
    const char* reason = !is_built        ? "liburing"
                         : error == EPERM ? "Operation not permitted"
                                          : "Function not implemented";
    EXPECT_EQ(log.Count(reason), 1u) << log.Lines().front();
  });
}

TEST(IoChoiceTest, EachIsWhatItIsCalled) {
  EXPECT_EQ((*MakeIoEngine(IoChoice::kThreads, {}))->name(), "threads");
  const auto uring = MakeIoEngine(IoChoice::kUring, {});
  const auto automatic = MakeIoEngine(IoChoice::kAuto, {});
  ASSERT_TRUE(automatic.ok());
  EXPECT_EQ((*automatic)->name(), uring.ok() ? "uring" : "threads");
}

}  // namespace
}  // namespace cairn
