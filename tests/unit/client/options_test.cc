// SPDX-License-Identifier: Apache-2.0
#include "client/cpp/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

namespace cairn {
namespace {

using testing::HasSubstr;

ConnectOptions Valid() {
  ConnectOptions options;
  options.control = "127.0.0.1:50151";
  return options;
}

TEST(OptionsTest, TheDefaultsAreValidOnceControlIsNamed) {
  EXPECT_TRUE(Validate(Valid()).ok()) << Validate(Valid());
  EXPECT_FALSE(Validate(ConnectOptions()).ok());
}

struct Wrong {
  std::string field;
  std::function<void(ConnectOptions&)> spoil;
};

class WrongOptionTest : public testing::TestWithParam<Wrong> {};

TEST_P(WrongOptionTest, IsRefusedByItsName) {
  ConnectOptions options = Valid();
  GetParam().spoil(options);
  const absl::Status status = Validate(options);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr(GetParam().field));
}

INSTANTIATE_TEST_SUITE_P(
    Fields, WrongOptionTest,
    testing::Values(
        Wrong{"control", [](ConnectOptions& o) { o.control = ""; }},
        Wrong{"control", [](ConnectOptions& o) { o.control = "localhost"; }},
        Wrong{"control", [](ConnectOptions& o) { o.control = "localhost:0"; }},
        Wrong{"control", [](ConnectOptions& o) { o.control = "localhost:70000"; }},
        Wrong{"control", [](ConnectOptions& o) { o.control = ":50151"; }},
        Wrong{"control", [](ConnectOptions& o) { o.control = "unix:"; }},
        Wrong{"control", [](ConnectOptions& o) { o.control = "unix:/" + std::string(107, 'x'); }},
        Wrong{"data", [](ConnectOptions& o) { o.data = "/run/cairn.sock"; }},
        Wrong{"data", [](ConnectOptions& o) { o.data = "unix:"; }},
        Wrong{"data", [](ConnectOptions& o) { o.data = "unix:/" + std::string(107, 'x'); }},
        Wrong{"tenant", [](ConnectOptions& o) { o.tenant = ""; }},
        Wrong{"tenant", [](ConnectOptions& o) { o.tenant = std::string(65, 'x'); }},
        Wrong{"tenant", [](ConnectOptions& o) { o.tenant = "a/b"; }},
        Wrong{"name", [](ConnectOptions& o) { o.name = std::string(129, 'x'); }},
        Wrong{"connections", [](ConnectOptions& o) { o.connections = 0; }},
        Wrong{"connections", [](ConnectOptions& o) { o.connections = 17; }},
        Wrong{"window", [](ConnectOptions& o) { o.window = 0; }},
        Wrong{"window", [](ConnectOptions& o) { o.window = 65; }},
        Wrong{"region_bytes", [](ConnectOptions& o) { o.region_bytes = 4096; }},
        Wrong{"region_bytes", [](ConnectOptions& o) { o.region_bytes = uint64_t{1} << 40; }},
        Wrong{"timeout", [](ConnectOptions& o) { o.timeout = absl::Seconds(61); }},
        Wrong{"timeout", [](ConnectOptions& o) { o.timeout = absl::Seconds(-1); }},
        Wrong{"breaker.failures_to_open",
              [](ConnectOptions& o) { o.breaker.failures_to_open = 0; }},
        Wrong{"breaker.open_min",
              [](ConnectOptions& o) { o.breaker.open_max = absl::ZeroDuration(); }},
        Wrong{"breaker.probe_timeout",
              [](ConnectOptions& o) { o.breaker.probe_timeout = absl::ZeroDuration(); }}));

TEST(TimeoutTest, ZeroIsTheDefaultAndAMinuteTheMost) {
  EXPECT_EQ(*TimeoutOr(absl::ZeroDuration(), kDataTimeoutDefault), absl::Seconds(2));
  EXPECT_EQ(*TimeoutOr(absl::Seconds(60), kDataTimeoutDefault), absl::Seconds(60));
  EXPECT_FALSE(TimeoutOr(absl::Seconds(60) + absl::Milliseconds(1), kDataTimeoutDefault).ok());
}

}  // namespace
}  // namespace cairn
