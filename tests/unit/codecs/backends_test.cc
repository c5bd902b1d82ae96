// SPDX-License-Identifier: Apache-2.0
#include "codecs/backend/backends.h"

#include <cstdlib>
#include <span>
#include <string>

#include "codecs/backend/self_test.h"
#include "codecs/checksum/checksum.h"
#include "gtest/gtest.h"

namespace cairn::codecs {
namespace {

TEST(BackendsTest, TheReferenceIsCompleteAndLast) {
  const Backend& reference = ReferenceBackend();
  EXPECT_TRUE(reference.is_supported());
#define CAIRN_OPERATION(member, function) EXPECT_NE(reference.member, nullptr) << #member;
  CAIRN_BACKEND_OPERATIONS(CAIRN_OPERATION)
#undef CAIRN_OPERATION
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

TEST(SelfTest, PassesEveryBackendOfThisCpu) {
  for (const Backend* backend : CpuBackends()) {
    const char* failed = FailedOperation(*backend);
    EXPECT_EQ(failed, nullptr) << backend->name << " " << (failed != nullptr ? failed : "");
    uint32_t crc = 0;
    const char* unexpected = UnexpectedOperation(*backend, &crc);
    EXPECT_EQ(unexpected, nullptr)
        << backend->name << ": the bytes of " << (unexpected != nullptr ? unexpected : "")
        << " have 0x" << std::hex << crc;
  }
  EXPECT_TRUE(BackendFaults().empty());
}

template <typename Result, typename... Arguments>
Result DoesNothing(Arguments...) {
  return Result();
}

// The reference without one operation.
template <auto kOperation>
Backend Lacking(const char* name = "lame") {
  Backend backend = ReferenceBackend();
  backend.name = name;
  backend.*kOperation = DoesNothing;
  return backend;
}

TEST(SelfTest, NamesTheOperationThatFails) {
#define CAIRN_OPERATION(member, function) \
  EXPECT_STREQ(FailedOperation(Lacking<&Backend::member>()), #member);
  CAIRN_BACKEND_OPERATIONS(CAIRN_OPERATION)
#undef CAIRN_OPERATION
}

TEST(SelfTest, FallsBackToTheNextAndSaysWhy) {
  const Backend first = Lacking<&Backend::decode_strips>("first");
  const Backend second = Lacking<&Backend::encode_fp8>("second");
  const Backend* const candidates[] = {&first, &second, &ReferenceBackend()};
  BackendFault faults[3];
  size_t count = 0;
  EXPECT_EQ(ChooseBackend(candidates, faults, &count), &ReferenceBackend());
  ASSERT_EQ(count, 2U);
  EXPECT_EQ(faults[0].backend, &first);
  EXPECT_STREQ(faults[0].operation, "decode_strips");
  EXPECT_EQ(faults[1].backend, &second);
  EXPECT_STREQ(faults[1].operation, "encode_fp8");
  EXPECT_EQ(ChooseBackend(std::span(candidates).last(1), faults, &count), &ReferenceBackend());
  EXPECT_EQ(count, 0U);
}

int ExitCodeOfChoice(const char* variable, const char* value, const std::string& expected) {
  setenv(variable, value, 1);
  // Checksums are taken all the same: nothing aborts.
  const std::byte byte{1};
  if (Crc32c({&byte, 1}) == 0) return 3;
  const std::string refused = RefusedChoice();
  if (expected.empty()) return refused.empty() ? 0 : 1;
  return refused.find(expected) == std::string::npos ? 2 : 0;
}

TEST(BackendsDeathTest, AWrongChoiceIsAnErrorByName) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  for (const char* variable : {"CAIRN_CODEC_BACKEND", "CAIRN_CRC_BACKEND"}) {
    EXPECT_EXIT(std::exit(ExitCodeOfChoice(variable, "foo", std::string(variable) + "=foo: ")),
                testing::ExitedWithCode(0), "");
    EXPECT_EXIT(std::exit(ExitCodeOfChoice(variable, "", "")), testing::ExitedWithCode(0), "");
  }
  for (const Crc32cForm& form : Crc32cForms()) {
    const std::string expected = form.is_supported() ? "" : "CAIRN_CRC_BACKEND=";
    EXPECT_EXIT(std::exit(ExitCodeOfChoice("CAIRN_CRC_BACKEND", form.name, expected)),
                testing::ExitedWithCode(0), "")
        << form.name;
  }
}

}  // namespace
}  // namespace cairn::codecs
