// SPDX-License-Identifier: Apache-2.0
#include "tests/kernels/gpu_check/attend_workload.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "base/check.h"
#include "codecs/backend/reference/attention.h"
#include "codecs/numbers/math.h"
#include "codecs/types/bytes.h"
#include "kernels/device.h"

namespace cairn::kernels {
namespace {

using codecs::Error;

// Of the largest magnitude of V, as attention_test.cc has it for bf16 where weights are spread.
constexpr float kTolerance = 0.006F;

}  // namespace

AttendWorkload::AttendWorkload(const Scale& scale, const Workload& images, uint32_t sequences)
    : scale_(scale),
      workload_(images),
      sequences_(sequences),
      root_(1 / std::sqrt(static_cast<float>(scale.dim))),
      images_(images.AttendImages()),
      query_(scale.dim) {
  const uint32_t heads = kHeadsOfKv * scale.heads;
  std::mt19937 random(1);
  std::normal_distribution<float> bell(0, 0.05F);  // K has channels that spread widely
  for (float& value : query_) value = codecs::Bf16ToFloat(codecs::FloatToBf16(bell(random)));
  std::vector<uint16_t> queries(size_t{sequences} * heads * scale.dim);
  for (size_t i = 0; i < queries.size(); ++i) {
    queries[i] = codecs::FloatToBf16(query_[i % scale.dim]);
  }
  queries_ = MakeRoom(std::as_bytes(std::span(queries)));
  outputs_ = MakeRoom(OutputBytes());
  device::Fill(outputs_.get(), 0xFF, OutputBytes());
  log_sums_ = MakeRoom(size_t{sequences} * heads * sizeof(float));
}

AttendJob AttendWorkload::JobOf(uint32_t sequence, uint32_t layer) const {
  const uint32_t heads = kHeadsOfKv * scale_.heads;
  const size_t count = images_.size() / sequences_;
  AttendJob job;
  job.images = std::span(images_).subspan(sequence * count, count);
  job.tile = workload_.spec().tile;
  job.layer = static_cast<uint16_t>(layer);
  job.head_count = scale_.heads;
  job.query_heads = heads;
  job.scale = root_;
  job.queries = queries_.get() + size_t{sequence} * heads * scale_.dim * sizeof(uint16_t);
  job.outputs = reinterpret_cast<float*>(outputs_.get()) + size_t{sequence} * heads * scale_.dim;
  job.log_sums = reinterpret_cast<float*>(log_sums_.get()) + size_t{sequence} * heads;
  return job;
}

AttendWorkload::Plans AttendWorkload::PlansOf(uint32_t batch) const {
  Plans plans;
  for (uint32_t layer = 0; layer < scale_.layers; ++layer) {
    for (uint32_t first = 0; first < sequences_; first += batch) {
      std::vector<AttendJob> jobs;
      for (uint32_t i = first; i < std::min(first + batch, sequences_); ++i) {
        jobs.push_back(JobOf(i, layer));
      }
      std::vector<U32x4> buffer(AttendPlanBytes(jobs, kAttendWorksWanted) / sizeof(U32x4) + 1);
      AttendPlan plan;
      const Error error = MakeAttendPlan(jobs, kAttendWorksWanted,
                                         std::as_writable_bytes(std::span(buffer)), &plan);
      CAIRN_CHECK(error == Error::kOk, codecs::Name(error));
      const uint64_t status_bytes = uint64_t{plan.status_count} * sizeof(uint32_t);
      plans.attend.push_back(plan);
      plans.bytes.push_back(MakeRoom(std::as_bytes(std::span(buffer)).first(plan.bytes)));
      plans.status.push_back(MakeRoom(status_bytes));
      device::Fill(plans.status.back().get(), 0, status_bytes);
      plans.scratch.push_back(MakeRoom(std::max<uint64_t>(plan.scratch_bytes, 16)));
      device::Fill(plans.scratch.back().get(), 0xFF, plan.scratch_bytes);
    }
  }
  return plans;
}

bool AttendWorkload::Enqueue(const Plans& plans) {
  bool is_taken = true;
  for (size_t i = 0; i < plans.attend.size(); ++i) {
    is_taken &= device::Attend(plans.attend[i], plans.bytes[i].get(), plans.scratch[i].get(),
                               reinterpret_cast<uint32_t*>(plans.status[i].get()));
  }
  return is_taken;
}

std::string AttendWorkload::Check(const Plans& plans) const {
  for (size_t i = 0; i < plans.attend.size(); ++i) {
    std::vector<uint32_t> words(plans.attend[i].status_count);
    device::CopyOut(words.data(), plans.status[i].get(), words.size() * sizeof(uint32_t));
    if (std::ranges::any_of(words, [](uint32_t word) { return word != 0; })) {
      return "an image fails";
    }
  }
  std::string wrong = CheckRow(0, 0);
  if (wrong.empty()) wrong = CheckRow(sequences_ - 1, scale_.heads - 1);
  device::Fill(outputs_.get(), 0xFF, OutputBytes());  // NaNs: the next writes them again
  return wrong;
}

std::string AttendWorkload::CheckRow(uint32_t sequence, uint32_t head) const {
  // All images of a sequence are equal, and weigh the same: its attention is that of one.
  const uint32_t dim = scale_.dim;
  const uint64_t tile_bytes = uint64_t{scale_.tokens} * dim * sizeof(uint16_t);
  const uint8_t* k = codecs::U8(workload_.payload().data()) +
                     2 * tile_bytes * ((scale_.layers - 1) * scale_.heads + head);
  std::vector<float> want(dim), got(dim);
  float log_sum = 0;
  codecs::reference::Attend(
      {codecs::DType::kBf16, scale_.tokens, dim, dim, dim, k, k + tile_bytes, nullptr},
      query_.data(), root_, want.data(), &log_sum);
  const size_t row = (size_t{sequence} * scale_.heads + head) * kHeadsOfKv;
  device::CopyOut(got.data(), outputs_.get() + row * dim * sizeof(float), dim * sizeof(float));
  float largest = 0;
  for (uint64_t i = 0; i < uint64_t{scale_.tokens} * dim; ++i) {
    const float v = codecs::Bf16ToFloat(codecs::Load<uint16_t>(k + tile_bytes + 2 * i));
    largest = std::max(largest, std::fabs(v));
  }
  for (uint32_t c = 0; c < dim; ++c) {
    const float distance = std::fabs(got[c] - want[c]);
    if (distance <= kTolerance * largest) continue;
    return "an output is " + std::to_string(got[c]) + ", not " + std::to_string(want[c]);
  }
  return {};
}

}  // namespace cairn::kernels
