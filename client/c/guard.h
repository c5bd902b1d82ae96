// SPDX-License-Identifier: Apache-2.0
#pragma once
// The boundary of the C ABI. It converts each status to a code and a text, and keeps the text for
// the calling thread. It stops exceptions. It accepts structs of other versions: it reads and
// writes only the fields that caller and library both know. Private to client/c.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <exception>
#include <new>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace cairn::c {

// Keeps the text for cairn_last_error() and returns the code.
int Report(const absl::Status& status);

// Runs `body`, which returns an absl::Status, and reports the result.
template <typename Body>
int Guard(const Body& body) {
  try {
    return Report(body());
  } catch (const std::bad_alloc&) {
    return Report(absl::ResourceExhaustedError("out of memory"));
  } catch (const std::exception& error) {
    return Report(absl::InternalError(error.what()));
  } catch (...) {
    return Report(absl::InternalError("unknown exception"));
  }
}

template <typename T>
absl::Status CheckStruct(const char* name, const T* given) {
  if (given == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(name, " is null"));
  }
  if (given->struct_bytes < 2 * sizeof(uint32_t)) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ".struct_bytes is ", given->struct_bytes, "; expected ", sizeof(T)));
  }
  return absl::OkStatus();
}

// Reads a struct of any version. Fields that the caller's version lacks are zero. REQUIRES:
// CheckStruct() is OK.
template <typename T>
T ReadStruct(const T* given) {
  T known{};
  std::memcpy(&known, given, std::min<size_t>(given->struct_bytes, sizeof(T)));
  return known;
}

// Writes the fields that the caller's version has, except struct_bytes. REQUIRES: CheckStruct() is
// OK.
template <typename T>
void WriteStruct(const T& value, T* target) {
  const uint32_t bytes = target->struct_bytes;
  std::memcpy(target, &value, std::min<size_t>(bytes, sizeof(T)));
  target->struct_bytes = bytes;
}

// Returns an element of a caller's array of structs, whose version may differ from ours.
template <typename T>
T* At(T* first, size_t index) {
  return reinterpret_cast<T*>(reinterpret_cast<uintptr_t>(first) + index * first->struct_bytes);
}

template <typename T>
absl::Status CheckArray(const char* name, T* first, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    CAIRN_RETURN_IF_ERROR(CheckStruct(name, i == 0 ? first : At(first, i)));
    if (At(first, i)->struct_bytes != first->struct_bytes) {
      return absl::InvalidArgumentError(absl::StrCat(name, "[", i, "].struct_bytes is ",
                                                     At(first, i)->struct_bytes, ", the first's ",
                                                     first->struct_bytes));
    }
  }
  return absl::OkStatus();
}

inline absl::Status CheckPointer(const char* name, const void* pointer, size_t count = 1) {
  return pointer != nullptr || count == 0
             ? absl::OkStatus()
             : absl::InvalidArgumentError(absl::StrCat(name, " is null"));
}

}  // namespace cairn::c
