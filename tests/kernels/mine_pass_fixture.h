// SPDX-License-Identifier: Apache-2.0
#pragma once
// Samples of profiles in a cache, passes over them on a device, which may be emulated, and the same
// on the host.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "codecs/backend/reference/small_norm.h"
#include "codecs/mine/profile_miner.h"
#include "kernels/device.h"
#include "kernels/mine_pass.h"
#include "tests/kernels/decode_fixture.h"

namespace cairn::kernels {

// What a pass adds up on the host, strip by strip.
struct HostSums {
  std::vector<codecs::ExactMoments> moments[2];
  std::vector<codecs::HeadTokens> tokens[2];
  std::vector<codecs::CodeCounts> codes[2];
  codecs::ShrinkSums shrink[2];
  uint64_t norms = 0, small_norms = 0;
};

template <typename Part>
bool AreEqual(std::span<const Part> a, const std::vector<Part>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size_bytes()) == 0);
}

class MinePassFixture : public DecodeFixture {
 protected:
  struct Sample {
    ImageOf image;
    codecs::MineRequest request;
    std::vector<SampleRun> runs;
  };
  struct Mined {
    codecs::Error error = codecs::Error::kOk;
    std::string fault;
    uint32_t status = 0;
    std::vector<std::byte> profile;
  };

  // Of a text from its first token on.
  Sample MakeSample(const codecs::TileShape& tile, uint16_t tokens, codecs::Content content,
                    codecs::RopeKind rope = codecs::RopeKind::kNone) {
    Sample sample{.image = MakeImage("raw", tile, tokens, content), .request = {}, .runs = {}};
    codecs::GroupShape& group = sample.request.group;
    group.tile = tile;
    group.layers = sample.image.spec.slice.layer_count;
    group.heads = sample.image.spec.slice.head_count;
    if (rope != codecs::RopeKind::kNone) {
      group.rope = {rope, static_cast<uint16_t>(tile.k_dim / 4 * 2), 10000};
      for (uint32_t i = 0; i < group.rope.rotary_dims / 2; ++i) {
        sample.request.turns.push_back(random_());
      }
    }
    sample.request.rates = {30};
    sample.runs = {{.tokens = tokens}};
    return sample;
  }

  static uint32_t PlanesOf(const Sample& sample) {
    return codecs::PlaneCount(sample.request.group.tile.kind);
  }
  static uint32_t DimOf(const Sample& sample, uint32_t plane) {
    const codecs::TileShape& tile = sample.request.group.tile;
    return codecs::PlaneDim(tile, codecs::PlaneAt(tile.kind, plane));
  }

  // Calls visit(strip) for each strip of the runs, as `source` has them.
  template <typename Visit>
  static void ForEachStrip(const Sample& sample, std::span<const std::byte> source, Visit visit) {
    const codecs::GroupShape& group = sample.request.group;
    const std::byte* tile = source.data();
    for (uint32_t i = 0; i < uint32_t{group.layers} * group.heads * PlanesOf(sample); ++i) {
      const uint32_t plane = i % PlanesOf(sample);
      const uint32_t head = i / PlanesOf(sample);
      const size_t row = DimOf(sample, plane) * codecs::ElementBytes(group.tile.dtype);
      for (const SampleRun& run : sample.runs) {
        for (uint32_t at = 0; at < run.tokens; at += codecs::kStripTokens) {
          const uint32_t tokens = std::min(run.tokens - at, codecs::kStripTokens);
          visit(codecs::MinedStrip{.at = {head / group.heads, head % group.heads},
                                   .plane = plane,
                                   .part = run.part,
                                   .first_position = run.first_position + at,
                                   .tokens = tokens,
                                   .source = {tile + (run.token_first + at) * row, tokens * row}});
        }
      }
      tile += sample.image.spec.tokens * row;
    }
  }

