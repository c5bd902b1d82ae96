// SPDX-License-Identifier: Apache-2.0
// The C ABI: puts and gets of blocks of an engine's paged cache.
#include <algorithm>
#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/text.h"
#include "client/c/cairn.h"
#include "client/c/convert.h"
#include "client/c/device_movers.h"
#include "client/c/device_plane.h"
#include "client/c/guard.h"
#include "client/c/handles.h"
#include "client/cpp/device.h"
#include "client/cpp/options.h"
#include "client/cpp/paged.h"

namespace cairn::c {

absl::StatusOr<kernels::PagedPlane> OnDevice(std::string_view name, const cairn_paged_plane& plane,
                                             uint64_t element_bytes,
                                             std::vector<std::byte*>& layers) {
  const bool has_rows = plane.tokens_per_run == 0 && plane.dims_per_run == 0 &&
                        plane.dim_stride == static_cast<int64_t>(element_bytes);
  if (!has_rows || plane.block_stride < 0 || plane.head_stride < 0 || plane.token_stride < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        ToAbsl(name), ": on a device, channels must be adjacent and strides not negative"));
  }
  if (plane.end_byte <= 0) {
    return absl::InvalidArgumentError(absl::StrCat(ToAbsl(name), ".end_byte is ", plane.end_byte,
                                                   ": on a device it says where a layer ends"));
  }
  for (size_t i = 0; i < layers.size(); ++i) {
    layers[i] = static_cast<std::byte*>(plane.layers != nullptr ? plane.layers[i] : plane.data);
    if (plane.layers == nullptr) {
      layers[i] += static_cast<int64_t>(i) * plane.layer_stride;
    }
  }
  kernels::PagedPlane result;
  result.layers = layers;
  result.layer_bytes = static_cast<uint64_t>(plane.end_byte);
  result.page_stride = static_cast<uint64_t>(plane.block_stride);
  result.token_stride = static_cast<uint64_t>(plane.token_stride);
  result.head_stride = static_cast<uint64_t>(plane.head_stride);
  return result;
}

namespace {

// A caller's arguments, checked, without the keys.
struct PagedGiven {
  PlacedSlice slice;
  PagedViews views;
  cairn_paged_request request;
  std::vector<BlockNames> names;  // of each key; empty: none
};

PagedPlane FromPlane(const cairn_paged_plane& plane, uint16_t layers) {
  PagedPlane result;
  result.data = static_cast<std::byte*>(plane.data);
  if (plane.layers != nullptr) {
    result.layers = {reinterpret_cast<std::byte* const*>(plane.layers), layers};
  }
  result.layer_stride = plane.layer_stride;
  result.block_stride = plane.block_stride;
  result.head_stride = plane.head_stride;
  result.tokens_per_run = plane.tokens_per_run;
  result.dims_per_run = plane.dims_per_run;
  result.token_run_stride = plane.token_run_stride;
  result.token_stride = plane.token_stride;
  result.dim_run_stride = plane.dim_run_stride;
  result.dim_stride = plane.dim_stride;
  result.first_byte = plane.first_byte;
  result.end_byte = plane.end_byte;
  return result;
}

// Returns the names of each key; empty: none.
absl::StatusOr<std::vector<BlockNames>> ReadNames(const cairn_paged_request& request) {
  std::vector<BlockNames> names;
  for (size_t i = 0; request.names != nullptr && i < request.key_count; ++i) {
    CAIRN_ASSIGN_OR_RETURN(names.emplace_back(), FromNames(request.names[i]));
  }
  return names;
}

absl::StatusOr<PagedGiven> ReadPaged(cairn_space* space, const cairn_paged_cache* cache,
                                     const cairn_paged_request* request, ViewUse use) {
  CAIRN_RETURN_IF_ERROR(CheckPointer("space", space));
  CAIRN_RETURN_IF_ERROR(CheckStruct("cache", cache));
  CAIRN_RETURN_IF_ERROR(CheckStruct("request", request));
  const cairn_paged_cache known = ReadStruct(cache);
  const cairn_paged_request wanted = ReadStruct(request);
  CAIRN_RETURN_IF_ERROR(CheckPointer("blocks", wanted.blocks, wanted.block_count));
  CAIRN_ASSIGN_OR_RETURN(const PlacedSlice slice, space->space->Place(FromSlice(wanted.slice)));
  const ViewShape shape = slice.view_shape();
  const PagedCache paged{.tokens_per_block = known.tokens_per_block,
                         .block_count = known.block_count,
                         .k = FromPlane(known.k, shape.layers),
                         .v = FromPlane(known.v, shape.layers)};
  CAIRN_ASSIGN_OR_RETURN(PagedViews views,
                         PagedViews::Make(paged, shape, {wanted.blocks, wanted.block_count}, use));
  CAIRN_ASSIGN_OR_RETURN(std::vector<BlockNames> names, ReadNames(wanted));
  return PagedGiven{slice, std::move(views), wanted, std::move(names)};
}

absl::Status CheckPagedKeys(const PagedGiven& given) {
  CAIRN_RETURN_IF_ERROR(CheckPointer("keys", given.request.keys));
  CAIRN_RETURN_IF_ERROR(CheckPointer("statuses", given.request.statuses));
  if (given.request.code != 0 && given.request.code != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("code is ", given.request.code, ", expected 0 or 1"));
  }
  if (given.request.key_count != given.views.count()) {
    return absl::InvalidArgumentError(absl::StrCat("there are ", given.request.key_count,
                                                   " keys, but blocks of the engine for ",
                                                   given.views.count()));
  }
  return absl::OkStatus();
}

