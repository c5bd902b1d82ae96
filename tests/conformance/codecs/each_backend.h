// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tests of every compiled backend. One that this CPU cannot run is reported as skipped, by name.

#include <gtest/gtest.h>

#include <iostream>
#include <random>
#include <string>

#include "codecs/backend/backend_operation.h"
#include "codecs/backend/backends.h"
#include "tests/conformance/codecs/tiles.h"
#include "tests/support/random.h"

namespace cairn::codecs {

class EachBackendTest : public testing::TestWithParam<const Backend*> {
 protected:
  void SetUp() override {
    if (!GetParam()->is_supported()) {
      GTEST_SKIP() << "backend " << GetParam()->name << " is not supported by this CPU";
    }
    std::cout << "backend " << GetParam()->name << " runs\n";
  }

  [[nodiscard]] uint32_t Below(uint64_t bound) { return static_cast<uint32_t>(random_() % bound); }

  GuardedBytes AnyBytes(size_t count) {
    GuardedBytes bytes(count, maker_.Misalignment());
    for (size_t i = 0; i < count; ++i) bytes.data()[i] = static_cast<uint8_t>(random_());
    return bytes;
  }

  std::mt19937_64 random_ = SeededRandom();
  TileMaker maker_{random_};
};

#define CAIRN_EACH_BACKEND(Suite)                                                               \
  INSTANTIATE_TEST_SUITE_P(                                                                     \
      Backends, Suite, testing::ValuesIn(CompiledBackends().begin(), CompiledBackends().end()), \
      [](const auto& info) { return std::string(info.param->name); })

}  // namespace cairn::codecs
