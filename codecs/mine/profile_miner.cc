// SPDX-License-Identifier: Apache-2.0
#include "codecs/mine/profile_miner.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "codecs/backend/reference/small_norm.h"
#include "codecs/format/image_spec.h"
#include "codecs/numbers/float_guard.h"
#include "codecs/pack/step_strip.h"
#include "codecs/types/bytes.h"

namespace cairn::codecs {
namespace {

// Multipliers of the steps when tables are made: those of rates from two to five bits.
constexpr int32_t kFirstMultipliers[] = {-480, -330, -200, -60, 40};
constexpr int32_t kSurpriseMultiplier = -200;
// The range of the search for multipliers. The number of probes per pass and rate satisfies 17^3 >
// 4800.
constexpr int32_t kMultiplierLow = -4000, kMultiplierHigh = 800;
constexpr int32_t kProbes = 16;
// Bytes of a strip besides symbols and rows: header 16, padding 8, and the coder's states.
constexpr double kStripBytes = 78;
constexpr uint64_t kOtherBytesMax = 16384;  // limit for a profile's header, turns, rates and tables
constexpr double kWeightFloor = 1e-3;
constexpr double kStepMin = 1e-12, kSpreadMin = 1e-30;
// (1 / 0.3)^(0.35 / 2). If K's steps follow queries, the loss from a coarse V is about three tenths
// of the loss from a coarse K, and steps are proportional to the loss to the power of -0.35. K's
// steps are finer by this factor and V's coarser.
constexpr double kStepShare = 1.2345360614493330;

int16_t LogOf(double value) {
  const double log = std::nearbyint(256 * std::log2(std::max(value, kSpreadMin)));
  return static_cast<int16_t>(
      std::clamp(log, -static_cast<double>(kProfileLogMax), static_cast<double>(kProfileLogMax)));
}

void Count(const ProfileChannel& channel, float mean, const CodeColumn& column,
           std::span<const float> values, CodeCounts* counts, ShrinkSums* shrink) {
  const CodeRate rate = RateOf(channel, column.multiplier);
  for (const float value : values) {
    const float position = PositionOf(value, mean, rate.inverse);
    const int32_t code = CodeAt(position);
    counts->Add(rate.shape, code);
    if (column.has_shrink) shrink->Add(rate.shape, position, code);
  }
}

template <typename Number>
double Total(const Number (&parts)[kSampleParts]) {
  double total = 0;
  for (const Number part : parts) total += static_cast<double>(part);
  return total;
}

double TotalSum(const ExactMoments (&moments)[kSampleParts]) {
  double total = 0;
  for (const ExactMoments& part : moments) total += part.Sum();
  return total;
}

double TotalSquares(const ExactMoments (&moments)[kSampleParts]) {
  double total = 0;
  for (const ExactMoments& part : moments) total += part.Squares();
  return total;
}

// Returns the mean of all parts but one; if only that part has values, the mean of all.
double MeanWithout(const ExactMoments (&moments)[kSampleParts],
                   const uint64_t (&counts)[kSampleParts], uint32_t part) {
  const double count = Total(counts);
  const double rest = count - static_cast<double>(counts[part]);
  if (rest > 0) return (TotalSum(moments) - moments[part].Sum()) / rest;
  return count > 0 ? moments[part].Sum() / count : 0;
}

}  // namespace

uint64_t TurnsOf(double radians) {
  const FloatGuard guard;
  const double turn = radians / 6.283185307179586;
  const double part = std::nearbyint(std::ldexp(turn - std::floor(turn), 64));
  return part < std::ldexp(1.0, 64) ? static_cast<uint64_t>(part) : 0;
}

Error Validate(const MineRequest& request) {
  const GroupShape& group = request.group;
  const bool has_elements =
      group.tile.kind == GroupKind::kKv || group.tile.kind == GroupKind::kLatent;
  bool is_valid = Validate(group) == Error::kOk && has_elements &&
                  group.tile.k_dim <= kProfileDimMax && group.tile.v_dim <= kProfileDimMax &&
                  uint64_t{group.layers} * group.heads * PlaneCount(group.tile.kind) <= kTilesMax;
  is_valid &= request.turns.empty() || request.turns.size() == group.rope.rotary_dims / 2;
  is_valid &= !request.rates.empty() && request.rates.size() <= kProfileRatesMax;
  for (size_t i = 0; i < request.rates.size(); ++i) {
    is_valid &= request.rates[i] >= kProfileBitsMin && request.rates[i] <= kProfileBitsMax &&
                (i == 0 || request.rates[i] > request.rates[i - 1]);
  }
  const uint64_t channels = uint64_t{group.layers} * group.heads * group.tile.k_dim;
  is_valid &= request.query_squares.empty() || request.query_squares.size() == channels;
  for (const float square : request.query_squares) is_valid &= square >= 0 && std::isfinite(square);
  if (!is_valid) return Error::kInvalidShape;
  const uint64_t heads = uint64_t{group.layers} * group.heads;
  const uint64_t channel_bytes =
      heads * (uint64_t{group.tile.k_dim} + group.tile.v_dim) * kProfileChannelBytes;
  return channel_bytes + kOtherBytesMax <= kProfileBytesMax ? Error::kOk : Error::kTooLarge;
}

ProfileMiner::ProfileMiner(MineRequest request)
    : request_(std::move(request)),
      pairs_(request_.turns.empty()
                 ? RotaryPairs()
                 : RotaryPairs{request_.group.rope.kind, 0, request_.group.rope.rotary_dims}),
      planes_(PlaneCount(request_.group.tile.kind)),
      values_(pairs_, request_.turns),
      brackets_(request_.rates.size(), {kMultiplierLow, kMultiplierHigh}) {
  const size_t heads = size_t{request_.group.layers} * request_.group.heads;
  for (uint32_t i = 0; i < planes_.size(); ++i) {
    planes_[i].dim = PlaneDim(request_.group.tile, PlaneAt(request_.group.tile.kind, i));
    planes_[i].heads.resize(heads);
    planes_[i].channels.resize(heads * planes_[i].dim);
    planes_[i].known.resize(heads * planes_[i].dim);
  }
  const FloatGuard guard;
  if (!request_.query_squares.empty()) WeighChannels();
}

// Rotation mixes the two channels of a pair, so a query that reads one reads both.
void ProfileMiner::WeighChannels() {
  Plane& k = planes_[0];
  for (size_t head = 0; head < k.heads.size(); ++head) {
    std::vector<double> squares(
        request_.query_squares.begin() + static_cast<long>(head * k.dim),
        request_.query_squares.begin() + static_cast<long>((head + 1) * k.dim));
    for (uint32_t i = 0; i < pairs_.Count(); ++i) {
      double& first = squares[pairs_.First(i)];
      double& second = squares[pairs_.Second(i)];
      first = second = (first + second) / 2;
    }
    double mean = 0;
    for (const double square : squares) mean += square / k.dim;
    if (mean <= 0) continue;  // nothing is known about this head
    for (uint32_t c = 0; c < k.dim; ++c) {
      k.channels[head * k.dim + c].weight =
          static_cast<float>(std::sqrt(squares[c] / mean + kWeightFloor));
    }
  }
}

// --- Passes --------------------------------------------------------------------------------------

ProfilePass ProfileMiner::pass() const {
  ProfilePass pass{.columns = columns_, .channels = {}};
  for (size_t i = 0; i < planes_.size(); ++i) pass.channels[i] = planes_[i].known;
  return pass;
}

void ProfileMiner::Add(const MinedStrip& strip) {
  const FloatGuard guard;
  Plane& plane = planes_[strip.plane];
  const StripShape shape = {strip.tokens, plane.dim, request_.group.tile.dtype, false};
  values_.Load(shape, strip, pass_ == Pass::kSearch);
  if (pass_ == Pass::kMoments) {
    AddMoments(plane, strip);
    return;
  }
  const size_t first = HeadIndex(strip.at) * plane.dim;
  for (uint32_t c = 0; c < plane.dim; ++c) {
    AddCodes(plane, strip.part, first + c, values_.Channel(c));
  }
}

void ProfileMiner::Add(const PassSums& sums) {
  norms_ += sums.norms;
  small_norms_ += sums.small_norms;
  for (size_t i = 0; i < planes_.size(); ++i) {
    const PassSums::Plane& from = sums.planes[i];
    Plane& plane = planes_[i];
    for (size_t head = 0; head < from.tokens.size(); ++head) {
      plane.heads[head].Add(from.tokens[head]);
    }
    for (size_t j = 0; j < from.moments.size(); ++j) {
      plane.channels[j / kSampleParts].moments[j % kSampleParts].Add(from.moments[j]);
    }
    for (size_t column = 0; column < from.codes.size(); ++column) {
      plane.codes[column].Add(from.codes[column]);
    }
    plane.shrink.Add(from.shrink);
  }
}

void ProfileMiner::AddMoments(Plane& plane, const MinedStrip& strip) {
  HeadTokens& head = plane.heads[HeadIndex(strip.at)];
  ++head.strips;
  head.of[strip.part] += values_.count();
  for (uint32_t c = 0; c < plane.dim; ++c) {
    Channel& channel = plane.channels[HeadIndex(strip.at) * plane.dim + c];
    for (const float value : values_.Channel(c)) channel.moments[strip.part].Add(value);
  }
  if (strip.plane == 1) CountSmallNorms(strip);
}

void ProfileMiner::CountSmallNorms(const MinedStrip& strip) {
  StripTokens rows = {};
  SelectSmallNorms({strip.tokens, planes_[1].dim, request_.group.tile.dtype, false},
                   U8(strip.source.data()), &rows);
  for (uint32_t token = 0; token < strip.tokens; ++token) {
    if (strip.first_position + token < kTokensSkipped) continue;
    small_norms_ += rows.Has(token) ? 1 : 0;
    ++norms_;
  }
}

void ProfileMiner::AddCodes(Plane& plane, uint32_t part, size_t channel,
                            std::span<const float> values) {
  const MinedChannel& known = plane.known[channel];
  for (size_t i = 0; i < columns_.size(); ++i) {
    const CodeColumn& column = columns_[i];
    Count(known.profile, column.is_unseen ? known.unseen_means[part] : known.profile.mean, column,
          column.is_strided ? values.first(values_.strided_count()) : values, &plane.codes[i],
          &plane.shrink);
  }
}

void ProfileMiner::EndPass() {
  const FloatGuard guard;
  std::vector<CodeColumn> columns;
  switch (pass_) {
    case Pass::kMoments:
      for (size_t i = 0; i < planes_.size(); ++i) SetSteps(planes_[i], StepShare(i));
      for (const int32_t multiplier : kFirstMultipliers) {
        columns.push_back({.multiplier = multiplier, .has_shrink = true});
      }
      pass_ = Pass::kTables;
      break;
    case Pass::kTables:
      for (Plane& plane : planes_) {
        CodeCounts counts;
        for (const CodeCounts& of_column : plane.codes) counts.Add(of_column);
        MakeTables(counts, plane.shrink, plane.tables);
        SetUnseenMeans(plane);
      }
      columns = {{.multiplier = kSurpriseMultiplier},
                 {.multiplier = kSurpriseMultiplier, .is_unseen = true}};
      pass_ = Pass::kSurprise;
      break;
    case Pass::kSurprise:
      fixed_bits_ = OverheadBits() + SurpriseBits();
      Narrow();
      pass_ = Pass::kSearch;
      break;
    case Pass::kSearch:
      Narrow();
      break;
    case Pass::kDone:
      return;
  }
  if (pass_ != Pass::kTables) AddProbes(&columns);
  columns_ = std::move(columns);
  for (Plane& plane : planes_) plane.codes.assign(columns_.size(), {});
  if (columns_.empty()) pass_ = Pass::kDone;
}

// --- Results of passes ---------------------------------------------------------------------------

double ProfileMiner::StepShare(size_t plane) const {
  if (planes_.size() < 2 || request_.query_squares.empty()) return 1;
  return plane == 0 ? 1 / kStepShare : kStepShare;
}

void ProfileMiner::SetSteps(Plane& plane, double share) {
  const size_t per_layer = size_t{request_.group.heads} * plane.dim;
  for (size_t layer = 0; layer < request_.group.layers; ++layer) {
    std::vector<double> sigmas(per_layer);
    double squares = 0;
    for (size_t i = 0; i < per_layer; ++i) {
      const Channel& channel = plane.channels[layer * per_layer + i];
      ProfileChannel& known = plane.known[layer * per_layer + i].profile;
      const double count = Total(plane.heads[(layer * per_layer + i) / plane.dim].of);
      const double sum = TotalSum(channel.moments);
      const double mean = count > 0 ? sum / count : 0;
      known.mean = static_cast<float>(mean);
      const double rest = TotalSquares(channel.moments) - sum * mean;
      sigmas[i] = count > 0 && rest > 0 ? std::sqrt(rest / count) : 0;
      squares += sigmas[i] * sigmas[i] * channel.weight * channel.weight;
    }
    const double spread = std::sqrt(squares / static_cast<double>(per_layer));
    const double step = std::max(spread * share, kStepMin);
    for (size_t i = 0; i < per_layer; ++i) {
      ProfileChannel& known = plane.known[layer * per_layer + i].profile;
      known.step_log = LogOf(step / plane.channels[layer * per_layer + i].weight);
      known.spread_log = LogOf(sigmas[i]);
    }
  }
}

// Also computes the spreads about those means, which other texts will have.
void ProfileMiner::SetUnseenMeans(Plane& plane) {
  for (size_t i = 0; i < plane.channels.size(); ++i) {
    const Channel& channel = plane.channels[i];
    const uint64_t(&counts)[kSampleParts] = plane.heads[i / plane.dim].of;
    double squares = 0;
    for (uint32_t part = 0; part < kSampleParts; ++part) {
      const double mean = MeanWithout(channel.moments, counts, part);
      plane.known[i].unseen_means[part] = static_cast<float>(mean);
      const ExactMoments& moments = channel.moments[part];
      squares += moments.Squares() - 2 * mean * moments.Sum() +
                 mean * mean * static_cast<double>(counts[part]);
    }
    const double count = Total(counts);
    plane.known[i].profile.spread_log =
        LogOf(count > 0 && squares > 0 ? std::sqrt(squares / count) : 0);
  }
}

double ProfileMiner::OverheadBits() const {
  const double rows =
      norms_ == 0 ? 0
                  : static_cast<double>(small_norms_) / static_cast<double>(norms_) * kStripTokens;
  double bytes = kHeaderBytes;
  double elements = 0;
  for (const Plane& plane : planes_) {
    const auto heads = static_cast<double>(plane.heads.size());
    const double row_bytes = ElementBytes(request_.group.tile.dtype) * plane.dim + 1.0;
    bytes += heads * (kStripBytes + kDirectoryEntryBytes + rows * row_bytes);
    elements += heads * plane.dim * kStripTokens;
  }
  return 8 * bytes / elements;
}

double ProfileMiner::SurpriseBits() const {
  double bits = 0;
  double elements = 0;
  for (const Plane& plane : planes_) {
    bits += CodedBits(plane.codes[1], plane.tables) - CodedBits(plane.codes[0], plane.tables);
    for (const HeadTokens& head : plane.heads) elements += Total(head.of) * plane.dim;
  }
  return elements > 0 ? bits / elements : 0;
}

// --- Search --------------------------------------------------------------------------------------

void ProfileMiner::AddProbes(std::vector<CodeColumn>* columns) const {
  std::vector<int32_t> probes;
  for (const Bracket& bracket : brackets_) {
    const int32_t inside = bracket.high - bracket.low - 1;
    const int32_t count = std::min(inside, kProbes);
    for (int32_t i = 1; i <= count; ++i) {
      probes.push_back(bracket.low + (inside + 1) * i / (count + 1));
    }
  }
  std::sort(probes.begin(), probes.end());
  probes.erase(std::unique(probes.begin(), probes.end()), probes.end());
  for (const int32_t probe : probes) {
    columns->push_back({.multiplier = probe, .is_strided = true});
  }
}

void ProfileMiner::Narrow() {
  double elements = 0;
  for (const Plane& plane : planes_) {
    uint64_t symbols = 0;
    for (const auto& table : plane.codes.back().symbols) {
      for (const uint64_t count : table) symbols += count;
    }
    elements += static_cast<double>(symbols);
  }
  for (size_t i = 0; i < columns_.size(); ++i) {
    if (!columns_[i].is_strided) continue;
    const int32_t probe = columns_[i].multiplier;
    double bits = 0;
    for (const Plane& plane : planes_) bits += CodedBits(plane.codes[i], plane.tables);
    const double per_element = fixed_bits_ + (elements > 0 ? bits / elements : 0);
    for (size_t rate = 0; rate < brackets_.size(); ++rate) {
      Bracket& bracket = brackets_[rate];
      if (probe <= bracket.low || probe >= bracket.high) continue;
      (per_element > request_.rates[rate] / 10.0 ? bracket.low : bracket.high) = probe;
    }
  }
}

Error ProfileMiner::Write(std::vector<std::byte>* bytes) const {
  ProfileContent content;
  content.layers = request_.group.layers;
  content.heads = request_.group.heads;
  content.pairs = pairs_;
  content.turns = request_.turns;
  for (size_t i = 0; i < request_.rates.size(); ++i) {
    content.rates.push_back({request_.rates[i], static_cast<int16_t>(brackets_[i].high)});
  }
  for (const Plane& plane : planes_) {
    ProfilePlane& written = content.planes.emplace_back();
    written.dim = plane.dim;
    std::copy(std::begin(plane.tables), std::end(plane.tables), std::begin(written.tables));
    for (const HeadTokens& head : plane.heads) {
      if (head.strips == 0) return Error::kIncomplete;
    }
    for (const MinedChannel& known : plane.known) written.channels.push_back(known.profile);
  }
  *bytes = WriteProfile(content);
  return Error::kOk;
}

}  // namespace cairn::codecs
