// SPDX-License-Identifier: Apache-2.0
#include "codecs/backend/step_tile.h"

#include "codecs/side/profile.h"

namespace cairn::codecs {
namespace {

// Orders the channels: both channels of each pair, then channels that are not rotated.
void OrderByPairs(StepTile* tile) {
  bool turns[kProfileDimMax];
  const StepPairs& pairs = tile->turning;
  MarkTurning(pairs, tile->dim, turns);
  uint32_t channel = pairs.first;
  for (uint32_t pair = 0; pair < pairs.count; ++pair, channel += pairs.step) {
    tile->order[2 * pair] = static_cast<uint16_t>(channel);
    tile->order[2 * pair + 1] = static_cast<uint16_t>(channel + pairs.distance);
  }
  uint32_t count = 2 * pairs.count;
  for (channel = 0; channel < tile->dim && count < tile->dim; ++channel) {
    if (!turns[channel]) tile->order[count++] = static_cast<uint16_t>(channel);
  }
}

}  // namespace

void MakeStepTile(const Profile& profile, ProfileHead at, uint32_t plane, StepRate rate,
                  DType dtype, StepTile* tile) {
  tile->at = at;
  tile->plane = plane;
  tile->dim = profile.Dim(plane);
  tile->v_dim = profile.Dim(profile.planes() - 1);
  tile->pairs = plane == 0 ? profile.PairCount() : 0;
  tile->has_basis = plane == 0 && profile.HasBasis();
  tile->dtype = dtype;
  tile->level = rate.level;
  tile->planes = 0;
  tile->shared = profile.Shared(plane);
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
  const std::byte* channels = profile.Channels(plane, at);
  for (uint32_t i = 0; i < tile->dim; ++i) {
    tile->channels[i] = StepChannelOf(Profile::LoadChannel(channels, i), rate);
    tile->planes += tile->channels[i].shape.low_bits;
    tile->order[i] = static_cast<uint16_t>(i);
  }
  if (tile->pairs != 0 && !tile->has_basis) OrderByPairs(tile);
}

}  // namespace cairn::codecs
