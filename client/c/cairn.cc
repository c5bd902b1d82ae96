// SPDX-License-Identifier: Apache-2.0
// The C ABI: the library, clients, spaces and buffers. Puts and gets are in transfer.cc, keys and
// images in pure.cc.
#include "client/c/cairn.h"

#include <memory>
#include <string>
#include <utility>

#include "base/status.h"
#include "client/c/convert.h"
#include "client/c/guard.h"
#include "client/c/handles.h"

namespace cairn::c {
namespace {

std::string& LastError() {
  thread_local std::string text;
  return text;
}

}  // namespace

int Report(const absl::Status& status) {
  if (!status.ok()) {
    LastError() = std::string(status.message());
  }
  return static_cast<int>(status.code());
}

}  // namespace cairn::c

// Outside all namespaces: C functions.
namespace proto = cairn::proto;
using cairn::Buffer;
using cairn::Client;
using cairn::ClientCounters;
using cairn::Space;
using cairn::Stats;
using cairn::TierFigures;
using cairn::c::CheckPointer;
using cairn::c::CheckStruct;
using cairn::c::CopyText;
using cairn::c::FromOptions;
using cairn::c::FromSlice;
using cairn::c::FromSpec;
using cairn::c::Guard;
using cairn::c::LastError;
using cairn::c::ReadStruct;
using cairn::c::Text;
using cairn::c::Timeout;
using cairn::c::WriteStruct;

const char* cairn_version(void) { return CAIRN_VERSION_TEXT; }
int cairn_abi_version(void) { return CAIRN_ABI_VERSION; }
const char* cairn_last_error(void) { return LastError().c_str(); }

const char* cairn_status_name(int status) {
  static const char* const kNames[] = {"OK",
                                       "CANCELLED",
                                       "UNKNOWN",
                                       "INVALID_ARGUMENT",
                                       "DEADLINE_EXCEEDED",
                                       "NOT_FOUND",
                                       "ALREADY_EXISTS",
                                       "PERMISSION_DENIED",
                                       "RESOURCE_EXHAUSTED",
                                       "FAILED_PRECONDITION",
                                       "ABORTED",
                                       "OUT_OF_RANGE",
                                       "UNIMPLEMENTED",
                                       "INTERNAL",
                                       "UNAVAILABLE",
                                       "DATA_LOSS",
                                       "UNAUTHENTICATED"};
  return status >= 0 && status < static_cast<int>(std::size(kNames)) ? kNames[status] : "UNKNOWN";
}

int cairn_connect(const cairn_connect_options* options, cairn_client** client) {
  return Guard([&]() -> absl::Status {
    CAIRN_RETURN_IF_ERROR(CheckStruct("options", options));
    CAIRN_RETURN_IF_ERROR(CheckPointer("client", client));
    CAIRN_ASSIGN_OR_RETURN(auto connected, Client::Connect(FromOptions(ReadStruct(options))));
    *client = new cairn_client{std::move(connected)};
    return absl::OkStatus();
  });
}

void cairn_close(cairn_client* client) {
  Guard([&] {
    delete client;
    return absl::OkStatus();
  });
}

int cairn_open_space(cairn_client* client, const cairn_space_spec* spec, uint32_t timeout_ms,
                     cairn_space** space) {
  return Guard([&]() -> absl::Status {
    CAIRN_RETURN_IF_ERROR(CheckPointer("client", client));
    CAIRN_RETURN_IF_ERROR(CheckStruct("spec", spec));
    CAIRN_RETURN_IF_ERROR(CheckPointer("space", space));
    const cairn_space_spec known = ReadStruct(spec);
    CAIRN_ASSIGN_OR_RETURN(const proto::SpaceIdentity identity, FromSpec("", known));
    CAIRN_ASSIGN_OR_RETURN(auto opened, client->client->OpenSpace(identity, Text(known.recipe, ""),
                                                                  Timeout(timeout_ms)));
    *space = new cairn_space{std::move(opened)};
    return absl::OkStatus();
  });
}

int cairn_space_info_get(const cairn_space* space, cairn_space_info* info) {
  return Guard([&]() -> absl::Status {
    CAIRN_RETURN_IF_ERROR(CheckPointer("space", space));
    CAIRN_RETURN_IF_ERROR(CheckStruct("info", info));
    const Space& opened = *space->space;
    cairn_space_info value{};
    value.created = opened.was_created() ? 1 : 0;
    std::memcpy(value.fingerprint, opened.fingerprint().data(), sizeof(value.fingerprint));
    CopyText(opened.recipe(), value.recipe);
    value.tokens_per_block = opened.identity().tokens_per_block;
    value.group_count = static_cast<uint32_t>(opened.identity().groups.size());
    WriteStruct(value, info);
    return absl::OkStatus();
  });
}

int cairn_space_source_bytes(const cairn_space* space, const cairn_slice* slice, uint64_t* bytes) {
  return Guard([&]() -> absl::Status {
    CAIRN_RETURN_IF_ERROR(CheckPointer("space", space));
    CAIRN_RETURN_IF_ERROR(CheckPointer("slice", slice));
    CAIRN_RETURN_IF_ERROR(CheckPointer("bytes", bytes));
    CAIRN_ASSIGN_OR_RETURN(*bytes, space->space->SourceBytes(FromSlice(*slice)));
    return absl::OkStatus();
  });
}

