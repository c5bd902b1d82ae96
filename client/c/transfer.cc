// SPDX-License-Identifier: Apache-2.0
// The C ABI: match, put, get, and the other calls of a space.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "base/status.h"
#include "client/c/cairn.h"
#include "client/c/convert.h"
#include "client/c/guard.h"
#include "client/c/handles.h"
#include "proto/convert.h"

namespace cairn::c {
namespace {

absl::Status CheckKeys(const cairn_space* space, const cairn_key* keys, size_t key_count) {
  CAIRN_RETURN_IF_ERROR(CheckPointer("space", space));
  return CheckPointer("keys", keys, key_count);
}

// The options of a match or a prefetch, checked.
template <typename Options>
struct Wanted {
  Options options{};
  std::vector<GroupSlice> slices;
  std::span<const uint32_t> groups_skipped;
};

template <typename Options, typename Result>
absl::StatusOr<Wanted<Options>> ReadWanted(const cairn_space* space, const cairn_key* keys,
                                           size_t key_count, const Options* options,
                                           const Result* result) {
  CAIRN_RETURN_IF_ERROR(CheckKeys(space, keys, key_count));
  CAIRN_RETURN_IF_ERROR(CheckStruct("result", result));
  Wanted<Options> wanted;
  if (options != nullptr) {
    CAIRN_RETURN_IF_ERROR(CheckStruct("options", options));
    wanted.options = ReadStruct(options);
  }
  const Options& known = wanted.options;
  CAIRN_RETURN_IF_ERROR(CheckPointer("options.slices", known.slices, known.slice_count));
  CAIRN_RETURN_IF_ERROR(
      CheckPointer("options.groups_skipped", known.groups_skipped, known.groups_skipped_count));
  for (uint32_t i = 0; i < known.slice_count; ++i) {
    wanted.slices.push_back(FromSlice(known.slices[i]));
  }
  wanted.groups_skipped = {known.groups_skipped, known.groups_skipped_count};
  return wanted;
}

// The valid requests, with their indices in the caller's array.
template <typename Request>
struct Read {
  std::vector<Request> requests;
  std::vector<size_t> places;
};

template <typename Request, typename T, typename Convert>
Read<Request> ReadAll(const Space& space, T* first, size_t count, const Convert& convert) {
  Read<Request> read;
  for (size_t i = 0; i < count; ++i) {
    const T known = ReadStruct(static_cast<const T*>(At(first, i)));
    absl::StatusOr<Request> request = [&]() -> absl::StatusOr<Request> {
      CAIRN_ASSIGN_OR_RETURN(const PlacedSlice slice, space.Place(FromSlice(known.slice)));
      return convert(known, slice);
    }();
    At(first, i)->status = Report(request.status());
    if (request.ok()) {
      read.requests.push_back(*std::move(request));
      read.places.push_back(i);
    }
  }
  return read;
}

void Write(const absl::StatusOr<PutResult>& result, cairn_put_request* put) {
  cairn_put_request value = ReadStruct(static_cast<const cairn_put_request*>(put));
  value.status = Report(result.status());
  const PutResult stored =
      result.ok() ? *result : NotDurableOf(result.status()).value_or(PutResult());
  value.duplicate = stored.is_duplicate ? 1 : 0;
  value.image_bytes = stored.image_bytes;
  value.durability = static_cast<int32_t>(stored.durability);
  WriteStruct(value, put);
}

void Write(const absl::StatusOr<GetResult>& result, cairn_get_request* get) {
  cairn_get_request value = ReadStruct(static_cast<const cairn_get_request*>(get));
  value.status = Report(result.status());
  value.tier = result.ok() ? static_cast<int32_t>(result->tier) : CAIRN_TIER_NONE;
  value.bytes = result.ok() ? result->bytes : 0;
  value.wire_bytes = result.ok() ? result->wire_bytes : 0;
  value.first_position = result.ok() ? result->first_position : 0;
  WriteStruct(value, get);
}

absl::Status PutAll(cairn_space* space, cairn_put_request* puts, size_t count,
                    uint32_t timeout_ms) {
  CAIRN_RETURN_IF_ERROR(CheckPointer("space", space));
  CAIRN_RETURN_IF_ERROR(CheckArray("puts", puts, count));
  const auto read = ReadAll<PutRequest>(*space->space, puts, count, FromPut);
  const auto results = space->space->PutBatch(read.requests, Timeout(timeout_ms));
  for (size_t i = 0; i < results.size(); ++i) {
    Write(results[i], At(puts, read.places[i]));
  }
  return absl::OkStatus();
}

absl::Status GetAll(cairn_space* space, cairn_get_request* gets, size_t count,
                    uint32_t timeout_ms) {
  CAIRN_RETURN_IF_ERROR(CheckPointer("space", space));
  CAIRN_RETURN_IF_ERROR(CheckArray("gets", gets, count));
  const auto read = ReadAll<GetRequest>(*space->space, gets, count, FromGet);
  const auto results = space->space->GetBatch(read.requests, Timeout(timeout_ms));
  for (size_t i = 0; i < results.size(); ++i) {
    Write(results[i], At(gets, read.places[i]));
  }
  return absl::OkStatus();
}

absl::StatusOr<SideObjectKind> FromSideObjectKind(int32_t kind) {
  return proto::FromSideObjectKind(static_cast<v1::SideObjectKind>(kind));
}

}  // namespace
}  // namespace cairn::c