  static HostSums SumsOnHost(const Sample& sample, std::span<const std::byte> source,
                             const codecs::ProfileMiner& miner) {
    const codecs::GroupShape& group = sample.request.group;
    const codecs::ProfilePass pass = miner.pass();
    HostSums sums;
    for (uint32_t plane = 0; plane < PlanesOf(sample); ++plane) {
      const size_t heads = size_t{group.layers} * group.heads;
      sums.codes[plane].resize(pass.columns.size());
      if (!pass.columns.empty()) continue;
      sums.tokens[plane].resize(heads);
      sums.moments[plane].resize(heads * DimOf(sample, plane) * codecs::kSampleParts);
    }
    codecs::StripValues values(miner.pairs(), sample.request.turns);
    ForEachStrip(sample, source, [&](const codecs::MinedStrip& strip) {
      const uint32_t dim = DimOf(sample, strip.plane);
      const uint32_t head = strip.at.layer * group.heads + strip.at.head;
      values.Load({strip.tokens, dim, group.tile.dtype, false}, strip, false);
      if (pass.columns.empty()) {
        ++sums.tokens[strip.plane][head].strips;
        sums.tokens[strip.plane][head].of[strip.part] += values.count();
        if (strip.plane == 1) AddNorms({strip.tokens, dim, group.tile.dtype, false}, strip, &sums);
      }
      for (uint32_t c = 0; c < dim; ++c) {
        const uint32_t channel = head * dim + c;
        for (uint32_t i = 0; i < values.count(); ++i) {
          const float value = values.Channel(c)[i];
          if (pass.columns.empty()) {
            sums.moments[strip.plane][channel * codecs::kSampleParts + strip.part].Add(value);
            continue;
          }
          AddCodes(pass, strip, channel, value, i < values.strided_count(), &sums);
        }
      }
    });
    return sums;
  }

  static void AddNorms(const codecs::StripShape& shape, const codecs::MinedStrip& strip,
                       HostSums* sums) {
    codecs::StripTokens small = {};
    codecs::SelectSmallNorms(shape, codecs::U8(strip.source.data()), &small);
    for (uint32_t token = 0; token < strip.tokens; ++token) {
      if (strip.first_position + token < codecs::kTokensSkipped) continue;
      ++sums->norms;
      sums->small_norms += small.Has(token) ? 1 : 0;
    }
  }

  static void AddCodes(const codecs::ProfilePass& pass, const codecs::MinedStrip& strip,
                       uint32_t channel, float value, bool is_strided, HostSums* sums) {
    const codecs::MinedChannel& known = pass.channels[strip.plane][channel];
    for (size_t i = 0; i < pass.columns.size(); ++i) {
      const codecs::CodeColumn& column = pass.columns[i];
      if (column.is_strided && !is_strided) continue;
      const codecs::CodeRate rate = codecs::RateOf(known.profile, column.multiplier);
      const float position = codecs::PositionOf(
          value, column.is_unseen ? known.unseen_means[strip.part] : known.profile.mean,
          rate.inverse);
      sums->codes[strip.plane][i].Add(rate.shape, codecs::CodeAt(position));
      if (column.has_shrink) {
        sums->shrink[strip.plane].Add(rate.shape, position, codecs::CodeAt(position));
      }
    }
  }

  static MinePassJob JobOf(const Sample& sample, const codecs::ProfileMiner& miner,
                           const PagedView& view) {
    const codecs::GroupShape& group = sample.request.group;
    return {.sample = {group.tile, group.layers, group.heads, view, sample.image.spec.tokens},
            .runs = sample.runs,
            .pairs = miner.pairs(),
            .turns = miner.request().turns,
            .pass = miner.pass()};
  }

  // A pass on the device. Of what it leaves `check` is told.
  template <typename Check>
  void Pass(const MinePassJob& job, Mined* mined, Check check) {
    std::vector<U32x4> room(MinePassPlanBytes(job) / sizeof(U32x4));
    MinePassPlan plan;
    mined->error = MakeMinePassPlan(job, std::as_writable_bytes(std::span(room)), &plan);
    if (mined->error != codecs::Error::kOk) return;
    EXPECT_EQ(plan.bytes, room.size() * sizeof(U32x4));
    DeviceBytes on_device(std::as_bytes(std::span(room)), false);
    DeviceBytes sums(plan.sums_bytes, true);
    DeviceBytes status(sizeof(uint32_t), true);
    std::memset(status.data(), 0, status.size());
    DeviceBytes::UploadAll();
    device::MinePass(plan, on_device.address(), sums.address(),
                     reinterpret_cast<uint32_t*>(status.address()), random_());
    mined->fault = device::Finish();
    if (mined->fault.empty()) mined->fault = DeviceBytes::DownloadAll();
    std::memcpy(&mined->status, status.data(), sizeof(mined->status));
    if (mined->fault.empty() && mined->status == 0) check(SumsOf(job, plan, sums.span()));
  }

