// SPDX-License-Identifier: Apache-2.0
#include "codecs/step_tile.h"

namespace cairn::codecs {
namespace {

constexpr int32_t kLogOf3 = 406;  // 256 * log2(3), to nearest

// Of all tables of a plane.
struct Offsets {
  float of[kProfileTables][2];

  Offsets(const Profile& profile, uint32_t plane) {
    for (uint32_t table = 0; table < kProfileTables; ++table) {
      for (uint32_t i = 0; i < 2; ++i) of[table][i] = profile.Offset(plane, table, i + 1);
    }
  }
};

StepChannel ChannelOf(const ProfileChannel& known, const Offsets& offsets, StepRate rate) {
  const int32_t log = known.step_log + rate.multiplier;
  StepChannel channel;
  channel.mean = known.mean;
  channel.step = Multiply(Exp2(log), static_cast<float>(PowerOf3(rate.level)));
  channel.step_inverse = Exp2(-log);
  channel.shape = StepShapeOf(known.spread_log - log - kLogOf3 * rate.level);
  for (uint32_t i = 0; i < 2; ++i) {
    channel.offsets[i] = channel.shape.low_bits == 0 ? offsets.of[channel.shape.table][i] : 0.0F;
  }
  return channel;
}

// Both members of each pair, then what does not turn.
void OrderByPairs(const Profile& profile, StepTile* tile) {
  bool turns[kProfileDimMax] = {};
  uint32_t count = 0;
  for (uint32_t pair = 0; pair < tile->pairs; ++pair) {
    for (const uint32_t channel : {profile.PairFirst(pair), profile.PairSecond(pair)}) {
      tile->order[count++] = static_cast<uint16_t>(channel);
      turns[channel] = true;
    }
  }
  for (uint32_t channel = 0; channel < tile->dim; ++channel) {
    if (!turns[channel]) tile->order[count++] = static_cast<uint16_t>(channel);
  }
}

}  // namespace

void MakeStepTile(const Profile& profile, ProfileHead at, uint32_t plane, StepRate rate,
                  DType dtype, StepTile* tile) {
  tile->profile = &profile;
  tile->at = at;
  tile->plane = plane;
  tile->dim = profile.Dim(plane);
  tile->v_dim = profile.Dim(profile.planes() - 1);
  tile->pairs = plane == 0 ? profile.PairCount() : 0;
  tile->has_basis = plane == 0 && profile.HasBasis();
  tile->dtype = dtype;
  tile->level = rate.level;
  tile->planes = 0;
  tile->lookups = profile.Lookups(plane);
  tile->has_exact_lookups = profile.HasExactLookups(plane);
  tile->turning = {};
  if (tile->pairs != 0) {
    const uint32_t first = profile.PairFirst(0);
    tile->turning = {tile->pairs, first, tile->pairs > 1 ? profile.PairFirst(1) - first : 1,
                     profile.PairSecond(0) - first, profile.Turns()};
  }
  tile->basis = {};
  if (tile->has_basis) {
    tile->basis = {profile.Scales(at), profile.ScaleInverses(at), profile.Vectors(at)};
  }
  const Offsets offsets(profile, plane);
  const std::byte* channels = profile.Channels(plane, at);
  for (uint32_t i = 0; i < tile->dim; ++i) {
    tile->channels[i] = ChannelOf(Profile::LoadChannel(channels, i), offsets, rate);
    tile->planes += tile->channels[i].shape.low_bits;
    tile->order[i] = static_cast<uint16_t>(i);
  }
  if (tile->pairs != 0 && !tile->has_basis) OrderByPairs(profile, tile);
}

}  // namespace cairn::codecs
