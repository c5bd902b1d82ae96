// SPDX-License-Identifier: Apache-2.0
#pragma once
// The store without its servers: every component below the lanes, with a small arena and a clock
// that tests move. Puts and gets run as on a lane.
//
// Thread-safety: Thread-compatible. The components are as they are.

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/status.h"
#include "base/units.h"
#include "codecs/backend/backends.h"
#include "codecs/checksum/checksum.h"
#include "codecs/image/encode.h"
#include "codecs/image/image.h"
#include "service/get/get.h"
#include "service/index/block_index.h"
#include "service/limits.h"
#include "service/path_pool.h"
#include "service/put/put.h"
#include "service/sessions.h"
#include "service/spaces.h"
#include "service/tier/tiers.h"
#include "service/upkeep/upkeep.h"
#include "tests/support/fake_clock.h"

namespace cairn {

// Halves of the heads, in a space of StoreFixture::Identity().
inline constexpr codecs::Slice kLeft = {0, 2, 0, 2}, kRight = {0, 2, 2, 2};

class StoreFixture {
 public:
  explicit StoreFixture(uint64_t host_bytes = 16_MiB, uint64_t blocks_max = 4096,
                        uint64_t staging_bytes = 32_MiB,
                        std::vector<std::unique_ptr<CopyTier>> others = {},
                        size_t announcements_max = 0)
      : side_objects(
            {.bytes_max = limits::kSideObjectsBytesMax, .count_max = limits::kSideObjectsMax}),
        query_squares(limits::kQuerySquaresBytesMax),
        spaces(codecs::AllRecipes().front(),
               {.side_objects = side_objects,
                .query_squares = query_squares,
                .clock = clock,
                .has_blocks = [this](uint64_t id) { return index->figures(id).block_count > 0; },
                .made = [this](uint64_t id,
                               std::string_view tenant) { index->events().AddSpace(id, tenant); },
                .gone = [this](uint64_t id) { index->events().RemoveSpace(id); }}),
        sessions({.release_leases = [this](uint64_t id) { index->EndSession(id); },
                  .break_peer = [this](const PeerRef& peer) { broken.push_back(peer); }},
                 /*peers_max=*/512) {
    auto made = HostTier::Make(
        {.capacity_bytes = host_bytes, .staging_bytes = staging_bytes, .fault_in = false});
    CAIRN_CHECK_OK(made);
    host = made->get();
    tiers = std::make_unique<Tiers>(*std::move(made), std::move(others));
    index = std::make_unique<BlockIndex>(
        BlockIndex::Options{.blocks_max = blocks_max,
                            .images_max = limits::ImagesMax(blocks_max),
                            .lease_bytes_max = host_bytes / 2,
                            .announcements_max = announcements_max},
        *tiers, clock);
    index->SetSessionCheck([this](uint64_t id) { return sessions.IsOpen(id); });
    pool = std::make_unique<PathPool>(2);
    puts = std::make_unique<Puts>(spaces, sessions, *index, *tiers, *pool, clock);
    gets = std::make_unique<Gets>(spaces, *index, *tiers, *pool, clock);
    upkeep = std::make_unique<Upkeep>(spaces, *index, *tiers, clock);
    puts->SetAwaitDurable(upkeep->await_durable());
    gets->SetNoteRead(upkeep->note_read());
    session = OpenSession("acme");
  }

  ~StoreFixture() {
    gets->Stop();
    pool->Stop();
  }

  Session OpenSession(std::string_view tenant) {
    const auto opened = sessions.Open(tenant, "test");
    CAIRN_CHECK_OK(opened);
    return *sessions.Find(opened->ticket);
  }

