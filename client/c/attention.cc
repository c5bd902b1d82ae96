// SPDX-License-Identifier: Apache-2.0
// The C ABI: attention on a device.
#include "client/cpp/attention.h"

#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "base/status.h"
#include "base/text.h"
#include "client/c/cairn.h"
#include "client/c/convert.h"
#include "client/c/device_plane.h"
#include "client/c/guard.h"
#include "client/c/handles.h"

// Runs one call at a time: the SDK's objects are owned by one thread at a time.
struct cairn_device_images {
  int32_t device_number = 0;
  cairn::Mutex mutex{};
  std::unique_ptr<cairn::DeviceImages> images{};
};
struct cairn_attend_plan {
  cairn::Mutex mutex{};
  std::unique_ptr<cairn::DeviceAttention> attention;
};

namespace cairn::c {
namespace {

absl::Status OpenImages(cairn_space* space, int32_t device_number, const cairn_slice* slice,
                        cairn_device_images** images) {
  CAIRN_RETURN_IF_ERROR(CheckPointer("space", space));
  CAIRN_RETURN_IF_ERROR(CheckPointer("slice", slice));
  CAIRN_RETURN_IF_ERROR(CheckPointer("images", images));
  CAIRN_ASSIGN_OR_RETURN(kernels::Runtime* const device, space->movers.Open(device_number));
  auto made = std::make_unique<cairn_device_images>();
  made->device_number = device_number;
  CAIRN_ASSIGN_OR_RETURN(made->images,
                         DeviceImages::Make(*space->space, *device, FromSlice(*slice)));
  *images = made.release();
  return absl::OkStatus();
}

absl::Status AppendImages(cairn_device_images* images, const cairn_key* keys, size_t key_count,
                          const cairn_lease* lease, void* stream, uint32_t timeout_ms,
                          size_t* appended) {
  CAIRN_RETURN_IF_ERROR(CheckPointer("images", images));
  CAIRN_RETURN_IF_ERROR(CheckPointer("keys", keys, key_count));
  CAIRN_RETURN_IF_ERROR(CheckPointer("appended", appended));
  const MutexLock lock(images->mutex);
  CAIRN_ASSIGN_OR_RETURN(
      *appended,
      images->images->Append({.keys = Keys(keys, key_count),
                              .lease = lease == nullptr ? LeaseToken{} : Bytes<LeaseToken>(*lease),
                              .stream = stream,
                              .timeout = Timeout(timeout_ms)}));
  return absl::OkStatus();
}

absl::Status CountImages(cairn_device_images* images, size_t* count) {
  CAIRN_RETURN_IF_ERROR(CheckPointer("images", images));
  CAIRN_RETURN_IF_ERROR(CheckPointer("count", count));
  const MutexLock lock(images->mutex);
  *count = images->images->images().size();
  return absl::OkStatus();
}

// The addresses of a tail's planes, kept until the plan is made.
struct TailLayers {
  std::vector<std::byte*> k, v;
};

// Returns one layer, from the first of the job's heads on.
absl::StatusOr<kernels::PagedPlane> TailPlane(std::string_view name, const cairn_paged_plane& plane,
                                              const kernels::AttendJob& job,
                                              std::vector<std::byte*>& layers) {
  layers.resize(job.layer + size_t{1});
  CAIRN_ASSIGN_OR_RETURN(kernels::PagedPlane all,
                         OnDevice(name, plane, codecs::ElementBytes(job.tile.dtype), layers));
  if (job.head_first != 0 && all.head_stride > all.layer_bytes / job.head_first) {
    return absl::InvalidArgumentError(
        absl::StrCat(ToAbsl(name), ".end_byte is before head ", job.head_first));
  }
  const uint64_t skipped = job.head_first * all.head_stride;
  layers.back() += skipped;
  all.layers = std::span(layers).last(1);
  all.layer_bytes -= skipped;
  return all;
}

absl::Status SetTail(const cairn_attend_job& given, int32_t device_number, kernels::AttendJob* job,
                     TailLayers* layers) {
  CAIRN_RETURN_IF_ERROR(CheckStruct("tail", given.tail));
  const cairn_paged_cache tail = ReadStruct(given.tail);
  if (tail.device != CAIRN_DEVICE_CUDA) {
    return absl::InvalidArgumentError(
        absl::StrCat("tail.device is ", tail.device, ", expected 1: a CUDA device"));
  }
  if (tail.device_number != device_number) {
    return absl::InvalidArgumentError(absl::StrCat("tail.device_number is ", tail.device_number,
                                                   ", expected the plan's, ", device_number));
  }
  if (tail.block_count < 1 || tail.block_count > INT32_MAX) {
    return absl::InvalidArgumentError(
        absl::StrCat("tail.block_count is ", tail.block_count, ", expected 1 to ", INT32_MAX));
  }
  CAIRN_RETURN_IF_ERROR(CheckPointer("tail_blocks", given.tail_blocks, given.tail_block_count));
  CAIRN_ASSIGN_OR_RETURN(job->tail.k, TailPlane("tail.k", tail.k, *job, layers->k));
  if (codecs::PlaneCount(job->tile.kind) > 1) {
    CAIRN_ASSIGN_OR_RETURN(job->tail.v, TailPlane("tail.v", tail.v, *job, layers->v));
  }
  job->tail.pages = given.tail_blocks;
  job->tail.page_entries = given.tail_block_count;
  job->tail.page_count = static_cast<uint32_t>(tail.block_count);
  job->tail.page_tokens = tail.tokens_per_block;
  job->tail.first_slot = given.tail_first_token;
  job->tail_tokens_max = given.tail_tokens_max;
  job->tail_tokens = given.tail_tokens;
  job->tail_ends_with_queries = given.tail_ends_with_queries != 0;
  return absl::OkStatus();
}

absl::StatusOr<kernels::AttendJob> FromJob(const cairn_attend_job& given, int32_t device_number,
                                           TailLayers* layers) {
  CAIRN_RETURN_IF_ERROR(CheckPointer("images", given.images));
  const DeviceImages& images = *given.images->images;
  const PlacedSlice& placed = images.slice();
  const codecs::Slice& slice = placed.slice;
  const uint32_t layers_end = uint32_t{slice.layer_first} + slice.layer_count;
  const uint32_t heads = uint32_t{slice.head_first} + slice.head_count;
  if (given.images->device_number != device_number) {
    return absl::InvalidArgumentError(absl::StrCat("images lie on device ",
                                                   given.images->device_number,
                                                   ", the plan is for device ", device_number));
  }
  if (given.layer < slice.layer_first || given.layer >= layers_end) {
    return absl::InvalidArgumentError(absl::StrCat("layer is ", given.layer, ", the images' are ",
                                                   slice.layer_first, " to ", layers_end - 1));
  }
  if (given.head_first < slice.head_first || given.head_first >= heads ||
      given.head_count > heads - given.head_first) {
    return absl::InvalidArgumentError(
        absl::StrCat("head_first is ", given.head_first, " and head_count ", given.head_count,
                     ", the images' heads are ", slice.head_first, " to ", heads - 1));
  }
  kernels::AttendJob job;
  job.images = images.images();
  job.tile = placed.tile;
  job.layer = static_cast<uint16_t>(given.layer);
  job.head_first = static_cast<uint16_t>(given.head_first);
  job.head_count =
      static_cast<uint16_t>(given.head_count != 0 ? given.head_count : heads - given.head_first);
  job.query_heads = given.query_heads;
  job.query_tokens = given.query_tokens;
  job.v_dim = given.v_dim;
  job.scale = given.scale;
  job.queries = static_cast<const std::byte*>(given.queries);
  job.outputs = given.outputs;
  job.log_sums = given.log_sums;
  if (given.tail != nullptr) {
    CAIRN_RETURN_IF_ERROR(SetTail(given, device_number, &job, layers));
  }
  return job;
}

absl::Status OpenAttention(cairn_space* space, int32_t device_number, const cairn_attend_job* jobs,
                           size_t job_count, void* stream, cairn_attend_plan** plan) {
  CAIRN_RETURN_IF_ERROR(CheckPointer("space", space));
  CAIRN_RETURN_IF_ERROR(CheckPointer("plan", plan));
  CAIRN_RETURN_IF_ERROR(CheckArray("jobs", jobs, job_count));
  CAIRN_ASSIGN_OR_RETURN(kernels::Runtime* const device, space->movers.Open(device_number));
  std::vector<kernels::AttendJob> wanted;
  std::vector<TailLayers> layers(job_count);
  for (size_t i = 0; i < job_count; ++i) {
    absl::StatusOr<kernels::AttendJob> job =
        FromJob(ReadStruct(At(jobs, i)), device_number, &layers[i]);
    if (!job.ok()) {
      return Annotate(job.status(), absl::StrCat("jobs[", i, "]"));
    }
    wanted.push_back(*job);
  }
  auto made = std::make_unique<cairn_attend_plan>();
  CAIRN_ASSIGN_OR_RETURN(made->attention, DeviceAttention::Make(*device, wanted, stream));
  *plan = made.release();
  return absl::OkStatus();
}

}  // namespace
}  // namespace cairn::c