// Outside all namespaces: C functions.
using cairn::Digest;
using cairn::InstalledSideObject;
using cairn::LeaseToken;
using cairn::MatchResult;
using cairn::PrefetchResult;
using cairn::SideObjectFigures;
using cairn::SideObjectHandle;
using cairn::SideObjectKind;
using cairn::c::Bytes;
using cairn::c::CheckKeys;
using cairn::c::CheckPointer;
using cairn::c::FromSideObjectKind;
using cairn::c::GetAll;
using cairn::c::Guard;
using cairn::c::Keys;
using cairn::c::PutAll;
using cairn::c::ReadWanted;
using cairn::c::Timeout;
using cairn::c::WriteStruct;

int cairn_match(cairn_space* space, const cairn_key* keys, size_t key_count,
                const cairn_match_options* options, cairn_match_result* result,
                cairn_matched_block* blocks) {
  return Guard([&]() -> absl::Status {
    CAIRN_ASSIGN_OR_RETURN(const auto wanted, ReadWanted(space, keys, key_count, options, result));
    CAIRN_ASSIGN_OR_RETURN(const MatchResult match,
                           space->space->Match({.keys = Keys(keys, key_count),
                                                .slices = wanted.slices,
                                                .groups_skipped = wanted.groups_skipped,
                                                .token_limit = wanted.options.token_limit,
                                                .wait = absl::Milliseconds(wanted.options.wait_ms),
                                                .is_counting = wanted.options.no_lease != 0,
                                                .timeout = Timeout(wanted.options.timeout_ms)}));
    cairn_match_result value{};
    value.block_count = match.block_count;
    value.token_count = match.token_count;
    value.lease = Bytes<cairn_lease>(match.lease);
    value.lease_ms = static_cast<uint32_t>(absl::ToInt64Milliseconds(match.lease_time));
    value.shortened_by_pins = match.is_shortened_by_pins ? 1 : 0;
    value.breaker_open = match.is_breaker_open ? 1 : 0;
    WriteStruct(value, result);
    for (uint32_t i = 0; blocks != nullptr && i < match.block_count; ++i) {
      blocks[i] = {static_cast<int32_t>(match.blocks[i].tier), 0, match.blocks[i].image_bytes};
    }
    return absl::OkStatus();
  });
}

int cairn_prefetch(cairn_space* space, const cairn_key* keys, size_t key_count,
                   const cairn_prefetch_options* options, cairn_prefetch_result* result) {
  return Guard([&]() -> absl::Status {
    CAIRN_ASSIGN_OR_RETURN(const auto wanted, ReadWanted(space, keys, key_count, options, result));
    CAIRN_ASSIGN_OR_RETURN(const PrefetchResult prefetch,
                           space->space->Prefetch({.keys = Keys(keys, key_count),
                                                   .slices = wanted.slices,
                                                   .groups_skipped = wanted.groups_skipped,
                                                   .timeout = Timeout(wanted.options.timeout_ms)}));
    cairn_prefetch_result value{};
    value.in_memory_count = prefetch.in_memory_count;
    value.on_their_way_count = prefetch.on_their_way_count;
    value.absent_count = prefetch.absent_count;
    value.refused_count = prefetch.refused_count;
    WriteStruct(value, result);
    return absl::OkStatus();
  });
}

int cairn_release(cairn_client* client, const cairn_lease* leases, size_t lease_count,
                  uint32_t timeout_ms) {
  return Guard([&]() -> absl::Status {
    CAIRN_RETURN_IF_ERROR(CheckPointer("client", client));
    CAIRN_RETURN_IF_ERROR(CheckPointer("leases", leases, lease_count));
    std::vector<LeaseToken> tokens;
    for (size_t i = 0; i < lease_count; ++i) {
      tokens.push_back(Bytes<LeaseToken>(leases[i]));
    }
    return client->client->Release(tokens, Timeout(timeout_ms));
  });
}

int cairn_put_batch(cairn_space* space, cairn_put_request* puts, size_t put_count,
                    uint32_t timeout_ms) {
  return Guard([&] { return PutAll(space, puts, put_count, timeout_ms); });
}

int cairn_put(cairn_space* space, cairn_put_request* put, uint32_t timeout_ms) {
  const int code = cairn_put_batch(space, put, 1, timeout_ms);
  return code == CAIRN_OK ? put->status : code;
}

int cairn_get_batch(cairn_space* space, cairn_get_request* gets, size_t get_count,
                    uint32_t timeout_ms) {
  return Guard([&] { return GetAll(space, gets, get_count, timeout_ms); });
}

