// SPDX-License-Identifier: Apache-2.0
#pragma once
// Sequences of images and a tail, the attention to them by kernels on a device, which may be
// emulated, and what the plain loops of the reference make of decoded tiles.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "codecs/backend/reference/attention.h"
#include "codecs/image/attend.h"
#include "codecs/numbers/attention.h"
#include "kernels/attend_plan.h"
#include "tests/kernels/decode_fixture.h"

namespace cairn::kernels {

// How far outputs may be from the reference, in parts of the largest magnitude of V, and log sums.
// Codes that are attended to as they are lack the rounding of decoded values, but have others:
// steps, weights, and their products as fp16. The slow kernel has the values that decoding has.
struct Tolerance {
  double output, log_sum;
};
inline constexpr Tolerance kNearBf16{6e-3, 2e-2};
inline constexpr Tolerance kNearFp16{2e-3, 4e-3};
inline constexpr Tolerance kSame{1e-5, 1e-5};

// Those that fast kernels attend to where heads are 128 wide and tiles have no rows.
inline constexpr const char* kFastRecipes[] = {"kivi:8",     "kivi:4", "kivi:2", "fp8",
                                               "logquant:4", "ott:2",  "arkv"};

// Of a plan, which lies at a multiple of it.
struct alignas(16) PlanUnit {
  std::byte of[16];
};

// One sequence at one layer, and its queries.
struct Sequence {
  std::vector<ImageOf> images;
  codecs::TileShape tile;
  uint16_t layer = 4, head_first = 1, head_count = 2;
  uint32_t rows_of_token = 4, query_tokens = 1, v_dim = 0;
  bool is_causal = false;
  uint32_t tail_tokens = 0, tail_tokens_max = 0;
  CacheShape tail_shape;
  float scale = 0.09F, spread = 1.0F;  // of queries

  // Made by Prepare().
  std::vector<float> queries;
  std::vector<std::byte> tail;  // payload
  std::unique_ptr<PagedCache> cache;
  std::vector<codecs::ImagePrefix> prefixes;
  std::vector<std::unique_ptr<DeviceBytes>> on_device;
  std::vector<AttendImage> attended;
  std::unique_ptr<DeviceBytes> device_queries, device_outputs, device_log_sums, device_tail_tokens;

  [[nodiscard]] uint32_t query_heads() const { return rows_of_token * head_count; }
  [[nodiscard]] uint32_t VDim() const {
    return tile.kind == codecs::GroupKind::kKv ? tile.v_dim : v_dim;
  }
  [[nodiscard]] codecs::ImageSpec TailSpec() const {
    codecs::ImageSpec spec;
    spec.tile = tile;
    spec.slice = {layer, 1, head_first, head_count};
    spec.tokens = static_cast<uint16_t>(tail_tokens_max);
    return spec;
  }
  [[nodiscard]] const float* Outputs() const {
    return reinterpret_cast<const float*>(device_outputs->data());
  }
  [[nodiscard]] const float* LogSums() const {
    return reinterpret_cast<const float*>(device_log_sums->data());
  }
};

class AttentionFixture : public DecodeFixture {
 protected:
  uint32_t Below(uint64_t bound) { return static_cast<uint32_t>(random_() % bound); }

  // Of the fast kernels, or of any.
  Sequence MakeSequence(std::string_view recipe, const codecs::TileShape& tile,
                        std::span<const uint16_t> tokens) {
    Sequence sequence;
    sequence.tile = tile;
    if (tile.kind == codecs::GroupKind::kLatent) {
      sequence.head_count = 1;
      sequence.v_dim = tile.k_dim - tile.k_dim / 9;
    }
    sequence.scale = 1.0F / std::sqrt(static_cast<float>(tile.k_dim));
    for (const uint16_t count : tokens) sequence.images.push_back(MakeWritten(recipe, tile, count));
    return sequence;
  }

  // An image whose K is as it was written.
  ImageOf MakeWritten(std::string_view recipe, const codecs::TileShape& tile, uint16_t tokens) {
    for (;;) {
      ImageOf image = MakeImage(recipe, tile, tokens, codecs::Content::kBell);
      if (image.spec.domain == codecs::Domain::kAsWritten) return image;
    }
  }

