// SPDX-License-Identifier: Apache-2.0
#include "base/status.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

namespace cairn {
namespace {

absl::StatusOr<std::unique_ptr<int>> Make(int value) {
  if (value < 0) {
    return absl::InvalidArgumentError("negative");
  }
  return std::make_unique<int>(value);
}

absl::Status Accept(int value) {
  CAIRN_ASSIGN_OR_RETURN(std::unique_ptr<int> first, Make(value));
  CAIRN_ASSIGN_OR_RETURN(const std::unique_ptr<int> second, Make(*first - 1));
  CAIRN_RETURN_IF_ERROR(*second == 7 ? absl::AbortedError("seven") : absl::OkStatus());
  return absl::OkStatus();
}

TEST(Status, MacrosReturnTheFirstFailure) {
  EXPECT_TRUE(Accept(1).ok());
  EXPECT_EQ(Accept(0).message(), "negative");
  EXPECT_EQ(Accept(8).code(), absl::StatusCode::kAborted);
}

TEST(Status, AnnotateKeepsCodeAndPayloads) {
  absl::Status status = absl::DataLossError("crc");
  status.SetPayload("type", absl::Cord("payload"));
  const absl::Status annotated = Annotate(status, "tile 7");
  EXPECT_EQ(annotated.code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(annotated.message(), "tile 7: crc");
  EXPECT_EQ(annotated.GetPayload("type"), absl::Cord("payload"));
  EXPECT_TRUE(Annotate(absl::OkStatus(), "tile 7").ok());
}

TEST(StatusDeathTest, ChecksSayWhatFailed) {
  EXPECT_DEATH(CAIRN_CHECK(1 == 2, std::string("with a reason")),
               "check failed: 1 == 2: with a reason");
  EXPECT_DEATH(CAIRN_CHECK(1 == 2), "check failed: 1 == 2");
  EXPECT_DEATH(CAIRN_CHECK_OK(Make(-1)), "negative");
  CAIRN_CHECK(1 == 1);
  CAIRN_CHECK_OK(absl::OkStatus());
}

TEST(Text, ConvertsWithoutACopy) {
  const std::string text = "cairn";
  EXPECT_EQ(ToAbsl(text).data(), text.data());
  EXPECT_EQ(ToStd(ToAbsl(text)), text);
}

}  // namespace
}  // namespace cairn
