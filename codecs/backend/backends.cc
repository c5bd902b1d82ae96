// SPDX-License-Identifier: Apache-2.0
#include "codecs/backend/backends.h"

#include <array>
#include <cstddef>
#include <cstdlib>

#include "codecs/backend/reference/reference.h"
#include "codecs/backend/self_test.h"
#include "codecs/checksum/checksum.h"

#if defined(__x86_64__)
#include "codecs/backend/cpu/cpu.h"
#endif

namespace cairn::codecs {
namespace {

bool RunsEverywhere() { return true; }

#define CAIRN_OPERATION(member, function) .member = reference::function,
constexpr Backend kReference = {
    .name = "reference", .is_supported = RunsEverywhere, CAIRN_BACKEND_OPERATIONS(CAIRN_OPERATION)};
#undef CAIRN_OPERATION

// Best first.
#if defined(__x86_64__)
constexpr std::array<const Backend*, 3> kCompiled = {&kAvx512Backend, &kAvx2Backend, &kReference};
constexpr std::string_view kNames = "avx512, avx2, reference";
#else
constexpr std::array<const Backend*, 1> kCompiled = {&kReference};
constexpr std::string_view kNames = "reference";
#endif

struct Supported {
  std::array<const Backend*, kCompiled.size()> tables{};
  size_t count = 0;

  Supported() {
    for (const Backend* backend : kCompiled) {
      if (backend->is_supported()) tables[count++] = backend;
    }
  }
};

struct Choice {
  const Backend* backend = nullptr;
  Error error = Error::kOk;
  std::array<BackendFault, kCompiled.size()> faults{};
  size_t fault_count = 0;

  Choice() {
    const char* name = std::getenv("CAIRN_CODEC_BACKEND");
    if (name == nullptr || *name == '\0') {
      backend = ChooseBackend(CpuBackends(), faults.data(), &fault_count);
      return;
    }
    error = FindBackend(name, &backend);
    if (error != Error::kOk || backend == &kReference) return;
    if (const char* operation = FailedOperation(*backend); operation != nullptr) {
      error = Error::kBackendFault;
      faults[fault_count++] = {backend, operation};
    }
  }
};

const Choice& TheChoice() {
  static const Choice choice;
  return choice;
}

std::string Refusal(const char* variable, Error error, const std::string& known) {
  const char* value = std::getenv(variable);
  return std::string(variable) + "=" + (value == nullptr ? "" : value) + ": " +
         std::string(Name(error)) + "; this CPU runs" + known;
}

}  // namespace

const Backend& ReferenceBackend() { return kReference; }

std::span<const Backend* const> CompiledBackends() { return kCompiled; }

std::span<const Backend* const> CpuBackends() {
  static const Supported supported;
  return {supported.tables.data(), supported.count};
}

std::string_view KnownBackends() { return kNames; }

Error FindBackend(std::string_view name, const Backend** backend) {
  for (const Backend* candidate : kCompiled) {
    if (name != candidate->name) continue;
    if (!candidate->is_supported()) return Error::kNoSuchCpu;
    *backend = candidate;
    return Error::kOk;
  }
  return Error::kUnknownBackend;
}

Error ActiveBackend(const Backend** backend) {
  const Choice& choice = TheChoice();
  if (choice.error == Error::kOk) *backend = choice.backend;
  return choice.error;
}

std::span<const BackendFault> BackendFaults() {
  return {TheChoice().faults.data(), TheChoice().fault_count};
}

const Backend* ChooseBackend(std::span<const Backend* const> candidates, BackendFault* faults,
                             size_t* fault_count) {
  *fault_count = 0;
  for (const Backend* candidate : candidates.first(candidates.size() - 1)) {
    const char* operation = FailedOperation(*candidate);
    if (operation == nullptr) return candidate;
    faults[(*fault_count)++] = {candidate, operation};
  }
  return candidates.back();
}

std::string RefusedChoice() {
  std::string known;
  const Backend* backend = nullptr;
  if (const Error error = ActiveBackend(&backend); error != Error::kOk) {
    for (const Backend* each : CpuBackends()) known.append(" ").append(each->name);
    return Refusal("CAIRN_CODEC_BACKEND", error, known);
  }
  if (!IsCrc32cChoiceKept()) {
    for (const Crc32cForm& form : Crc32cForms()) {
      if (form.is_supported()) known.append(" ").append(form.name);
    }
    return Refusal("CAIRN_CRC_BACKEND", Error::kUnknownBackend, known);
  }
  return {};
}

}  // namespace cairn::codecs