int cairn_get(cairn_space* space, cairn_get_request* get, uint32_t timeout_ms) {
  const int code = cairn_get_batch(space, get, 1, timeout_ms);
  return code == CAIRN_OK ? get->status : code;
}

int cairn_side_object_put(cairn_space* space, uint32_t group, int32_t kind, const void* data,
                          size_t data_bytes, uint32_t timeout_ms, uint8_t id[32]) {
  return Guard([&]() -> absl::Status {
    CAIRN_RETURN_IF_ERROR(CheckPointer("space", space));
    CAIRN_RETURN_IF_ERROR(CheckPointer("data", data, data_bytes));
    CAIRN_ASSIGN_OR_RETURN(const SideObjectKind known, FromSideObjectKind(kind));
    CAIRN_ASSIGN_OR_RETURN(
        const InstalledSideObject installed,
        space->space->PutSideObject(group, known, {static_cast<const std::byte*>(data), data_bytes},
                                    Timeout(timeout_ms)));
    if (id != nullptr) {
      std::copy(installed.id.begin(), installed.id.end(), id);
    }
    return absl::OkStatus();
  });
}

int cairn_side_object_get(cairn_space* space, const uint8_t id[32], uint32_t timeout_ms,
                          void* target, size_t capacity, size_t* bytes) {
  return Guard([&]() -> absl::Status {
    CAIRN_RETURN_IF_ERROR(CheckPointer("space", space));
    CAIRN_RETURN_IF_ERROR(CheckPointer("id", id));
    CAIRN_RETURN_IF_ERROR(CheckPointer("bytes", bytes));
    Digest wanted;
    std::copy_n(id, wanted.size(), wanted.begin());
    CAIRN_ASSIGN_OR_RETURN(const SideObjectHandle held,
                           space->space->GetSideObject(wanted, Timeout(timeout_ms)));
    *bytes = held->bytes().size();
    if (target == nullptr) {
      return absl::OkStatus();
    }
    if (capacity < *bytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("capacity is ", capacity, "; the side object has ", *bytes, " bytes"));
    }
    std::memcpy(target, held->bytes().data(), *bytes);
    return absl::OkStatus();
  });
}

int cairn_side_object_current(cairn_space* space, uint32_t group, int32_t kind, uint32_t timeout_ms,
                              uint8_t id[32]) {
  return Guard([&]() -> absl::Status {
    CAIRN_RETURN_IF_ERROR(CheckPointer("space", space));
    CAIRN_RETURN_IF_ERROR(CheckPointer("id", id));
    CAIRN_ASSIGN_OR_RETURN(const SideObjectKind known, FromSideObjectKind(kind));
    CAIRN_ASSIGN_OR_RETURN(const std::vector<SideObjectFigures> listed,
                           space->space->ListSideObjects(Timeout(timeout_ms)));
    for (const SideObjectFigures& one : listed) {
      const auto& groups = one.current_groups;
      if (one.kind == known && std::find(groups.begin(), groups.end(), group) != groups.end()) {
        std::copy(one.id.begin(), one.id.end(), id);
        return absl::OkStatus();
      }
    }
    return absl::NotFoundError(absl::StrCat("group ", group, " has no side object of that kind"));
  });
}

int cairn_contains(cairn_space* space, const cairn_key* keys, size_t key_count, uint32_t timeout_ms,
                   uint8_t* present) {
  return Guard([&]() -> absl::Status {
    CAIRN_RETURN_IF_ERROR(CheckKeys(space, keys, key_count));
    CAIRN_RETURN_IF_ERROR(CheckPointer("present", present, key_count));
    CAIRN_ASSIGN_OR_RETURN(const std::vector<bool> found,
                           space->space->Contains(Keys(keys, key_count), Timeout(timeout_ms)));
    std::copy(found.begin(), found.end(), present);
    return absl::OkStatus();
  });
}

int cairn_delete(cairn_space* space, const cairn_key* keys, size_t key_count, uint32_t timeout_ms,
                 uint64_t* deleted_count) {
  return Guard([&]() -> absl::Status {
    CAIRN_RETURN_IF_ERROR(CheckKeys(space, keys, key_count));
    CAIRN_ASSIGN_OR_RETURN(const uint64_t deleted,
                           space->space->Delete(Keys(keys, key_count), Timeout(timeout_ms)));
    if (deleted_count != nullptr) {
      *deleted_count = deleted;
    }
    return absl::OkStatus();
  });
}

int cairn_invalidate(cairn_space* space, uint32_t timeout_ms, uint64_t* deleted_count) {
  return Guard([&]() -> absl::Status {
    CAIRN_RETURN_IF_ERROR(CheckPointer("space", space));
    CAIRN_ASSIGN_OR_RETURN(const uint64_t deleted, space->space->Invalidate(Timeout(timeout_ms)));
    if (deleted_count != nullptr) {
      *deleted_count = deleted;
    }
    return absl::OkStatus();
  });
}