// Outside all namespaces: C functions.
int cairn_device_images_open(cairn_space* space, int32_t device_number, const cairn_slice* slice,
                             cairn_device_images** images) {
  return cairn::c::Guard([&] { return cairn::c::OpenImages(space, device_number, slice, images); });
}

int cairn_device_images_append(cairn_device_images* images, const cairn_key* keys, size_t key_count,
                               const cairn_lease* lease, void* stream, uint32_t timeout_ms,
                               size_t* appended) {
  return cairn::c::Guard([&] {
    return cairn::c::AppendImages(images, keys, key_count, lease, stream, timeout_ms, appended);
  });
}

int cairn_device_images_count(cairn_device_images* images, size_t* count) {
  return cairn::c::Guard([&] { return cairn::c::CountImages(images, count); });
}

void cairn_device_images_close(cairn_device_images* images) { delete images; }

int cairn_attend_open(cairn_space* space, int32_t device_number, const cairn_attend_job* jobs,
                      size_t job_count, void* stream, cairn_attend_plan** plan) {
  return cairn::c::Guard(
      [&] { return cairn::c::OpenAttention(space, device_number, jobs, job_count, stream, plan); });
}

int cairn_attend_launch(cairn_attend_plan* plan, void* stream) {
  return cairn::c::Guard([&]() -> absl::Status {
    CAIRN_RETURN_IF_ERROR(cairn::c::CheckPointer("plan", plan));
    const cairn::MutexLock lock(plan->mutex);
    return plan->attention->Launch(stream);
  });
}

int cairn_attend_check(cairn_attend_plan* plan) {
  return cairn::c::Guard([&]() -> absl::Status {
    CAIRN_RETURN_IF_ERROR(cairn::c::CheckPointer("plan", plan));
    const cairn::MutexLock lock(plan->mutex);
    return plan->attention->Check();
  });
}

void cairn_attend_close(cairn_attend_plan* plan) { delete plan; }
