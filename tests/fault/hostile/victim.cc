// SPDX-License-Identifier: Apache-2.0
#include "tests/fault/hostile/victim.h"

#include <algorithm>
#include <atomic>
#include <numeric>
#include <span>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/mutex.h"
#include "client/cpp/client.h"
#include "client/cpp/space.h"
#include "tests/e2e/daemon/raw_client.h"
#include "tests/support/wait.h"

namespace cairn {
namespace {

constexpr uint64_t kBlocks = 16;
constexpr absl::Duration kMatchTimeout = absl::Milliseconds(500);
constexpr absl::Duration kDataTimeout = absl::Seconds(2);

proto::SpaceIdentity Identity(const ToyShape& shape) {
  proto::SpaceIdentity identity;
  identity.model = "victim";
  identity.weights_revision = "1";
  identity.dtype = codecs::DType::kBf16;
  identity.tokens_per_block = shape.tokens;
  proto::GroupGeometry group;
  group.layers.resize(shape.layers);
  std::iota(group.layers.begin(), group.layers.end(), 0U);
  group.kv_heads = shape.heads;
  group.k_dim = group.v_dim = shape.dim;
  identity.groups = {group};
  return identity;
}

}  // namespace

absl::Duration P99(std::vector<absl::Duration> times) {
  if (times.empty()) return absl::InfiniteDuration();
  std::sort(times.begin(), times.end());
  return times[(times.size() - 1) * 99 / 100];
}

struct Victim::Work {
  // Blocks are deleted and put again in turn, so that every call has work to do.
  void Run() {
    std::vector<std::byte> target(contents[0].size());
    for (uint64_t i = 0; !is_over.load(std::memory_order_relaxed); ++i) {
      const BlockKey key = keys[i % kBlocks];
      const std::vector<std::byte>& content = contents[i % kBlocks];
      if (i % 4 == 0) {
        (void)Account(kDataTimeout, [&] {
          return space->Delete({&key, 1}, kDataTimeout).status();
        });
      }
      (void)Account(kDataTimeout, [&] {
        return space->Put({.key = key, .source = SourceBytes{content}}, kDataTimeout).status();
      });
      LeaseToken lease{};
      const absl::Time asked = MonotonicNow();
      const absl::Status matched = Account(kMatchTimeout, [&] {
        auto match = space->Match({.keys = {&key, 1}, .timeout = kMatchTimeout});
        if (!match.ok()) return match.status();
        lease = match->lease;
        return match->is_breaker_open ? absl::ResourceExhaustedError("breaker") : absl::OkStatus();
      });
      const absl::Duration match_time = MonotonicNow() - asked;
      std::fill(target.begin(), target.end(), std::byte{});
      const absl::Time begin = MonotonicNow();
      const absl::Status got = Account(kDataTimeout, [&] {
        const GetRequest get{.key = key, .lease = lease, .target = SourceTarget{target}};
        return space->Get(get, kDataTimeout).status();
      });
      const absl::Duration took = MonotonicNow() - begin;
      if (lease != LeaseToken{}) {
        (void)Account(kDataTimeout, [&] { return client->Release({&lease, 1}, kDataTimeout); });
      }
      const MutexLock lock(mutex);
      if (matched.ok()) record.match_times.push_back(match_time);
      if (!got.ok()) continue;
      record.get_times.push_back(took);
      ++(target == content ? record.hits : record.wrong_blocks);
    }
  }

  template <typename Call>
  absl::Status Account(absl::Duration timeout, Call call) {
    const absl::Time begin = MonotonicNow();
    absl::Status status = call();
    const absl::Duration late = MonotonicNow() - begin - timeout;
    const MutexLock lock(mutex);
    ++record.calls;
    record.late_max = std::max(record.late_max, late);
    if (absl::IsNotFound(status)) {
      ++record.misses;
    } else if (absl::IsResourceExhausted(status)) {
      ++record.refusals;
    } else if (!status.ok()) {
      ++record.failures;
      record.last_failure = status;
    }
    return status;
  }

  std::unique_ptr<Client> client;
  std::unique_ptr<Space> space;
  std::vector<BlockKey> keys;
  std::vector<std::vector<std::byte>> contents;
  std::atomic<bool> is_over{false};
  Mutex mutex;
  VictimRecord record ABSL_GUARDED_BY(mutex);
  std::thread thread;
};

absl::StatusOr<std::unique_ptr<Victim>> Victim::Start(ConnectOptions options) {
  auto work = std::make_unique<Work>();
  options.tenant = "victim";
  auto client = Client::Connect(options);
  if (!client.ok()) return client.status();
  work->client = *std::move(client);
  const ToyShape shape;
  auto space = work->client->OpenSpace(Identity(shape), "exact");
  if (!space.ok()) return space.status();
  work->space = *std::move(space);
  for (uint64_t i = 0; i < kBlocks; ++i) {
    work->keys.push_back(ToyKey(i));
    work->contents.push_back(ToySource(i, shape.whole(), shape));
  }
  work->thread = std::thread([work = work.get()] { work->Run(); });
  return std::unique_ptr<Victim>(new Victim(std::move(work)));
}

Victim::Victim(std::unique_ptr<Work> work) : work_(std::move(work)) {}

Victim::~Victim() {
  work_->is_over.store(true, std::memory_order_relaxed);
  work_->thread.join();
}

VictimRecord Victim::TakeRecord() {
  const MutexLock lock(work_->mutex);
  return std::exchange(work_->record, VictimRecord());
}

bool Victim::AwaitHit(absl::Duration timeout) {
  const auto hits = [this] {
    const MutexLock lock(work_->mutex);
    return work_->record.hits;
  };
  const uint64_t before = hits();
  return WaitFor([&] { return hits() > before; }, timeout, absl::Milliseconds(5));
}

}  // namespace cairn