  // A profile of a sample that lies in a cache, whose sums are those of `source` on the host.
  Mined Mine(const Sample& sample, const PagedView& view, std::span<const std::byte> source) {
    Mined mined;
    codecs::ProfileMiner miner(sample.request);
    for (; miner.NeedsPass(); miner.EndPass()) {
      const HostSums expected = SumsOnHost(sample, source, miner);
      Pass(JobOf(sample, miner, view), &mined, [&](const codecs::PassSums& sums) {
        for (uint32_t i = 0; i < PlanesOf(sample); ++i) {
          EXPECT_TRUE(AreEqual(sums.planes[i].moments, expected.moments[i])) << i;
          EXPECT_TRUE(AreEqual(sums.planes[i].tokens, expected.tokens[i])) << i;
          EXPECT_TRUE(AreEqual(sums.planes[i].codes, expected.codes[i])) << i;
          EXPECT_EQ(
              std::memcmp(&sums.planes[i].shrink, &expected.shrink[i], sizeof(codecs::ShrinkSums)),
              0)
              << i;
        }
        EXPECT_EQ(sums.norms, expected.norms);
        EXPECT_EQ(sums.small_norms, expected.small_norms);
        small_norms_ += sums.small_norms;
        miner.Add(sums);
      });
      if (mined.error != codecs::Error::kOk || !mined.fault.empty() || mined.status != 0)
        return mined;
    }
    EXPECT_EQ(miner.Write(&mined.profile), codecs::Error::kOk);
    return mined;
  }

  static std::vector<std::byte> MineOnHost(const Sample& sample,
                                           std::span<const std::byte> source) {
    codecs::ProfileMiner miner(sample.request);
    for (; miner.NeedsPass(); miner.EndPass()) {
      ForEachStrip(sample, source, [&](const codecs::MinedStrip& strip) { miner.Add(strip); });
    }
    std::vector<std::byte> profile;
    EXPECT_EQ(miner.Write(&profile), codecs::Error::kOk);
    return profile;
  }

  // REQUIRES: the view is of a cache that has `source`, where tokens in holes have no code.
  void CompareWithHost(const Sample& sample, const PagedView& view,
                       std::span<const std::byte> source) {
    ASSERT_EQ(codecs::Validate(sample.request), codecs::Error::kOk);
    const Mined mined = Mine(sample, view, source);
    ASSERT_EQ(mined.error, codecs::Error::kOk);
    ASSERT_EQ(mined.fault, "");
    ASSERT_EQ(mined.status, 0U);
    EXPECT_EQ(mined.profile, MineOnHost(sample, source));
    ++compared_;
  }
  void CompareWithHost(const Sample& sample) {
    const ImageOf& image = sample.image;
    PagedCache cache(image.spec, image.spec.slice, AnyWholeShape(), random_);
    cache.Fill(image.source);
    CompareWithHost(sample, cache.view(), image.source);
  }

  // Of each tile, token by token.
  template <typename Visit>
  static void ForEachRow(Sample* sample, Visit visit) {
    std::byte* at = sample->image.source.data();
    const size_t element = codecs::ElementBytes(sample->request.group.tile.dtype);
    for (uint32_t tile = 0; at < sample->image.source.data() + sample->image.source.size();
         ++tile) {
      const uint32_t plane = tile % PlanesOf(*sample);
      const size_t row = DimOf(*sample, plane) * element;
      for (uint32_t token = 0; token < sample->image.spec.tokens; ++token, at += row) {
        visit(plane, token, std::span(at, row));
      }
    }
  }

  uint32_t compared_ = 0;
  uint64_t small_norms_ = 0;
};

}  // namespace cairn::kernels
