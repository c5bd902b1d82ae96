// SPDX-License-Identifier: Apache-2.0
#pragma once
// A real cairnd, SDK clients of it, and blocks of a small model to put there.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "client/cpp/client.h"
#include "client/cpp/space.h"
#include "tests/e2e/daemon/daemon_process.h"

namespace cairn {

inline constexpr uint32_t kLayers = 4, kHeads = 4, kDim = 32, kTokens = 16;

// One group of kLayers layers with kHeads heads of kDim.
inline proto::SpaceIdentity ToyIdentity(codecs::DType dtype, const std::string& model) {
  proto::SpaceIdentity identity;
  identity.model = model;
  identity.weights_revision = "r1";
  identity.dtype = dtype;
  identity.tokens_per_block = kTokens;
  proto::GroupGeometry group;
  group.layers.resize(kLayers);
  std::iota(group.layers.begin(), group.layers.end(), 0U);
  group.kv_heads = kHeads;
  group.k_dim = kDim;
  group.v_dim = kDim;
  identity.groups.push_back(group);
  return identity;
}

// Finite numbers of the dtype, the same for the same seed.
inline std::vector<std::byte> ToyValues(codecs::DType dtype, size_t bytes, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<std::byte> values(bytes);
  if (dtype == codecs::DType::kFp32) {
    for (size_t i = 0; i + 4 <= bytes; i += 4) {
      const float value = normal(random);
      std::memcpy(&values[i], &value, 4);
    }
    return values;
  }
  if (codecs::ElementBytes(dtype) == 1) {  // any but what e5m2 has above its exponents
    for (std::byte& value : values) {
      value = static_cast<std::byte>(random() & 0xBB);
    }
    return values;
  }
  for (size_t i = 0; i + 2 <= bytes; i += 2) {
    // bf16: the upper half of a float. fp16: any pattern whose exponent is not all ones.
    uint16_t value = static_cast<uint16_t>(random());
    if (dtype == codecs::DType::kBf16) {
      const float number = normal(random);
      std::memcpy(&value, reinterpret_cast<const char*>(&number) + 2, 2);
    } else if ((value & 0x7C00) == 0x7C00) {
      value ^= 0x4000;
    }
    std::memcpy(&values[i], &value, 2);
  }
  return values;
}

// How bytes travel: shared memory behind a `unix:` address, or UCX behind a `HOST:PORT`. The others
// are of member_store.h.
enum class Plane : uint8_t { kLocal, kUcx, kMemberTls, kMemberUcx };

inline std::vector<Plane> Planes() {
  if (CLIENT_TEST_HAS_UCX != 0) {
    return {Plane::kLocal, Plane::kUcx};
  }
  return {Plane::kLocal};
}
inline std::string PlaneName(Plane plane) {
  constexpr const char* kNames[] = {"Local", "Ucx", "MemberTls", "MemberUcx"};
  return kNames[static_cast<size_t>(plane)];
}

// Long enough for a machine that does much else; a test of deadlines names its own.
inline constexpr absl::Duration kPatience = absl::Seconds(20);

class ClientTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    std::vector<std::string> flags;
    if (CLIENT_TEST_HAS_UCX != 0) {
      flags.emplace_back("--data=127.0.0.1:0");
    }
    auto started = DaemonProcess::Start(flags);
    ASSERT_TRUE(started.ok()) << started.status();
    daemon_ = std::move(*started).release();
  }
  static void TearDownTestSuite() {
    delete daemon_;
    daemon_ = nullptr;
  }
  void SetUp() override { ASSERT_NE(daemon_, nullptr); }

  // The plane that the SDK chooses by itself.
  static ConnectOptions Options(const std::string& tenant = "default") {
    ConnectOptions options;
    options.control = daemon_->endpoint("control");
    options.tenant = tenant;
    options.timeout = kPatience;
    return options;
  }
  static ConnectOptions OptionsOver(Plane plane) {
    ConnectOptions options = Options();
    options.data =
        plane == Plane::kUcx ? daemon_->endpoint("data") : "unix:" + daemon_->endpoint("socket");
    return options;
  }
  // Null, and the test failed, when it does not work: ASSERT_NE() the last of a row of them.
  static std::unique_ptr<Client> Connect(const ConnectOptions& options) {
    auto client = Client::Connect(options);
    EXPECT_TRUE(client.ok()) << client.status();
    return client.ok() ? *std::move(client) : nullptr;
  }
  static std::unique_ptr<Space> Open(const std::unique_ptr<Client>& client,
                                     const proto::SpaceIdentity& identity,
                                     const std::string& recipe = "raw") {
    if (client == nullptr) {
      return nullptr;
    }
    auto space = client->OpenSpace(identity, recipe, kPatience);
    EXPECT_TRUE(space.ok()) << space.status();
    return space.ok() ? *std::move(space) : nullptr;
  }
  // A model of this test's own.
  static std::string Model() {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    return std::string(info->test_suite_name()) + "." + info->name();
  }

  static DaemonProcess* daemon_;
};

inline DaemonProcess* ClientTest::daemon_ = nullptr;

// Runs over each data plane,
class PlaneTest : public ClientTest, public testing::WithParamInterface<Plane> {
 protected:
  static ConnectOptions Options() { return OptionsOver(GetParam()); }
};
// or for each value of T over each.
template <typename T>
class PlaneAndTest : public ClientTest, public testing::WithParamInterface<std::tuple<T, Plane>> {
 protected:
  using Both = testing::WithParamInterface<std::tuple<T, Plane>>;
  static ConnectOptions Options() { return OptionsOver(std::get<1>(Both::GetParam())); }
  static const T& Param() { return std::get<0>(Both::GetParam()); }
};

inline std::string NameOfPlane(const testing::TestParamInfo<Plane>& info) {
  return PlaneName(info.param);
}

// Tokens of a sequence of `blocks` blocks.
inline std::vector<uint32_t> ToyTokens(size_t blocks, uint32_t first = 1) {
  std::vector<uint32_t> tokens(blocks * kTokens);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

}  // namespace cairn
