// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/transport/stream_under_test.h"

namespace cairn::transport {

std::unique_ptr<TransportUnderTest> MakeTransport() {
  return std::make_unique<StreamUnderTest>(/*is_strained=*/false);
}

}  // namespace cairn::transport
