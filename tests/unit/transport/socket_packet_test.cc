// SPDX-License-Identifier: Apache-2.0
#include "transport/local/socket.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <vector>

namespace cairn::transport {
namespace {

class PacketTest : public testing::Test {
 protected:
  PacketTest() {
    int ends[2] = {-1, -1};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
    ours_.Reset(ends[0]);
    theirs_.Reset(ends[1]);
  }
  // Of that many bytes; with a descriptor where `fd` is one.
  absl::Status Send(size_t bytes, int fd = -1) {
    const std::vector<std::byte> data(bytes);
    return SendPacket(theirs_.get(), data, fd);
  }
  Fd ours_, theirs_;
};

TEST_F(PacketTest, ASocketEndsWithoutDescriptors) {
  for (const size_t bytes : {1, 0, 0, 100}) EXPECT_EQ(Send(bytes), absl::OkStatus());
  EXPECT_TRUE(EndConnection(ours_.get()));
  EXPECT_EQ(Send(1).code(), absl::StatusCode::kUnavailable) << "nothing comes any more";
}

TEST_F(PacketTest, ADescriptorThatWaitsIsSeen) {
  for (const size_t bytes : {1, 0}) {  // of the packet that brings it
    int ends[2] = {-1, -1};
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
    ours_.Reset(ends[0]);
    theirs_.Reset(ends[1]);
    const Fd file(open("/dev/null", O_RDONLY | O_CLOEXEC));
    for (const size_t before : {5, 0, 0}) EXPECT_EQ(Send(before), absl::OkStatus());
    EXPECT_EQ(Send(bytes, file.get()), absl::OkStatus());
    EXPECT_FALSE(EndConnection(ours_.get())) << bytes;
    EXPECT_FALSE(EndConnection(ours_.get())) << "it is not taken";
  }
}

TEST_F(PacketTest, ASocketWhosePeerIsGoneEnds) {
  theirs_.Reset();
  EXPECT_TRUE(EndConnection(ours_.get()));
}

TEST_F(PacketTest, DescriptorsCanBeRefused) {
  const Fd file(open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!RefuseDescriptors(ours_.get())) GTEST_SKIP() << "the kernel has no SO_PASSRIGHTS";
  EXPECT_FALSE(Send(1, file.get()).ok());
  EXPECT_EQ(Send(1), absl::OkStatus());
  EXPECT_EQ(ReceivePacket(ours_.get()).outcome, Packet::Outcome::kPacket);
}

TEST_F(PacketTest, WhatWaitsIsClosedWithTheSocket) {
  int pipe_ends[2] = {-1, -1};
  ASSERT_EQ(pipe2(pipe_ends, O_CLOEXEC | O_NONBLOCK), 0);
  const Fd reader(pipe_ends[0]);
  Fd writer(pipe_ends[1]);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(Send(1, writer.get()), absl::OkStatus());
  std::vector<Fd> fds;
  fds.push_back(std::move(writer));
  char byte = 0;
  EXPECT_EQ(read(reader.get(), &byte, 1), -1) << "a writer is open";
  CloseSlowly(std::move(ours_), std::move(fds));
  EXPECT_EQ(read(reader.get(), &byte, 1), 0) << "no writer is left";
}

}  // namespace
}  // namespace cairn::transport