// Returns the outcome of a durable put; kNotAsked for any other put.
Durability DurabilityOf(const absl::StatusOr<PutResult>& put) {
  return put.ok() ? put->durability : NotDurableOf(put.status()).value_or(PutResult()).durability;
}
Durability DurabilityOf(const absl::StatusOr<GetResult>&) { return Durability::kNotAsked; }

// Writes the statuses and the sums into the caller's request.
template <typename Result, typename BytesOf>
void WritePaged(const std::vector<absl::StatusOr<Result>>& results, const PlacedSlice& slice,
                const cairn_paged_request& request, const BytesOf& bytes_of,
                cairn_paged_request* target) {
  cairn_paged_request value = request;
  value.bytes = value.wire_bytes = 0;
  for (size_t i = 0; i < results.size(); ++i) {
    value.statuses[i] = Report(results[i].status());
    if (value.durabilities != nullptr) {
      value.durabilities[i] = static_cast<int32_t>(DurabilityOf(results[i]));
    }
    if (results[i].ok()) {
      value.bytes += SourceBytesOf(slice);
      value.wire_bytes += bytes_of(*results[i]);
    }
  }
  WriteStruct(value, target);
}

void Fill(const PagedGiven& given, size_t i, GetRequest* get) {
  get->lease = Bytes<LeaseToken>(given.request.lease);
  get->decode = given.request.code == CAIRN_DECODE_DAEMON ? Side::kDaemon : Side::kClient;
  get->target = given.views.At(i);
}

void Fill(const PagedGiven& given, size_t i, PutRequest* put) {
  put->parent = Bytes<BlockKey>(i == 0 ? given.request.parent : given.request.keys[i - 1]);
  put->first_position = given.request.first_position + i * given.slice.tokens;
  put->is_derived = given.request.derived != 0;
  put->is_durable = given.request.durable != 0;
  put->encode = given.request.code == CAIRN_ENCODE_CLIENT ? Side::kClient : Side::kDaemon;
  put->source = given.views.At(i);
  if (!given.names.empty()) {
    put->names = given.names[i];
  }
}