  // Makes queries and the tail, and brings everything to the device.
  void Prepare(Sequence* sequence) {
    const codecs::TileShape& tile = sequence->tile;
    const uint32_t queries = sequence->query_tokens * sequence->query_heads();
    std::normal_distribution<float> bell;
    sequence->queries.resize(size_t{queries} * tile.k_dim);
    sequence->device_queries = std::make_unique<DeviceBytes>(
        sequence->queries.size() * codecs::ElementBytes(tile.dtype), false);
    auto* elements = reinterpret_cast<uint8_t*>(sequence->device_queries->data());
    for (size_t i = 0; i < sequence->queries.size(); ++i) {
      codecs::StoreElement(tile.dtype, elements, i, bell(random_) * sequence->spread);
      sequence->queries[i] = codecs::LoadElement(tile.dtype, elements, i);
    }
    sequence->device_outputs =
        std::make_unique<DeviceBytes>(size_t{4} * queries * sequence->VDim(), true);
    sequence->device_log_sums = std::make_unique<DeviceBytes>(size_t{4} * queries, true);
    sequence->prefixes.resize(sequence->images.size());
    for (size_t i = 0; i < sequence->images.size(); ++i) {
      const ImageOf& image = sequence->images[i];
      EXPECT_EQ(codecs::ParseImagePrefix(image.bytes, &sequence->prefixes[i]), codecs::Error::kOk);
      sequence->on_device.push_back(std::make_unique<DeviceBytes>(image.bytes, false));
      sequence->attended.push_back({&sequence->prefixes[i], sequence->on_device.back()->address()});
      if (image.side == nullptr) continue;
      sequence->attended.back().side = image.Inputs();
      sequence->attended.back().side_object = image.side->on_device->address();
    }
    if (sequence->tail_tokens_max != 0) MakeTail(sequence);
  }

  void MakeTail(Sequence* sequence) {
    const codecs::ImageSpec spec = sequence->TailSpec();
    uint64_t bytes = 0;
    ASSERT_EQ(codecs::SourceBytes(spec.tile, spec.slice, spec.tokens, &bytes), codecs::Error::kOk);
    sequence->tail.resize(bytes);
    std::normal_distribution<float> bell;
    for (uint64_t i = 0; i < bytes / codecs::ElementBytes(spec.tile.dtype); ++i) {
      codecs::StoreElement(spec.tile.dtype, codecs::U8(sequence->tail.data()), i, bell(random_));
    }
    sequence->cache = std::make_unique<PagedCache>(spec, spec.slice, sequence->tail_shape, random_);
    const std::byte* from = sequence->tail.data();
    for (uint32_t head = 0; head < spec.slice.head_count; ++head) {
      for (uint32_t plane = 0; plane < codecs::PlaneCount(spec.tile.kind); ++plane) {
        for (uint32_t token = 0; token < spec.tokens; ++token) {
          const uint32_t row_bytes = sequence->cache->row_bytes(plane);
          std::byte* row = sequence->cache->Row(0, head, plane, token);
          if (row != nullptr) std::memcpy(row, from, row_bytes);
          from += row_bytes;
        }
      }
    }
    sequence->device_tail_tokens = std::make_unique<DeviceBytes>(sizeof(int32_t), false);
    codecs::Store(sequence->device_tail_tokens->data(),
                  static_cast<int32_t>(sequence->tail_tokens));
  }

  static AttendJob JobOf(const Sequence& sequence) {
    AttendJob job;
    job.images = sequence.attended;
    job.tile = sequence.tile;
    job.layer = sequence.layer;
    job.head_first = sequence.head_first;
    job.head_count = sequence.head_count;
    job.query_heads = sequence.query_heads();
    job.query_tokens = sequence.query_tokens;
    job.v_dim = sequence.v_dim;
    job.scale = sequence.scale;
    job.queries = sequence.device_queries->address();
    job.outputs = reinterpret_cast<float*>(sequence.device_outputs->address());
    job.log_sums = reinterpret_cast<float*>(sequence.device_log_sums->address());
    job.tail_tokens_max = sequence.tail_tokens_max;
    job.tail_ends_with_queries = sequence.is_causal;
    if (sequence.cache == nullptr) return job;
    job.tail = sequence.cache->view();
    // Where all that may be there is, nobody has to say so.
    if (sequence.tail_tokens != sequence.tail_tokens_max) {
      job.tail_tokens = reinterpret_cast<const int32_t*>(sequence.device_tail_tokens->address());
    }
    return job;
  }

