// SPDX-License-Identifier: Apache-2.0
#pragma once
// Makes the profile of one group from a sample of its source bits: the means of K before RoPE and
// of V, the spreads, the steps (from q^2 if it is known), the tables, and the multiplier of each
// rate, by search. docs/recipes/cairn.md explains them. It computes no basis and no losses of
// layers, which need the model. If q^2 is known, V is assumed to lose three tenths of the loss of
// K.
//
// The caller presents the sample once in each pass; the miner keeps none of it. The miner keeps
// about 160 bytes per channel, and 350 KB of counts.
//
// Sums over the sample are sums of integers (codecs/side/profile_sums.h). The results are computed
// from the sums by layer, head and channel in turn. So the profile's bytes depend only on the
// strips, and not on their order or batches. A strip is 128 tokens, or the rest of a block. It is
// not split further, because small norms are found within it.
//
//   while (miner.NeedsPass()) {
//     for (each strip of the sample) miner.Add(strip);     // in any order, the same in each pass
//     miner.EndPass();
//   }
//   error = miner.Write(&bytes);
//
// Another implementation can compute the sums that pass() asks for, and give them to Add() instead
// of strips. Kernels do so if the sample lies on a device (kernels/mine_pass.h); the bytes are the
// same.
//
// Thread-safety: owned by one caller. Allocates. It is in the library cairn_codecs_mine, so that
// programs that only code need not link it.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "codecs/mine/code_counts.h"
#include "codecs/mine/profile_content.h"
#include "codecs/mine/profile_pass.h"
#include "codecs/mine/strip_values.h"
#include "codecs/types/error.h"

namespace cairn::codecs {

struct MineRequest {
  GroupShape group;  // elements of bf16, fp16 or fp32, of at most kProfileDimMax channels
  // For each pair, 2^-64 turn per token. Empty: K is coded without removing RoPE. Else one entry
  // for each pair of the group's rotary dims, from channel 0 on.
  std::vector<uint64_t> turns;
  // Targets in tenths of a bit, ascending, 1 to kProfileRatesMax.
  std::vector<uint16_t> rates;
  // Mean q^2 of each channel of K as attention reads it, after RoPE: [layer][head][k_dim], finite
  // and not negative; empty: unknown.
  std::vector<float> query_squares;
};

// Converts radians per token to 2^-64 turn.
[[nodiscard]] uint64_t TurnsOf(double radians);

// Errors: kInvalidShape (a field of the request breaks a rule above), kTooLarge (the profile would
// be too large).
Error Validate(const MineRequest& request);

class ProfileMiner {
 public:
  explicit ProfileMiner(MineRequest request);  // REQUIRES: Validate() is kOk
  ProfileMiner(const ProfileMiner&) = delete;  // parts borrow from each other
  ProfileMiner& operator=(const ProfileMiner&) = delete;

  [[nodiscard]] bool NeedsPass() const { return pass_ != Pass::kDone; }
  // REQUIRES for all three: NeedsPass(); strip or sums belong to the group.
  void Add(const MinedStrip& strip);
  void Add(const PassSums& sums);
  void EndPass();
  // Returns the inputs of the sums of the pass. Borrowed until the pass ends.
  [[nodiscard]] ProfilePass pass() const;

  [[nodiscard]] const MineRequest& request() const { return request_; }
  // Returns the channels of K that `turns` refers to.
  [[nodiscard]] const RotaryPairs& pairs() const { return pairs_; }

  // Writes the profile. Sets *bytes on kOk. Errors: kIncomplete (a (layer, head) of the group had
  // no token). REQUIRES: no pass is needed.
  Error Write(std::vector<std::byte>* bytes) const;

 private:
  enum class Pass : uint8_t { kMoments, kTables, kSurprise, kSearch, kDone };

  struct Channel {
    ExactMoments moments[kSampleParts];
    float weight = 1;  // factor by which its step is finer than those of other channels of its
                       // layer
  };
  struct Plane {
    uint32_t dim = 0;
    std::vector<HeadTokens> heads;
    std::vector<Channel> channels;    // heads one after another
    std::vector<MinedChannel> known;  // likewise
    std::vector<CodeCounts> codes;    // one per column
    ShrinkSums shrink;
    ProfileTable tables[kProfileTables];
  };
  struct Bracket {  // search range of a rate: `low` takes more bits than the target, `high` does
                    // not
    int32_t low, high;
  };

  [[nodiscard]] size_t HeadIndex(ProfileHead at) const {
    return size_t{at.layer} * request_.group.heads + at.head;
  }
  void WeighChannels();
  void AddMoments(Plane& plane, const MinedStrip& strip);
  void CountSmallNorms(const MinedStrip& strip);
  void AddCodes(Plane& plane, uint32_t part, size_t channel, std::span<const float> values);
  // Returns the step's share of a layer's spread, relative to the other plane's share.
  [[nodiscard]] double StepShare(size_t plane) const;
  void SetSteps(Plane& plane, double share);
  void SetUnseenMeans(Plane& plane);
  [[nodiscard]] double OverheadBits() const;  // bits per element
  [[nodiscard]] double SurpriseBits() const;
  void AddProbes(std::vector<CodeColumn>* columns) const;
  void Narrow();  // narrows the brackets by the results of the probes

  const MineRequest request_;
  RotaryPairs pairs_;
  std::vector<Plane> planes_;
  StripValues values_;
  Pass pass_ = Pass::kMoments;
  uint64_t small_norms_ = 0;  // tokens of V that are rows, and the tokens that norms_ counts
  uint64_t norms_ = 0;
  double fixed_bits_ = 0;  // bits per element besides those of codes
  std::vector<Bracket> brackets_;
  std::vector<CodeColumn> columns_;  // columns of the pass; strided columns are probes for brackets
};

}  // namespace cairn::codecs
