// SPDX-License-Identifier: Apache-2.0
#include "service/front/request_bound.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

#include "cairn/v1/store.pb.h"
#include "service/limits.h"
#include "tests/support/random.h"

namespace cairn {
namespace {

absl::Status Check(const std::string& bytes, const RequestBound& bound = {}) {
  // In slices, as gRPC receives it.
  const size_t half = bytes.size() / 2;
  const grpc::Slice slices[] = {grpc::Slice(bytes.substr(0, half)),
                                grpc::Slice(bytes.substr(half))};
  grpc::ByteBuffer buffer(slices, 2);
  const absl::Status status = CheckRequest(buffer, bound);
  EXPECT_EQ(buffer.Length(), bytes.size());
  return status;
}

v1::MatchRequest LargestMatch() {
  v1::MatchRequest request;
  request.set_ticket(std::string(16, 't'));
  request.set_space_id(~uint64_t{0});
  request.set_lease(true);
  for (size_t i = 0; i < limits::kKeysPerCallMax; ++i) request.add_keys(std::string(32, 'k'));
  for (size_t i = 0; i < limits::kGroupsPerSpaceMax; ++i) {
    request.add_slices()->set_layer_count(70'000);
    request.add_groups_skipped(~0u);
  }
  return request;
}

constexpr RequestBound kKeys = {.bulk_field = v1::MatchRequest::kKeysFieldNumber,
                                .bulk_count_max = limits::kKeysPerCallMax};

TEST(RequestBound, TheLargestHonestRequestPasses) {
  EXPECT_EQ(Check(LargestMatch().SerializeAsString(), kKeys), absl::OkStatus());
  EXPECT_EQ(Check(""), absl::OkStatus());
}

TEST(RequestBound, OneMoreDoesNot) {
  v1::MatchRequest request = LargestMatch();
  request.add_keys("");
  EXPECT_TRUE(absl::IsInvalidArgument(Check(request.SerializeAsString(), kKeys)));
  request = LargestMatch();
  for (int i = 0; i < 40'000; ++i) request.add_slices();
  EXPECT_TRUE(absl::IsInvalidArgument(Check(request.SerializeAsString(), kKeys)));
}

TEST(RequestBound, WhatIsNoMessageIsRefused) {
  for (const std::string& bytes :
       {std::string("\x0a\x05") + "four", std::string("\x0b\x0c"), std::string("\x08"),
        std::string("\x0a\xff\xff\xff\xff\x0f"), std::string("\x00\x00", 2), std::string("\x09x"),
        std::string(20, '\xff')}) {
    EXPECT_TRUE(absl::IsInvalidArgument(Check(bytes)));
  }
}

// Random bytes pass or are refused, and are never read past their end.
TEST(RequestBound, RandomBytesNeverSurprise) {
  std::mt19937_64 random = SeededRandom();
  for (int i = 0; i < 20'000; ++i) {
    std::string bytes(random() % 40, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random() % 3 == 0 ? random() : random() % 24);
    const absl::Status status = Check(bytes);
    EXPECT_TRUE(status.ok() || absl::IsInvalidArgument(status));
  }
}

}  // namespace
}  // namespace cairn
