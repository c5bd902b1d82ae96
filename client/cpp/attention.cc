// SPDX-License-Identifier: Apache-2.0
#include "client/cpp/attention.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/text.h"
#include "client/cpp/device_calls.h"
#include "client/cpp/device_memory.h"
#include "client/cpp/transfer.h"

namespace cairn {
namespace {

absl::Status DecodeFirst(std::string_view why) {
  return absl::UnimplementedError(absl::StrCat("decode first: ", ToAbsl(why)));
}

// Returns an empty string if attention supports all images.
std::string_view WhyDecodeFirst(std::span<const kernels::AttendJob> jobs) {
  for (const kernels::AttendJob& job : jobs) {
    for (const kernels::AttendImage& image : job.images) {
      const std::string_view why = kernels::WhyDecodeFirst(image.prefix->spec());
      if (!why.empty()) {
        return why;
      }
    }
  }
  return {};
}

}  // namespace

class DeviceAttention::Impl {
 public:
  explicit Impl(kernels::Runtime& device) : device_(device), calls_(device) {}

  absl::Status Prepare(std::span<const kernels::AttendJob> jobs, kernels::Stream stream) {
    CAIRN_RETURN_IF_ERROR(MakePlan(jobs));
    calls_.Use(stream);
    for (const kernels::AttendJob& job : jobs) {
      image_counts_.push_back(job.images.size());
    }
    const uint64_t status_bytes = plan_.status_count * sizeof(uint32_t);
    scratch_at_ = RoundUpTo(plan_.bytes);
    status_at_ = scratch_at_ + RoundUpTo(plan_.scratch_bytes);
    on_device_ = DeviceMemory(device_, /*is_host=*/false, status_at_ + status_bytes);
    statuses_ = DeviceMemory(device_, /*is_host=*/true, std::max<uint64_t>(status_bytes, 1));
    if (on_device_.data() == nullptr || statuses_.data() == nullptr) {
      return calls_.NoRoom("jobs", status_at_ + status_bytes);
    }
    std::fill_n(statuses_.data(), status_bytes, std::byte{0});
    CAIRN_RETURN_IF_ERROR(
        calls_.Took(device_.CopyIn(on_device_.data(), on_host_.data(), plan_.bytes, stream)));
    return calls_.Took(device_.Clear(on_device_.data() + status_at_, status_bytes, stream));
  }

  absl::Status Launch(kernels::Stream stream) {
    CAIRN_RETURN_IF_ERROR(CheckStream(stream));
    calls_.Use(stream);
    std::byte* const statuses = on_device_.data() + status_at_;
    CAIRN_RETURN_IF_ERROR(
        calls_.Took(device_.Attend(plan_, on_device_.data(), on_device_.data() + scratch_at_,
                                   reinterpret_cast<uint32_t*>(statuses), stream)));
    return calls_.Took(
        device_.CopyOut(statuses_.data(), statuses, plan_.status_count * sizeof(uint32_t), stream));
  }

  absl::Status Check() {
    CAIRN_ASSIGN_OR_RETURN(const bool is_over, calls_.IsOver());
    if (!is_over) {
      return absl::FailedPreconditionError("the stream of the last launch has not completed");
    }
    const auto* word = reinterpret_cast<const uint32_t*>(statuses_.data());
    for (size_t job = 0; job < image_counts_.size(); ++job) {
      for (size_t image = 0; image <= image_counts_[job]; ++image, ++word) {
        const std::string what =
            image == image_counts_[job] ? "tail" : absl::StrCat("image ", image);
        CAIRN_RETURN_IF_ERROR(FromCodec(static_cast<codecs::Error>(*word),
                                        absl::StrCat("sequence ", job, ", ", what)));
      }
    }
    return absl::OkStatus();
  }

 private:
  absl::Status MakePlan(std::span<const kernels::AttendJob> jobs) {
    if (const std::string_view why = cairn::WhyDecodeFirst(jobs); !why.empty()) {
      return DecodeFirst(why);
    }
    const uint64_t bytes = kernels::AttendPlanBytes(jobs, kernels::kAttendWorksWanted);
    on_host_ = DeviceMemory(device_, /*is_host=*/true, std::max<uint64_t>(bytes, 1));
    if (on_host_.data() == nullptr) {
      return calls_.NoRoom("jobs", bytes);
    }
    const codecs::Error error = kernels::MakeAttendPlan(jobs, kernels::kAttendWorksWanted,
                                                        {on_host_.data(), bytes}, &plan_);
    if (error == codecs::Error::kTooLarge) {
      return absl::ResourceExhaustedError("more jobs, images or tokens than a plan can hold");
    }
    size_t wrong = 0;  // index of the first job that cannot be planned
    while (error != codecs::Error::kOk && wrong < jobs.size() &&
           kernels::AttendPlanBytes(jobs.subspan(wrong, 1), kernels::kAttendWorksWanted) != 0) {
      ++wrong;
    }
    return FromCodec(error, wrong < jobs.size() ? absl::StrCat("jobs[", wrong, "]") : "jobs");
  }

  kernels::Runtime& device_;
  kernels::AttendPlan plan_;
  DeviceMemory on_host_;    // the plan, until its upload has completed
  DeviceMemory on_device_;  // plan, scratch, status words
  uint64_t scratch_at_ = 0, status_at_ = 0;
  DeviceMemory statuses_;             // of the host
  std::vector<size_t> image_counts_;  // of each job
  DeviceCalls calls_;  // destroyed first: it waits for the stream, which uses the memory above
};

DeviceAttention::DeviceAttention(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
DeviceAttention::~DeviceAttention() = default;

absl::StatusOr<std::unique_ptr<DeviceAttention>> DeviceAttention::Make(
    kernels::Runtime& device, std::span<const kernels::AttendJob> jobs, kernels::Stream stream) {
  CAIRN_RETURN_IF_ERROR(CheckStream(stream));
  auto impl = std::make_unique<Impl>(device);
  CAIRN_RETURN_IF_ERROR(impl->Prepare(jobs, stream));
  return std::unique_ptr<DeviceAttention>(new DeviceAttention(std::move(impl)));
}

absl::Status DeviceAttention::Launch(kernels::Stream stream) { return impl_->Launch(stream); }

absl::Status DeviceAttention::Check() const { return impl_->Check(); }

}  // namespace cairn