  // Two layers with four heads, and K and V of 32 bf16 values. A token has 1 KiB.
  static proto::SpaceIdentity Identity(std::string_view tenant = "acme") {
    proto::SpaceIdentity identity;
    identity.tenant = std::string(tenant);
    identity.model = "model";
    identity.weights_revision = "1";
    identity.dtype = codecs::DType::kBf16;
    identity.tokens_per_block = 16;
    proto::GroupGeometry group;
    group.layers = {0, 1};
    group.kv_heads = 4;
    group.k_dim = 32;
    group.v_dim = 32;
    identity.groups = {group};
    return identity;
  }
  // The fixture keeps a reference to the space.
  SpaceEntry& OpenSpace(std::string_view recipe = "raw",
                        const proto::SpaceIdentity& identity = Identity()) {
    auto opened = spaces.Open(identity, recipe, identity.tenant);
    CAIRN_CHECK_OK(opened);
    return *kept.emplace_back(std::move(opened->space));
  }
  absl::Status SetRecipe(SpaceEntry& space, std::string_view name) {
    CAIRN_ASSIGN_OR_RETURN(const codecs::Recipe recipe, spaces.RecipeOf(name));
    return space.coding().SetPolicy({.recipe = recipe});
  }

  static proto::BlockKey Key(uint64_t number) {
    proto::BlockKey key{};
    std::memcpy(key.data(), &number, sizeof(number));
    key[31] = std::byte{1};
    return key;
  }
  static codecs::Slice Whole(const SpaceEntry& space, uint16_t group = 0) {
    return codecs::WholeOf(space.groups()[group]);
  }

  // Returns finite bf16 values that depend only on the key, the group and the tile. So slices of
  // one block fit together. The values are runs of one random sequence: a store is filled in less
  // time than one number a value would take without optimization.
  static std::vector<std::byte> Source(const SpaceEntry& space, const proto::BlockKey& key,
                                       uint16_t group, const codecs::Slice& slice) {
    const std::vector<std::byte>& sequence = RandomValues();
    const codecs::TileShape& tile = space.groups()[group].tile;
    std::vector<std::byte> source;
    for (uint32_t l = 0; l < slice.layer_count; ++l) {
      for (uint32_t h = 0; h < slice.head_count; ++h) {
        for (uint32_t p = 0; p < codecs::PlaneCount(tile.kind); ++p) {
          uint64_t seed = 0;
          std::memcpy(&seed, key.data(), sizeof(seed));
          seed = seed * 1'000'003 + group * 65'537 + (slice.layer_first + l) * 257 +
                 (slice.head_first + h) * 17 + p;
          uint64_t left =
              codecs::TileBytes(tile, codecs::PlaneAt(tile.kind, p), space.tokens_per_block());
          uint64_t at = (seed * 0x9e3779b97f4a7c15 % sequence.size()) & ~uint64_t{1};
          while (left > 0) {
            const uint64_t bytes = std::min(left, sequence.size() - at);
            source.insert(source.end(), sequence.begin() + at, sequence.begin() + at + bytes);
            left -= bytes;
            at = 0;
          }
        }
      }
    }
    return source;
  }
  // bf16 values whose sign and mantissa are random, and whose magnitude is about one.
  static const std::vector<std::byte>& RandomValues() {
    static const std::vector<std::byte> values = [] {
      std::mt19937 random(1);
      std::vector<std::byte> bytes(256 * 1024);
      for (size_t i = 0; i < bytes.size(); i += 2) {
        const uint32_t word = random();
        bytes[i] = static_cast<std::byte>(word & 0xFF);
        bytes[i + 1] = static_cast<std::byte>(0x3F | ((word >> 8) & 0x80));
      }
      return bytes;
    }();
    return values;
  }

  static proto::Frame PutFrame(const SpaceEntry& space, const proto::BlockKey& key,
                               const codecs::Slice& slice, std::span<const std::byte> payload,
                               proto::Form form = proto::Form::kSource, uint16_t group = 0) {
    proto::Put body;
    body.space_id = space.id();
    body.key = key;
    body.group = group;
    body.slice = {slice.layer_first, slice.layer_count, slice.head_first, slice.head_count};
    body.tokens = static_cast<uint16_t>(space.tokens_per_block());
    body.form = form;
    proto::Frame frame;
    frame.payload_bytes = payload.size();
    frame.payload_crc32c = codecs::Crc32c(payload);
    frame.body = body;
    return frame;
  }

