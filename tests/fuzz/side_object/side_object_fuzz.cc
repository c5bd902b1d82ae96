// SPDX-License-Identifier: Apache-2.0
// Bytes as a profile and as a bank: as they come, and with the size in the header made to fit.
// Everything that one which parses can be asked for has to be inside it and keep its limits.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "codecs/numbers/math.h"
#include "codecs/side/bank.h"
#include "codecs/side/profile.h"
#include "codecs/types/bytes.h"

namespace {

using namespace cairn::codecs;  // NOLINT(google-build-using-namespace): a harness of one file

void Require(bool condition) {
  if (!condition) std::abort();
}

bool IsLog(int32_t log) { return log >= -kProfileLogMax && log <= kProfileLogMax; }

void UseChannels(const Profile& profile, uint32_t plane, ProfileHead at) {
  for (uint32_t i = 0; i < profile.Dim(plane); ++i) {
    const ProfileChannel channel = profile.Channel(plane, at, i);
    Require(channel.mean >= -1048576 && channel.mean <= 1048576);
    Require(IsLog(channel.step_log) && IsLog(channel.spread_log));
  }
}

void UseBasis(const Profile& profile, ProfileHead at) {
  for (uint32_t i = 0; i < profile.Dim(0); ++i) {
    Require(profile.Scale(at, i) > 0 && profile.ScaleInverse(at, i) > 0);
    for (uint32_t j = 0; j < profile.Dim(0); ++j) {
      const float vector = profile.Vector(at, i, j);
      Require(vector >= -2 && vector <= 2);
    }
  }
}

void Use(const Profile& profile) {
  for (uint32_t pair = 0; pair < profile.PairCount(); ++pair) {
    Require(profile.PairFirst(pair) < profile.PairSecond(pair));
    Require(profile.PairSecond(pair) < profile.Dim(0));
    static_cast<void>(profile.PairTurns(pair));
  }
  for (uint32_t bits = 0; bits < 200; ++bits) static_cast<void>(profile.MultiplierOf(bits));
  for (uint32_t layer = 0; layer < profile.layers(); ++layer) {
    for (uint32_t head = 0; head < profile.heads(); ++head) {
      for (uint32_t plane = 0; plane < profile.planes(); ++plane) {
        UseChannels(profile, plane, {layer, head});
      }
      if (profile.HasBasis()) UseBasis(profile, {layer, head});
    }
  }
  for (uint32_t plane = 0; plane < profile.planes(); ++plane) {
    for (uint32_t table = 0; table < kProfileTables; ++table) {
      Require(profile.Table(plane, table).frequency[kEscapeSymbol] > 0);
      Require(profile.Offsets(plane)[table][1] > -0.5F && profile.Offsets(plane)[table][0] < 0.5F);
    }
  }
}

void Use(const Bank& bank) {
  Require(bank.patterns() >= 1 && bank.patterns() <= kBankPatternsMax);
  for (uint32_t layer = 0; layer < bank.layers(); ++layer) {
    for (uint32_t head = 0; head < bank.heads(); ++head) {
      for (uint32_t plane = 0; plane < bank.planes(); ++plane) {
        const uint8_t* patterns = bank.PatternsOf(plane, {layer, head});
        for (uint32_t i = 0; i < bank.patterns() * bank.Dim(plane); ++i) {
          const float value = Fp16ToFloat(Load<uint16_t>(patterns + uint64_t{2} * i));
          Require(value >= -kMagnitudeMax && value <= kMagnitudeMax);
        }
      }
    }
  }
}

void Parse(const std::vector<std::byte>& bytes) {
  if (Profile profile; ParseProfile(bytes, &profile) == Error::kOk) Use(profile);
  if (Bank bank; ParseBank(bytes, &bank) == Error::kOk) Use(bank);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto* begin = reinterpret_cast<const std::byte*>(data);
  std::vector<std::byte> bytes(begin, begin + size);
  Parse(bytes);
  if (bytes.size() < std::min(kProfileHeaderBytes, kBankHeaderBytes)) return 0;
  Store(bytes.data() + 8, uint64_t{bytes.size()});
  Parse(bytes);
  return 0;
}
