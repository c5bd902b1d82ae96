// SPDX-License-Identifier: Apache-2.0
#include "codecs/backend/backends.h"

#include <cstdlib>
#include <string>

#include "gtest/gtest.h"

namespace cairn::codecs {
namespace {

TEST(BackendsTest, TheReferenceIsCompleteAndLast) {
  const Backend& reference = ReferenceBackend();
  EXPECT_TRUE(reference.is_supported());
  EXPECT_TRUE(reference.select_rows != nullptr && reference.encode_per_channel != nullptr &&
              reference.encode_per_token != nullptr && reference.decode_per_channel != nullptr &&
              reference.decode_per_token != nullptr && reference.narrow_codes != nullptr &&
              reference.encode_strip != nullptr && reference.decode_strips != nullptr);
  EXPECT_EQ(CpuBackends().back(), &reference);
  EXPECT_EQ(CompiledBackends().back(), &reference);
}

TEST(BackendsTest, NamesFindTheirTables) {
  std::string known;
  for (const Backend* backend : CompiledBackends()) {
    known += (known.empty() ? "" : ", ") + std::string(backend->name);
    const Backend* found = nullptr;
    if (backend->is_supported()) {
      EXPECT_EQ(FindBackend(backend->name, &found), Error::kOk);
      EXPECT_EQ(found, backend);
    } else {
      EXPECT_EQ(FindBackend(backend->name, &found), Error::kNoSuchCpu);
      EXPECT_EQ(found, nullptr);
    }
  }
  EXPECT_EQ(known, KnownBackends());
  const Backend* found = nullptr;
  EXPECT_EQ(FindBackend("neon", &found), Error::kUnknownBackend);
  EXPECT_EQ(FindBackend("", &found), Error::kUnknownBackend);
  EXPECT_EQ(found, nullptr);
}

// The choice is made once a process, so each is tried in a process of its own.
int ExitCodeWith(const char* name, const char* expected) {
  if (name == nullptr) {
    unsetenv("CAIRN_CODEC_BACKEND");
  } else {
    setenv("CAIRN_CODEC_BACKEND", name, 1);
  }
  const Backend* backend = nullptr;
  const Error error = ActiveBackend(&backend);
  if (error != Error::kOk) return backend == nullptr ? 100 + static_cast<int>(error) : 1;
  return std::string(backend->name) == expected ? 0 : 2;
}

TEST(BackendsDeathTest, TheEnvironmentForcesOne) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(std::exit(ExitCodeWith(nullptr, CpuBackends().front()->name)),
              testing::ExitedWithCode(0), "");
  EXPECT_EXIT(std::exit(ExitCodeWith("", CpuBackends().front()->name)), testing::ExitedWithCode(0),
              "");
  for (const Backend* backend : CompiledBackends()) {
    const int expected = backend->is_supported() ? 0 : 100 + static_cast<int>(Error::kNoSuchCpu);
    EXPECT_EXIT(std::exit(ExitCodeWith(backend->name, backend->name)),
                testing::ExitedWithCode(expected), "")
        << backend->name;
  }
  EXPECT_EXIT(std::exit(ExitCodeWith("fastest", "")),
              testing::ExitedWithCode(100 + static_cast<int>(Error::kUnknownBackend)), "");
}

}  // namespace
}  // namespace cairn::codecs