  static std::vector<std::byte> Image(const SpaceEntry& space, const proto::BlockKey& key,
                                      const codecs::Slice& slice, std::string_view recipe,
                                      uint16_t group = 0) {
    codecs::ImageSpec spec;
    std::memcpy(spec.space.data(), space.fingerprint().data(), spec.space.size());
    std::memcpy(spec.key.data(), key.data(), spec.key.size());
    spec.group = group;
    spec.tile = space.groups()[group].tile;
    spec.slice = slice;
    spec.tokens = static_cast<uint16_t>(space.tokens_per_block());
    CAIRN_CHECK(codecs::ParseRecipe(recipe, &spec.recipe) == codecs::Error::kOk);
    uint64_t bytes_max = 0;
    CAIRN_CHECK(codecs::MaxImageBytes(spec, &bytes_max) == codecs::Error::kOk);
    std::vector<std::byte> image(bytes_max);
    size_t bytes = 0;
    const codecs::Backend* backend = nullptr;
    CAIRN_CHECK(codecs::ActiveBackend(&backend) == codecs::Error::kOk);
    CAIRN_CHECK(codecs::Encode(*backend, spec, Source(space, key, group, slice), image, &bytes) ==
                codecs::Error::kOk);
    image.resize(bytes);
    return image;
  }

  static Request RequestOf(const Session& by, absl::Time deadline = absl::InfiniteFuture()) {
    Request request;
    request.session = by;
    request.deadline = deadline;
    return request;
  }
  // Runs a put from its frame to its reply. `keeps_raw`: as if the path pool were busy.
  absl::StatusOr<proto::PutReply> RunPut(const proto::Frame& frame,
                                         std::span<const std::byte> payload, const Session& by,
                                         bool keeps_raw = false) {
    absl::StatusOr<proto::PutReply> result = absl::Status(absl::StatusCode::kUnknown, "");
    PutOwner op = puts->MakeOp(RequestOf(by), frame,
                               [&result](const Request&, absl::StatusOr<proto::PutReply> reply) {
                                 result = std::move(reply);
                               });
    if (absl::Status admitted = puts->Admit(*op); !admitted.ok() || op->is_duplicate) {
      puts->Reply(std::move(op), std::move(admitted));
    } else {
      op->keeps_raw = keeps_raw;
      FinishPut(std::move(op), payload);
    }
    return result;
  }
  // Returns an admitted put, or the reason of its refusal.
  absl::StatusOr<PutOwner> AdmitPut(const proto::Frame& frame) { return AdmitPut(frame, session); }
  absl::StatusOr<PutOwner> AdmitPut(const proto::Frame& frame, const Session& by,
                                    absl::Time deadline = absl::InfiniteFuture()) {
    PutOwner op = puts->MakeOp(RequestOf(by, deadline), frame,
                               [](const Request&, const absl::StatusOr<proto::PutReply>&) {});
    CAIRN_RETURN_IF_ERROR(puts->Admit(*op));
    return op;
  }
  // Runs the rest of an admitted put, after `payload` has arrived.
  void FinishPut(PutOwner op, std::span<const std::byte> payload) {
    CAIRN_CHECK(op->target().size() == payload.size());
    std::copy(payload.begin(), payload.end(), op->target().begin());
    op->received_crc32c = codecs::Crc32c(payload);
    puts->FinishPut(std::move(op));
  }
  absl::StatusOr<proto::PutReply> Land(PutOwner op, std::span<const std::byte> payload) {
    absl::StatusOr<proto::PutReply> result = absl::Status(absl::StatusCode::kUnknown, "");
    op->done = [&result](const Request&, absl::StatusOr<proto::PutReply> reply) {
      result = std::move(reply);
    };
    FinishPut(std::move(op), payload);
    return result;
  }
  absl::StatusOr<proto::PutReply> PutSource(const SpaceEntry& space, const proto::BlockKey& key,
                                            const codecs::Slice& slice,
                                            const proto::BlockKey& parent = {},
                                            uint64_t first_position = 0, uint16_t group = 0) {
    const std::vector<std::byte> source = Source(space, key, group, slice);
    proto::Frame frame = PutFrame(space, key, slice, source, proto::Form::kSource, group);
    auto& body = std::get<proto::Put>(frame.body);
    body.parent = parent;
    body.first_position = first_position;
    return RunPut(frame, source, session);
  }
  // Puts a chain of whole blocks with the keys 1, 2, …
  std::vector<proto::BlockKey> PutChain(const SpaceEntry& space, uint64_t count,
                                        uint64_t first = 1) {
    std::vector<proto::BlockKey> keys;
    for (uint64_t i = 0; i < count; ++i) {
      keys.push_back(Key(first + i));
      const auto reply =
          PutSource(space, keys.back(), Whole(space), i == 0 ? proto::BlockKey{} : keys[i - 1],
                    i * space.tokens_per_block());
      CAIRN_CHECK_OK(reply);
    }
    return keys;
  }

