// SPDX-License-Identifier: Apache-2.0
#pragma once
// Sums of floats in integers, which have no order: however a sample is split into batches, and
// whoever adds them up, the sum is the same.
//
// Thread-safety: values.

#include <cmath>
#include <cstdint>

namespace cairn::codecs {

// Sums of values and of their squares. A value counts in units of 2^-36, what is less is cut off.
// REQUIRES: values are at most 2^15.5 in magnitude (two of kMagnitudeMax, turned into one), and
// fewer than 2^24.
class ExactMoments {
 public:
  void Add(float value) {
    const auto units = static_cast<int64_t>(static_cast<double>(value) * kUnits);
    sum_ += units;
    squares_ += static_cast<__int128>(units) * units;
  }
  [[nodiscard]] double Sum() const { return static_cast<double>(sum_) / kUnits; }
  [[nodiscard]] double Squares() const { return static_cast<double>(squares_) / (kUnits * kUnits); }

 private:
  static constexpr double kUnits = 68719476736.0;  // 2^36

  __int128 sum_ = 0;
  __int128 squares_ = 0;
};

// A sum of fewer than 2^31 floats of at most 1/2 in magnitude, in units of 2^-32.
class ExactSum {
 public:
  void Add(float value) { sum_ += static_cast<int64_t>(static_cast<double>(value) * kUnits); }
  [[nodiscard]] double Sum() const { return static_cast<double>(sum_) / kUnits; }

 private:
  static constexpr double kUnits = 4294967296.0;  // 2^32

  int64_t sum_ = 0;
};

}  // namespace cairn::codecs
