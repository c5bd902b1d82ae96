// SPDX-License-Identifier: Apache-2.0
// The suite's program; with --peer it is a client in a process of its own instead (peer.h).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string_view>

#include "tests/conformance/transport/peer.h"

int main(int argc, char** argv) {
  if (argc == 4 && std::string_view(argv[1]) == "--peer") {
    return cairn::transport::RunPeer(argv[2], argv[3]);
  }
  testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