  // Publishes an image of one page as block `number`, which follows block `parent`, if any. The
  // space is not registered.
  void PublishPage(uint64_t number, uint64_t parent = 0, uint64_t position = 0) {
    NewImage image;
    image.claim.name = {7, Key(number)};
    image.claim.parent = parent == 0 ? proto::BlockKey{} : Key(parent);
    image.claim.first_position = position;
    image.claim.tokens = 16;
    image.claim.slice = {0, 1, 0, 1};
    image.copy.extent = *host->Allocate(4_KiB);
    CAIRN_CHECK_OK(index->Publish(std::move(image)));
  }

  absl::StatusOr<Answer> RunGet(const SpaceEntry& space, const proto::BlockKey& key,
                                const codecs::Slice& slice, proto::Form form = proto::Form::kSource,
                                uint16_t group = 0) {
    proto::Get body;
    body.space_id = space.id();
    body.key = key;
    body.group = group;
    body.slice = {slice.layer_first, slice.layer_count, slice.head_first, slice.head_count};
    body.form = form;
    return RunGet(body, session);
  }
  absl::StatusOr<Answer> RunGet(const proto::Get& body, const Session& by,
                                uint64_t target_bytes = limits::kTransferBytesMax) {
    absl::StatusOr<Answer> result = absl::Status(absl::StatusCode::kUnknown, "");
    RunGet(*gets, body, RequestOf(by), target_bytes,
           [&result](absl::StatusOr<Answer> answer) { result = std::move(answer); });
    return result;
  }
  // Runs a get. Another thread may answer it later.
  template <typename Done>
  static void RunGet(Gets& gets, const proto::Get& body, Request request, uint64_t target_bytes,
                     Done done) {
    GetOwner op = gets.MakeOp(
        std::move(request), body,
        [done = std::move(done)](const Request&, absl::StatusOr<Answer> answer) mutable {
          done(std::move(answer));
        });
    op->target_bytes = target_bytes;
    gets.RunGet(std::move(op));
  }

  // Evicts everything that may be evicted from memory.
  void EvictHost() {
    while (index->EvictOldest(TierId::kHost, EvictionReason::kCapacity) > 0) {
    }
  }

  MatchQuery Query(const SpaceEntry& space, std::vector<proto::BlockKey> keys,
                   bool wants_lease = false, uint32_t token_limit = 0) const {
    return {.space_id = space.id(),
            .tokens_per_block = space.tokens_per_block(),
            .keys = std::move(keys),
            .wanted = {space.whole().begin(), space.whole().end()},
            .token_limit = token_limit,
            .wants_lease = wants_lease,
            .session_id = session.id,
            .tenant = std::string(session.tenant.view())};
  }

  FakeClock clock;
  std::vector<PeerRef> broken;
  std::unique_ptr<Tiers> tiers;
  HostTier* host = nullptr;  // borrowed from the tiers
  SideObjects side_objects;
  QuerySquares query_squares;
  Spaces spaces;
  std::vector<SpaceRef> kept;
  Sessions sessions;
  std::unique_ptr<BlockIndex> index;
  std::unique_ptr<PathPool> pool;
  std::unique_ptr<Puts> puts;
  std::unique_ptr<Gets> gets;
  std::unique_ptr<Upkeep> upkeep;
  Session session;
};

}  // namespace cairn
