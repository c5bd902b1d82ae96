// SPDX-License-Identifier: Apache-2.0
#pragma once
// Random numbers with a seed that is printed when they are made. CAIRN_SEED=<n> repeats a test with
// the seed n.
//
//   std::mt19937_64 random = SeededRandom();
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <random>
#include <string>

namespace cairn {

inline std::uint64_t TestSeed() {
  static const std::uint64_t seed = [] {
    const char* given = std::getenv("CAIRN_SEED");
    const std::uint64_t value =
        given != nullptr ? std::stoull(given)
                         : (std::uint64_t{std::random_device()()} << 32) | std::random_device()();
    std::cout << "CAIRN_SEED=" << value << "\n";
    return value;
  }();
  return seed;
}

// Returns a generator at the start of the seed's sequence. Several generators of one test must have
// different values of `stream`.
inline std::mt19937_64 SeededRandom(std::uint64_t stream = 0) {
  return std::mt19937_64(TestSeed() + stream * 0x9e3779b97f4a7c15ULL);
}

}  // namespace cairn