int cairn_space_image_bytes_max(const cairn_space* space, const cairn_slice* slice,
                                uint64_t* bytes) {
  return Guard([&]() -> absl::Status {
    CAIRN_RETURN_IF_ERROR(CheckPointer("space", space));
    CAIRN_RETURN_IF_ERROR(CheckPointer("slice", slice));
    CAIRN_RETURN_IF_ERROR(CheckPointer("bytes", bytes));
    CAIRN_ASSIGN_OR_RETURN(*bytes, space->space->ImageBytesMax(FromSlice(*slice)));
    return absl::OkStatus();
  });
}

void cairn_space_close(cairn_space* space) { delete space; }

int cairn_stats_get(cairn_client* client, uint32_t timeout_ms, cairn_stats* stats) {
  return Guard([&]() -> absl::Status {
    CAIRN_RETURN_IF_ERROR(CheckPointer("client", client));
    CAIRN_RETURN_IF_ERROR(CheckStruct("stats", stats));
    CAIRN_ASSIGN_OR_RETURN(const Stats figures, client->client->GetStats(Timeout(timeout_ms)));
    cairn_stats value{};
    for (const TierFigures& tier : figures.tiers) {
      if (value.tier_count == std::size(value.tiers)) {
        break;
      }
      value.tiers[value.tier_count++] = {static_cast<int32_t>(tier.tier),
                                         0,
                                         tier.capacity_bytes,
                                         tier.used_bytes,
                                         tier.pinned_bytes,
                                         tier.staging_bytes,
                                         tier.quarantine_bytes};
    }
    value.block_count = figures.block_count;
    value.image_count = figures.image_count;
    value.image_bytes = figures.image_bytes;
    value.source_bytes = figures.source_bytes;
    value.session_count = figures.session_count;
    value.lease_count = figures.lease_count;
    value.uptime_ms = static_cast<uint64_t>(absl::ToInt64Milliseconds(figures.uptime));
    value.draining = figures.is_draining ? 1 : 0;
    CopyText(figures.daemon_version, value.daemon_version);
    WriteStruct(value, stats);
    return absl::OkStatus();
  });
}

int cairn_counters_get(const cairn_client* client, cairn_counters* counters) {
  return Guard([&]() -> absl::Status {
    CAIRN_RETURN_IF_ERROR(CheckPointer("client", client));
    CAIRN_RETURN_IF_ERROR(CheckStruct("counters", counters));
    const ClientCounters figures = client->client->counters();
    cairn_counters value{};
    value.breaker_state = static_cast<uint32_t>(figures.breaker_state);
    value.gets = figures.gets;
    value.hits = figures.hits;
    value.misses = figures.misses;
    value.corrupt = figures.corrupt;
    value.late = figures.late;
    value.puts = figures.puts;
    value.duplicates = figures.duplicates;
    value.get_bytes = figures.get_bytes;
    value.put_bytes = figures.put_bytes;
    value.reconnects = figures.reconnects;
    value.breaker_opened = figures.breaker_opened;
    WriteStruct(value, counters);
    return absl::OkStatus();
  });
}

int cairn_breaker_recomputed(cairn_client* client, uint64_t tokens, double seconds) {
  return Guard([&]() -> absl::Status {
    CAIRN_RETURN_IF_ERROR(CheckPointer("client", client));
    if (!(seconds > 0)) {
      return absl::InvalidArgumentError(
          absl::StrCat("seconds is ", seconds, "; expected more than 0"));
    }
    client->client->breaker().OnRecomputed(tokens, absl::Seconds(seconds));
    return absl::OkStatus();
  });
}

int cairn_breaker_advise(cairn_client* client, uint64_t tokens, uint64_t wire_bytes, int* fetch) {
  return cairn_breaker_advise_peer(client, tokens, wire_bytes, 0, fetch);
}

int cairn_breaker_advise_peer(cairn_client* client, uint64_t tokens, uint64_t wire_bytes,
                              uint64_t peer_bytes, int* fetch) {
  return Guard([&]() -> absl::Status {
    CAIRN_RETURN_IF_ERROR(CheckPointer("client", client));
    CAIRN_RETURN_IF_ERROR(CheckPointer("fetch", fetch));
    *fetch = client->client->breaker().Advise(tokens, {.local = wire_bytes, .peer = peer_bytes});
    return absl::OkStatus();
  });
}

int cairn_buffer_allocate(cairn_client* client, size_t bytes, uint32_t timeout_ms,
                          cairn_buffer** buffer) {
  return Guard([&]() -> absl::Status {
    CAIRN_RETURN_IF_ERROR(CheckPointer("client", client));
    CAIRN_RETURN_IF_ERROR(CheckPointer("buffer", buffer));
    CAIRN_ASSIGN_OR_RETURN(Buffer allocated,
                           client->client->AllocateBuffer(bytes, Timeout(timeout_ms)));
    *buffer = new cairn_buffer{std::move(allocated)};
    return absl::OkStatus();
  });
}

void* cairn_buffer_data(cairn_buffer* buffer) { return buffer->buffer.bytes().data(); }
size_t cairn_buffer_bytes(const cairn_buffer* buffer) { return buffer->buffer.bytes().size(); }
void cairn_buffer_free(cairn_buffer* buffer) { delete buffer; }