  struct Attended {
    codecs::Error error = codecs::Error::kOk;
    bool is_refused = false;  // for want of shared memory: nothing was written
    std::string fault;
    std::vector<uint32_t> status;
    AttendPlan plan;
  };

  Attended Attend(std::span<const AttendJob> jobs) {
    Attended attended;
    const uint64_t bytes = AttendPlanBytes(jobs, works_wanted_);
    std::vector<PlanUnit> room(bytes / sizeof(PlanUnit) + 1);
    attended.error = MakeAttendPlan(
        jobs, works_wanted_, std::as_writable_bytes(std::span(room)).first(bytes), &attended.plan);
    if (attended.error != codecs::Error::kOk) return attended;
    EXPECT_EQ(attended.plan.bytes, bytes);
    DeviceBytes plan(std::as_bytes(std::span(room)).first(bytes), false);
    DeviceBytes status(size_t{4} * attended.plan.status_count, true);
    std::memset(status.data(), 0, status.size());
    DeviceBytes scratch(attended.plan.scratch_bytes, true);
    std::ranges::fill(scratch.span(), std::byte{0xFF});  // NaNs
    DeviceBytes::UploadAll();
    attended.is_refused = !device::Attend(attended.plan, plan.address(), scratch.address(),
                                          reinterpret_cast<uint32_t*>(status.address()), random_());
    // gpu_check names the tests that have this.
    if (attended.is_refused) RecordProperty("refused", 1);
    attended.fault = device::Finish();
    if (attended.fault.empty()) attended.fault = DeviceBytes::DownloadAll();
    const auto* words = reinterpret_cast<const uint32_t*>(status.data());
    attended.status.assign(words, words + attended.plan.status_count);
    return attended;
  }

  // ---- The reference ----

  struct Expected {
    std::vector<float> outputs, log_sums;
    double v_max = 0;  // magnitude
  };

  // What a query token has of the tail.
  static void AttendToTail(const Sequence& sequence, uint32_t query_token, float* outputs,
                           float* log_sums) {
    const codecs::TileShape& tile = sequence.tile;
    const bool is_latent = tile.kind == codecs::GroupKind::kLatent;
    const uint32_t behind = sequence.is_causal ? sequence.query_tokens - 1 - query_token : 0;
    const uint64_t k_bytes =
        uint64_t{sequence.tail_tokens_max} * tile.k_dim * codecs::ElementBytes(tile.dtype);
    const uint64_t v_bytes = k_bytes / tile.k_dim * tile.v_dim;
    for (uint32_t q = 0; q < sequence.query_heads(); ++q) {
      const uint32_t head = q / sequence.rows_of_token;
      std::vector<uint8_t> kept(sequence.tail_tokens_max);
      for (uint32_t t = 0; t < kept.size(); ++t) {
        kept[t] = t + behind < sequence.tail_tokens && sequence.cache->Row(0, head, 0, t) != nullptr
                      ? 1
                      : 0;
      }
      const uint8_t* k = codecs::U8(sequence.tail.data()) + head * (k_bytes + v_bytes);
      const codecs::reference::AttendedTiles tiles = {tile.dtype,
                                                      sequence.tail_tokens_max,
                                                      tile.k_dim,
                                                      sequence.VDim(),
                                                      is_latent ? tile.k_dim : tile.v_dim,
                                                      k,
                                                      is_latent ? k : k + k_bytes,
                                                      kept.data()};
      const uint64_t query = uint64_t{query_token} * sequence.query_heads() + q;
      codecs::reference::Attend(tiles, sequence.queries.data() + query * tile.k_dim, sequence.scale,
                                outputs + uint64_t{q} * sequence.VDim(), log_sums + q);
    }
  }

