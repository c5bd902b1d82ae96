// SPDX-License-Identifier: Apache-2.0
#include "client/cpp/route.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cstring>

#include "base/file.h"
#include "tests/support/temp_dir.h"

namespace cairn {
namespace {

using testing::HasSubstr;

class RouteTest : public testing::Test {
 protected:
  RouteTest() : listener_(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const std::string path = folder_.File("s");
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path.data(), path.size());
    CAIRN_CHECK(
        ::bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
    here_ = "unix:" + path;
  }
  ConnectOptions Options(bool has_tls, const std::string& transports = "",
                         const std::string& control = "10.0.0.1:50151") {
    ConnectOptions options;
    options.control = control;
    options.transports = transports;
    if (has_tls) options.tls.ca = "/ca.pem";
    return options;
  }
  std::string Choose(const ConnectOptions& options, const std::vector<std::string>& offered) {
    const auto chosen = ChooseDataAddress(options, offered);
    return chosen.ok() ? *chosen : "refused: " + std::string(chosen.status().message());
  }

  TempDir folder_;
  Fd listener_;
  std::string here_;
  const std::string stream_ = "tls:10.0.0.1:50160", ucx_ = "10.0.0.1:50170";
};

TEST_F(RouteTest, WithoutTlsASocketOfThisHost) {
  EXPECT_EQ(Choose(Options(false), {"unix:/away", here_, stream_, ucx_}), here_);
  EXPECT_THAT(Choose(Options(false), {"unix:/away", stream_}),
              HasSubstr("over TLS at tls:10.0.0.1:50160; set tls_ca"));
  EXPECT_THAT(Choose(Options(false), {ucx_}), HasSubstr("set data=\"10.0.0.1:50170\""));
  EXPECT_THAT(Choose(Options(false), {}), HasSubstr("no data address on this host"));
}

TEST_F(RouteTest, WithTlsTheStreamAndNothingElse) {
  EXPECT_EQ(Choose(Options(true), {here_, stream_, ucx_}), stream_)
      << "the ticket of a certificate does not work on a unix socket";
  EXPECT_EQ(Choose(Options(true, "", "unix:/control"), {here_, stream_}), here_);
  // A daemon that offers less, because it is older or because it lies, gets no connection.
  EXPECT_THAT(Choose(Options(true), {here_}), HasSubstr("no data address over TLS"));
  EXPECT_THAT(Choose(Options(true), {ucx_}), HasSubstr("add ucx to transports"));
  EXPECT_THAT(Choose(Options(true), {}), HasSubstr("--stream"));
}

TEST_F(RouteTest, TheUserNamesTransports) {
  EXPECT_EQ(Choose(Options(true, "ucx,stream"), {stream_, ucx_}), ucx_);
  EXPECT_EQ(Choose(Options(true, "stream,ucx"), {ucx_}), ucx_);
  EXPECT_EQ(Choose(Options(false, "local,ucx"), {ucx_}), ucx_);
  EXPECT_THAT(Choose(Options(false, "local"), {ucx_}), HasSubstr("refused"));
  for (const char* const bad : {"tcp", "local,", "local,local", "Local"}) {
    EXPECT_EQ(AllowedTransports(Options(true, bad)).status().code(),
              absl::StatusCode::kInvalidArgument)
        << bad;
  }
  EXPECT_THAT(std::string(AllowedTransports(Options(false, "stream")).status().message()),
              HasSubstr("set tls_ca"));
}

TEST_F(RouteTest, DataIsCheckedAtTheStart) {
  const auto refusal = [&](ConnectOptions options, const std::string& data) {
    options.data = data;
    return std::string(CheckDataOption(options).message());
  };
  EXPECT_EQ(refusal(Options(false), ucx_), "");
  EXPECT_EQ(refusal(Options(true), stream_), "");
  EXPECT_EQ(refusal(Options(true, "ucx"), ucx_), "");
  EXPECT_THAT(refusal(Options(true), ucx_), HasSubstr("UCX, without TLS"));
  EXPECT_THAT(refusal(Options(false), stream_), HasSubstr("set tls_ca"));
  EXPECT_THAT(refusal(Options(true, "stream"), here_), HasSubstr("not one of transports"));
}

TEST_F(RouteTest, AllAddressesOfADaemonAreWhereItsControlPlaneIs) {
  EXPECT_EQ(Choose(Options(true), {"tls:0.0.0.0:50160"}), stream_);
  EXPECT_EQ(Choose(Options(true, "", "[fd00::1]:50151"), {"tls:[::]:50160"}),
            "tls:[fd00::1]:50160");
}

TEST_F(RouteTest, TheNameIsThatOfTheControlPlane) {
  EXPECT_EQ(DataServerName(Options(true)), "10.0.0.1");
  EXPECT_EQ(DataServerName(Options(true, "", "[fd00::1]:1")), "fd00::1");
  EXPECT_EQ(DataServerName(Options(true, "", "unix:/control")), "");
  ConnectOptions options = Options(true);
  options.tls.server = "spiffe://prod.example/ns/cairn/sa/cairnd";
  EXPECT_EQ(DataServerName(options), options.tls.server);
}

}  // namespace
}  // namespace cairn