// Like MovePaged(), for a cache on a device. `move` gets or puts all blocks at once.
template <typename Move, typename BytesOf>
absl::Status MoveOnDevice(cairn_space* space, const cairn_paged_cache& cache,
                          cairn_paged_request* target, Work work, const Move& move,
                          const BytesOf& bytes_of) {
  CAIRN_RETURN_IF_ERROR(CheckStruct("request", target));
  const cairn_paged_request request = ReadStruct(target);
  CAIRN_RETURN_IF_ERROR(CheckPointer("blocks", request.blocks, request.block_count));
  CAIRN_RETURN_IF_ERROR(CheckPointer("keys", request.keys));
  CAIRN_RETURN_IF_ERROR(CheckPointer("statuses", request.statuses));
  const GroupSlice slice = FromSlice(request.slice);
  CAIRN_ASSIGN_OR_RETURN(const PlacedSlice placed, space->space->Place(slice));
  const uint64_t element_bytes = codecs::ElementBytes(placed.tile.dtype);
  std::vector<std::byte*> k_layers(placed.slice.layer_count), v_layers(placed.slice.layer_count);
  DeviceRequest wanted;
  wanted.cache.tokens_per_block = cache.tokens_per_block;
  wanted.cache.block_count = cache.block_count;
  CAIRN_ASSIGN_OR_RETURN(wanted.cache.k, OnDevice("cache.k", cache.k, element_bytes, k_layers));
  if (codecs::PlaneCount(placed.tile.kind) > 1) {
    CAIRN_ASSIGN_OR_RETURN(wanted.cache.v, OnDevice("cache.v", cache.v, element_bytes, v_layers));
  }
  const auto keys = Keys(request.keys, request.key_count);
  wanted.keys = keys;
  wanted.lease = Bytes<LeaseToken>(request.lease);
  wanted.table = {request.blocks, request.block_count};
  wanted.stream = cache.stream;
  wanted.parent = Bytes<BlockKey>(request.parent);
  wanted.first_position = request.first_position;
  wanted.is_derived = request.derived != 0;
  wanted.is_durable = request.durable != 0;
  CAIRN_ASSIGN_OR_RETURN(const std::vector<BlockNames> names, ReadNames(request));
  wanted.names = names;
  const absl::Duration timeout =
      request.timeout_ms == 0 ? kDataTimeoutDefault : Timeout(request.timeout_ms);
  const DeviceMovers::Call call{.device = cache.device_number,
                                .work = work,
                                .slice = slice,
                                .stream = wanted.stream,
                                .deadline = MonotonicNow() + timeout};
  return space->movers.With(*space->space, call, [&](DeviceMover& mover) -> absl::Status {
    // Above zero, which would select the default.
    wanted.timeout = std::max(call.deadline - MonotonicNow(), absl::Milliseconds(1));
    WritePaged(move(mover, wanted), placed, request, bytes_of, target);
    return absl::OkStatus();
  });
}

absl::StatusOr<bool> IsCuda(std::string_view name, int32_t device) {
  if (device != CAIRN_DEVICE_HOST && device != CAIRN_DEVICE_CUDA) {
    return absl::InvalidArgumentError(
        absl::StrCat(ToAbsl(name), " is ", device, ", expected 0 or 1"));
  }
  return device == CAIRN_DEVICE_CUDA;
}

// Returns whether the cache is on a device. Checks the fields needed for that.
absl::StatusOr<bool> IsOnDevice(cairn_space* space, const cairn_paged_cache* cache,
                                cairn_paged_cache* known) {
  CAIRN_RETURN_IF_ERROR(CheckPointer("space", space));
  CAIRN_RETURN_IF_ERROR(CheckStruct("cache", cache));
  *known = ReadStruct(cache);
  return IsCuda("cache.device", known->device);
}

absl::Status CheckDevice(int32_t device, int32_t device_number) {
  CAIRN_ASSIGN_OR_RETURN(const bool is_cuda, IsCuda("device", device));
  return is_cuda ? DeviceMovers::Check(device_number) : absl::OkStatus();
}

// `run` gets or puts all requests at once.
template <typename Request, typename Run, typename BytesOf>
absl::Status MovePaged(cairn_space* space, const cairn_paged_cache* cache,
                       cairn_paged_request* request, ViewUse use, const Run& run,
                       const BytesOf& bytes_of) {
  CAIRN_ASSIGN_OR_RETURN(const PagedGiven given, ReadPaged(space, cache, request, use));
  CAIRN_RETURN_IF_ERROR(CheckPagedKeys(given));
  const auto keys = Keys(given.request.keys, given.request.key_count);
  std::vector<Request> requests(keys.size());
  for (size_t i = 0; i < keys.size(); ++i) {
    requests[i].key = keys[i];
    requests[i].slice = FromSlice(given.request.slice);
    Fill(given, i, &requests[i]);
  }
  WritePaged(run(requests, Timeout(given.request.timeout_ms)), given.slice, given.request, bytes_of,
             request);
  return absl::OkStatus();
}

