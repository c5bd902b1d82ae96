// SPDX-License-Identifier: Apache-2.0
#pragma once
// Makes a profile of one group out of a sample of its source bits: means of K before RoPE and of V,
// spreads, steps from q^2 where it is known, tables, and the multiplier of each rate by search.
// docs/recipes/cairn.md says what each is for. No basis, and no losses of layers: those want the
// model. Where q^2 is known, V is taken to lose three tenths of what K does.
//
// The sample is shown in passes, so that none of it is kept: about 160 bytes a channel are, and
// 350 KB of counts.
//
// What is added up over the sample is added in integers (codecs/side/profile_sums.h), and what
// comes of the sums is computed by layer, head and channel in turn. So the profile's bytes depend
// on the strips alone, neither on their order nor on how they come in batches. A strip is 128
// tokens, or what a block has left behind them: small norms are found in it, so it is not split
// further.
//
//   while (miner.NeedsPass()) {
//     for (each strip of the sample) miner.Add(strip);     // in any order, the same in each pass
//     miner.EndPass();
//   }
//   error = miner.Write(&bytes);
//
// Whoever adds up elsewhere takes pass() to there and brings the sums back, in the place of strips:
// kernels do so where the sample lies on a device (kernels/mine_pass.h), with the same bytes.
//
// Thread-safety: belongs to one caller. Allocates; in the library cairn_codecs_mine, which nothing
// that only codes has to link.

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
  // Of each pair, 2^-64 turn a token. Empty: K is coded as it comes. Else as many as the group's
  // rotary dims have pairs, from channel 0 on.
  std::vector<uint64_t> turns;
  // Targets in tenths of a bit, ascending, 1 to kProfileRatesMax.
  std::vector<uint16_t> rates;
  // Mean q^2 of each channel of K as it is read, after RoPE: [layer][head][k_dim], finite and not
  // negative; empty where it is not known.
  std::vector<float> query_squares;
};

// Of a rotation by so many radians a token, in 2^-64 turn.
[[nodiscard]] uint64_t TurnsOf(double radians);

// kInvalidShape: a field of the request does not keep what is said there. kTooLarge: the profile
// would be.
Error Validate(const MineRequest& request);

class ProfileMiner {
 public:
  explicit ProfileMiner(MineRequest request);  // REQUIRES: Validate() is kOk
  ProfileMiner(const ProfileMiner&) = delete;  // parts borrow from each other
  ProfileMiner& operator=(const ProfileMiner&) = delete;

  [[nodiscard]] bool NeedsPass() const { return pass_ != Pass::kDone; }
  // REQUIRES of all three: NeedsPass(), and strip or sums are of the group.
  void Add(const MinedStrip& strip);
  void Add(const PassSums& sums);
  void EndPass();
  // What the sums of the pass are of. Borrowed until it ends.
  [[nodiscard]] ProfilePass pass() const;

  [[nodiscard]] const MineRequest& request() const { return request_; }
  // The channels of K that `turns` are of.
  [[nodiscard]] const RotaryPairs& pairs() const { return pairs_; }

  // *bytes is set on kOk. kIncomplete: a (layer, head) of the group of which there was no token.
  // REQUIRES: no pass is needed.
  Error Write(std::vector<std::byte>* bytes) const;

 private:
  enum class Pass : uint8_t { kMoments, kTables, kSurprise, kSearch, kDone };

  struct Channel {
    ExactMoments moments[kSampleParts];
    float weight = 1;  // of its step: it is so much finer than others of its layer
  };
  struct Plane {
    uint32_t dim = 0;
    std::vector<HeadTokens> heads;
    std::vector<Channel> channels;    // of heads, one after another
    std::vector<MinedChannel> known;  // likewise
    std::vector<CodeCounts> codes;    // of each column
    ShrinkSums shrink;
    ProfileTable tables[kProfileTables];
  };
  struct Bracket {  // of a rate: takes more bits at `low` than it is to, and not at `high`
    int32_t low, high;
  };

  [[nodiscard]] size_t HeadIndex(ProfileHead at) const {
    return size_t{at.layer} * request_.group.heads + at.head;
  }
  void WeighChannels();
  void AddMoments(Plane& plane, const MinedStrip& strip);
  void CountSmallNorms(const MinedStrip& strip);
  void AddCodes(Plane& plane, uint32_t part, size_t channel, std::span<const float> values);
  // Of the spread of a layer, relative to the other plane's.
  [[nodiscard]] double StepShare(size_t plane) const;
  void SetSteps(Plane& plane, double share);
  void SetUnseenMeans(Plane& plane);
  [[nodiscard]] double OverheadBits() const;  // an element
  [[nodiscard]] double SurpriseBits() const;
  void AddProbes(std::vector<CodeColumn>* columns) const;
  void Narrow();  // the brackets, by what was probed

  const MineRequest request_;
  RotaryPairs pairs_;
  std::vector<Plane> planes_;
  StripValues values_;
  Pass pass_ = Pass::kMoments;
  uint64_t small_norms_ = 0;  // tokens of V that are rows, and of how many
  uint64_t norms_ = 0;
  double fixed_bits_ = 0;  // an element, beside those of codes
  std::vector<Bracket> brackets_;
  std::vector<CodeColumn> columns_;  // of the pass; strided ones are probes for brackets
};

}  // namespace cairn::codecs