  Expected Reference(const Sequence& sequence) {
    const uint32_t heads = sequence.query_heads(), v_dim = sequence.VDim();
    const auto parts = static_cast<uint32_t>(sequence.images.size() + 1);
    Expected expected;
    for (uint32_t token = 0; token < sequence.query_tokens; ++token) {
      std::vector<float> outputs(size_t{parts} * heads * v_dim);
      std::vector<float> log_sums(size_t{parts} * heads, -INFINITY);
      const std::span<const float> queries =
          std::span(sequence.queries)
              .subspan(size_t{token} * heads * sequence.tile.k_dim, heads * sequence.tile.k_dim);
      for (size_t i = 0; i < sequence.images.size(); ++i) {
        const ImageOf& image = sequence.images[i];
        EXPECT_EQ(codecs::AttendImage(codecs::ReferenceBackend(), image.View(),
                                      {sequence.layer, heads, v_dim, sequence.scale, queries},
                                      image.Inputs(),
                                      std::span(outputs).subspan(i * heads * v_dim, heads * v_dim),
                                      std::span(log_sums).subspan(i * heads, heads)),
                  codecs::Error::kOk);
      }
      if (sequence.tail_tokens_max != 0) {
        AttendToTail(sequence, token, outputs.data() + (parts - 1) * heads * v_dim,
                     log_sums.data() + (parts - 1) * heads);
      }
      for (uint32_t q = 0; q < heads; ++q) {
        std::vector<float> of_head, logs, merged(v_dim);
        for (uint32_t i = 0; i < parts; ++i) {
          const float* from = outputs.data() + (i * heads + q) * v_dim;
          of_head.insert(of_head.end(), from, from + v_dim);
          logs.push_back(log_sums[i * heads + q]);
        }
        float log_sum = 0;
        codecs::reference::MergeAttention(parts, v_dim, of_head.data(), logs.data(), merged.data(),
                                          &log_sum);
        expected.outputs.insert(expected.outputs.end(), merged.begin(), merged.end());
        expected.log_sums.push_back(log_sum);
      }
    }
    for (const ImageOf& image : sequence.images) {
      const std::vector<std::byte> payload = Payload(image, image.spec.slice);
      const size_t elements = payload.size() / codecs::ElementBytes(sequence.tile.dtype);
      for (size_t i = 0; i < elements; ++i) {
        const double of = codecs::LoadElement(sequence.tile.dtype, codecs::U8(payload.data()), i);
        expected.v_max = std::max(expected.v_max, std::abs(of));
      }
    }
    expected.v_max = std::max(expected.v_max, 4.0);  // of the tail
    return expected;
  }

  static void Compare(const Sequence& sequence, const Expected& expected,
                      const Tolerance& tolerance) {
    double worst = 0, worst_log = 0;
    for (size_t i = 0; i < expected.log_sums.size(); ++i) {
      const double is = sequence.LogSums()[i], want = expected.log_sums[i];
      if (is == want) continue;  // also minus infinity
      worst_log = std::max(worst_log, std::abs(is - want) / std::max(1.0, std::abs(want)));
      if (std::isnan(is)) worst_log = INFINITY;
    }
    for (size_t i = 0; i < expected.outputs.size(); ++i) {
      const double apart = std::abs(double{sequence.Outputs()[i]} - expected.outputs[i]);
      worst = std::isnan(apart) ? INFINITY : std::max(worst, apart / expected.v_max);
    }
    EXPECT_LE(worst, tolerance.output);
    EXPECT_LE(worst_log, tolerance.log_sum);
    worst_output_ = std::max(worst_output_, worst);
    worst_log_sum_ = std::max(worst_log_sum_, worst_log);
  }

  // Attends to a sequence that is not prepared, and compares.
  void Check(Sequence sequence, const Tolerance& tolerance) {
    Prepare(&sequence);
    const AttendJob job = JobOf(sequence);
    const Attended attended = Attend({&job, 1});
    ASSERT_EQ(attended.error, codecs::Error::kOk);
    ASSERT_EQ(attended.fault, "");
    counts_ = attended.plan.counts;
    if (attended.is_refused) return;
    for (const uint32_t status : attended.status) EXPECT_EQ(status, 0U);
    Compare(sequence, Reference(sequence), tolerance);
  }

  [[nodiscard]] uint32_t Works(AttendList list) const {
    return counts_[static_cast<uint32_t>(list)];
  }

  std::array<uint32_t, kAttendLists> counts_{};  // of the last Check()
  uint32_t works_wanted_ = kAttendWorksWanted;
  inline static double worst_output_ = 0, worst_log_sum_ = 0;
};

}  // namespace cairn::kernels