absl::Status GetPaged(cairn_space* space, const cairn_paged_cache* cache,
                      cairn_paged_request* request) {
  const auto wire_bytes = [](const GetResult& got) { return got.wire_bytes; };
  cairn_paged_cache known;
  CAIRN_ASSIGN_OR_RETURN(const bool is_on_device, IsOnDevice(space, cache, &known));
  if (is_on_device) {
    return MoveOnDevice(
        space, known, request, Work::kGet,
        [](DeviceMover& mover, const DeviceRequest& wanted) { return mover.Get(wanted); },
        wire_bytes);
  }
  return MovePaged<GetRequest>(
      space, cache, request, ViewUse::kTarget,
      [space](const auto& gets, absl::Duration timeout) {
        return space->space->GetBatch(gets, timeout);
      },
      wire_bytes);
}

absl::Status PutPaged(cairn_space* space, const cairn_paged_cache* cache,
                      cairn_paged_request* request) {
  const auto image_bytes = [](const PutResult& put) { return put.image_bytes; };
  cairn_paged_cache known;
  CAIRN_ASSIGN_OR_RETURN(const bool is_on_device, IsOnDevice(space, cache, &known));
  if (is_on_device) {
    return MoveOnDevice(
        space, known, request, Work::kPut,
        [](DeviceMover& mover, const DeviceRequest& wanted) { return mover.Put(wanted); },
        image_bytes);
  }
  return MovePaged<PutRequest>(
      space, cache, request, ViewUse::kSource,
      [space](const auto& puts, absl::Duration timeout) {
        return space->space->PutBatch(puts, timeout);
      },
      image_bytes);
}

absl::Status GatherPaged(cairn_space* space, const cairn_paged_cache* cache,
                         const cairn_paged_request* request, void* target, uint64_t target_bytes) {
  CAIRN_RETURN_IF_ERROR(CheckPointer("target", target));
  cairn_paged_cache known;
  CAIRN_ASSIGN_OR_RETURN(const bool is_on_device, IsOnDevice(space, cache, &known));
  if (is_on_device) {
    return absl::InvalidArgumentError("cache.device: only host caches are supported");
  }
  CAIRN_ASSIGN_OR_RETURN(const PagedGiven given,
                         ReadPaged(space, cache, request, ViewUse::kSource));
  const uint64_t block_bytes = SourceBytesOf(given.slice);
  if (target_bytes != block_bytes * given.views.count()) {
    return absl::InvalidArgumentError(absl::StrCat("target has ", target_bytes, " bytes, expected ",
                                                   block_bytes * given.views.count()));
  }
  auto* bytes = static_cast<std::byte*>(target);
  for (size_t i = 0; i < given.views.count(); ++i, bytes += block_bytes) {
    Gather(given.slice.view_shape(), given.views.At(i), {bytes, block_bytes});
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace cairn::c

// Outside all namespaces: C functions.
int cairn_get_paged(cairn_space* space, const cairn_paged_cache* cache,
                    cairn_paged_request* request) {
  return cairn::c::Guard([&] { return cairn::c::GetPaged(space, cache, request); });
}

int cairn_put_paged(cairn_space* space, const cairn_paged_cache* cache,
                    cairn_paged_request* request) {
  return cairn::c::Guard([&] { return cairn::c::PutPaged(space, cache, request); });
}

int cairn_check_device(int32_t device, int32_t device_number) {
  return cairn::c::Guard([&] { return cairn::c::CheckDevice(device, device_number); });
}

int cairn_gather_paged(cairn_space* space, const cairn_paged_cache* cache,
                       const cairn_paged_request* request, void* target, uint64_t target_bytes) {
  return cairn::c::Guard(
      [&] { return cairn::c::GatherPaged(space, cache, request, target, target_bytes); });
}
