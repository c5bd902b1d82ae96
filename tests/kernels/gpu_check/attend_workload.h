// SPDX-License-Identifier: Apache-2.0
#pragma once
// Sequences of images on the device, queries that attend to them layer by layer, and whether what
// comes of it is attention.
//
// Thread-safety: Owned by the main thread.

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/attend_plan.h"
#include "tests/kernels/gpu_check/workload.h"

namespace cairn::kernels {

inline constexpr uint32_t kHeadsOfKv = 4;  // query heads of each, as GQA has it

class AttendWorkload {
 public:
  // Images of the workload are those of `sequences` sequences, one behind the other.
  AttendWorkload(const Scale& scale, const Workload& images, uint32_t sequences);

  // For all layers of all sequences, so many of those a plan.
  struct Plans {
    std::vector<AttendPlan> attend = {};
    std::vector<Room> bytes = {}, status = {}, scratch = {};  // one a plan
  };
  [[nodiscard]] Plans PlansOf(uint32_t batch) const;
  // False: the device refuses a plan, which device::Attend() says why.
  [[nodiscard]] static bool Enqueue(const Plans& plans);
  // What is wrong with the last layer, for the first query head and for those of the last KV head.
  // Empty: nothing.
  [[nodiscard]] std::string Check(const Plans& plans) const;

 private:
  [[nodiscard]] std::string CheckRow(uint32_t sequence, uint32_t head) const;
  [[nodiscard]] uint64_t OutputBytes() const {
    return uint64_t{sequences_} * kHeadsOfKv * scale_.heads * scale_.dim * sizeof(float);
  }
  [[nodiscard]] AttendJob JobOf(uint32_t sequence, uint32_t layer) const;

  const Scale& scale_;
  const Workload& workload_;
  uint32_t sequences_;
  float root_;  // of the scale of scores
  std::vector<AttendImage> images_;
  std::vector<float> query_;  // of every head of every sequence
  Room queries_, outputs_, log_sums_;
};

}  // namespace cairn::kernels
