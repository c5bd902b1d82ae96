// SPDX-License-Identifier: Apache-2.0
#include "proto/mine_request.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <vector>

#include "proto/convert.h"

namespace cairn::proto {
namespace {

constexpr uint16_t kUsualRates[] = {23, 30, 43};

// Returns the turns of each pair. Empty if the space's identity does not describe the rotation of
// K.
std::vector<uint64_t> TurnsOfGroup(const GroupGeometry& group) {
  std::vector<uint64_t> turns;
  // The identity does not describe which channels of a latent are rotated.
  if (group.kind != GroupGeometry::Kind::kKv || group.rope.kind == Rope::Kind::kNone) {
    return turns;
  }
  for (uint32_t pair = 0; pair < group.rope.rotary_dims / 2; ++pair) {
    turns.push_back(
        codecs::TurnsOf(group.rope.inverse_frequencies.empty()
                            ? std::pow(group.rope.base, -2.0 * pair / group.rope.rotary_dims)
                            : group.rope.inverse_frequencies[pair]));
  }
  return turns;
}

}  // namespace

codecs::MineRequest MineRequestOf(const SpaceIdentity& identity, size_t group,
                                  const codecs::Recipe& recipe) {
  codecs::MineRequest request;
  request.group = ShapeOf(identity, group);
  request.turns = TurnsOfGroup(identity.groups[group]);
  request.rates.assign(std::begin(kUsualRates), std::end(kUsualRates));
  if (recipe.NeedsProfile()) {
    request.rates.push_back(recipe.bits);
  }
  std::sort(request.rates.begin(), request.rates.end());
  request.rates.erase(std::unique(request.rates.begin(), request.rates.end()), request.rates.end());
  return request;
}

}  // namespace cairn::proto
