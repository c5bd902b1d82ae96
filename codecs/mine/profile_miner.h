// SPDX-License-Identifier: Apache-2.0
#pragma once
// Makes the profile of one group from a sample of the group's source elements. The profile has the
// means of K before RoPE and of V, their spreads, the quantization steps, the entropy-coding
// tables, and a multiplier for each rate, which is found by search. If the mean squared queries
// (q^2) are known, the steps of K depend on them. docs/recipes/cairn.md explains all of these. The
// miner computes no basis and no losses of layers, since these need the model. If q^2 is known, the
// miner assumes that the loss of V is three tenths of the loss of K.
//
// The caller presents the whole sample once in each pass, because the miner keeps none of it. The
// miner uses about 160 bytes per channel, and 350 KB for counts.
//
// The sums over the sample are sums of integers (codecs/side/profile_sums.h). The results are
// computed from the sums in the order layer, head, channel. So the bytes of the profile depend on
// which strips were added, but not on their order or batches. A strip is 128 tokens, or the tokens
// that remain at the end of a block. The caller must not split it further, because the miner
// searches for small norms within a strip.
//
//   while (miner.NeedsPass()) {
//     for (each strip of the sample) miner.Add(strip);     // in any order, the same in each pass
//     miner.EndPass();
//   }
//   error = miner.Write(&bytes);
//
// Another implementation can compute the sums that pass() asks for, and give these sums to Add()
// instead of strips. The kernels of kernels/mine_pass.h do so if the sample is in device memory.
// The resulting profile has the same bytes.
//
// Thread-safety: owned by one caller. Allocates. It is in the library cairn_codecs_mine; a program
// that only encodes and decodes need not link it.

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
  GroupShape group;  // of bf16, fp16 or fp32, with at most kProfileDimMax channels
  // One rotation per channel pair, in 2^-64 turn per token. If empty, K is coded after RoPE. Else
  // it has one entry for each pair of the group's rotary dims, from channel 0 on.
  std::vector<uint64_t> turns;
  // Target sizes in tenths of a bit per element, ascending. There are 1 to kProfileRatesMax.
  std::vector<uint16_t> rates;
  // Mean squared query (q^2) of each channel of K as attention reads it, after RoPE:
  // [layer][head][k_dim]. Values are finite and not negative. Empty means unknown.
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
  // REQUIRES for the three functions below: NeedsPass(), and the strip or the sums belong to the
  // group.
  void Add(const MinedStrip& strip);
  void Add(const PassSums& sums);
  void EndPass();
  // Returns what another implementation needs to compute the sums of the pass. The result is
  // borrowed until the pass ends.
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
    float weight = 1;  // the channel's step is finer than other channels' steps in the
                       // layer by this factor
  };
  struct Plane {
    uint32_t dim = 0;
    std::vector<HeadTokens> heads;
    std::vector<Channel> channels;    // heads one after another
    std::vector<MinedChannel> known;  // in the same order
    std::vector<CodeCounts> codes;    // one per code column of the pass
    ShrinkSums shrink;
    ProfileTable tables[kProfileTables];
  };
  struct Bracket {  // search range of a rate: the size exceeds the target at `low`, but not
                    // at `high`
    int32_t low, high;
  };

  [[nodiscard]] size_t HeadIndex(ProfileHead at) const {
    return size_t{at.layer} * request_.group.heads + at.head;
  }
  void WeighChannels();
  void AddMoments(Plane& plane, const MinedStrip& strip);
  void CountSmallNorms(const MinedStrip& strip);
  void AddCodes(Plane& plane, uint32_t part, size_t channel, std::span<const float> values);
  // Returns the ratio of step to spread in a layer, relative to the same ratio of the other plane.
  [[nodiscard]] double StepShare(size_t plane) const;
  void SetSteps(Plane& plane, double share);
  void SetUnseenMeans(Plane& plane);
  [[nodiscard]] double OverheadBits() const;  // bits per element
  [[nodiscard]] double SurpriseBits() const;
  void AddProbes(std::vector<CodeColumn>* columns) const;
  void Narrow();  // narrows the brackets by the results of the tried multipliers

  const MineRequest request_;
  RotaryPairs pairs_;
  std::vector<Plane> planes_;
  StripValues values_;
  Pass pass_ = Pass::kMoments;
  uint64_t small_norms_ = 0;  // tokens of V with a small norm, and all tokens that norms_ counts
  uint64_t norms_ = 0;
  double fixed_bits_ = 0;  // bits per element apart from codes
  std::vector<Bracket> brackets_;
  std::vector<CodeColumn> columns_;  // columns of this pass; a strided column tries a multiplier
};

}  // namespace cairn::codecs
