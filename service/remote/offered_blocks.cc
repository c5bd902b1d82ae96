// SPDX-License-Identifier: Apache-2.0
#include "service/remote/offered_blocks.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/random_bytes.h"
#include "base/status.h"
#include "proto/convert.h"
#include "service/peer/offers.h"

namespace cairn {
namespace {

constexpr absl::Duration kAnswerTime = absl::Milliseconds(250);  // of an offer, for its answer
constexpr absl::Duration kLook = absl::Milliseconds(50);         // for Stop()
constexpr absl::Duration kMatchTime = absl::Seconds(1);
constexpr int kLeasesMax = 4;  // for the blocks of one offer

uint64_t SumOf(std::span<const uint64_t> bytes) {
  uint64_t sum = 0;
  for (const uint64_t one : bytes) sum += one;
  return sum;
}

// Groups with several images are asked for whole.
PeerQuestion QuestionOf(const BlockOffer& offer, size_t group_count) {
  PeerQuestion question;
  question.identity = offer.identity;
  question.recipe = offer.recipe;
  question.wants_lease = true;
  for (uint32_t group = 0; group < group_count; ++group) {
    std::vector<GroupSlice> slices;
    std::ranges::copy_if(offer.slices, std::back_inserter(slices),
                         [group](const GroupSlice& slice) { return slice.group == group; });
    if (slices.empty()) question.groups_skipped.push_back(group);
    if (slices.size() == 1) question.slices.push_back(slices.front());
  }
  return question;
}

}  // namespace

bool OfferedRoom::Take(uint64_t bytes, uint64_t used_bytes, uint64_t capacity_bytes,
                       absl::Time now) {
  if (now - since_ >= absl::Seconds(limits::kOfferedUsedSeconds)) {
    since_ = now;
    evicted_ = 0;
  }
  // Above the high watermark, the tier evicts by itself.
  const uint64_t full = capacity_bytes / 100 * limits::kHighWatermarkPercent;
  if (used_bytes + coming_ + bytes > full) {
    if (evicted_ + bytes > capacity_bytes / 100 * limits::kOfferedPercentMax) return false;
    evicted_ += bytes;
  }
  coming_ += bytes;
  return true;
}

struct OfferedBlocks::Taking {
  const Member& from;
  const BlockOffer& offer;
  const absl::Time deadline;
  SpaceRef space;
  Session session;
  std::vector<WantedGroup> images;
  std::vector<OfferAnswer> answers;
};

struct OfferedBlocks::Round {
  Mutex mutex;
  CondVar ended;
  size_t open ABSL_GUARDED_BY(mutex) = 0;

  void Begin() {
    const MutexLock lock(mutex);
    ++open;
  }
  void End() {
    const MutexLock lock(mutex);
    --open;
    ended.NotifyAll();
  }
};

OfferedBlocks::OfferedBlocks(const Parts& parts)
    : parts_(parts), workers_("peer-offer", 1, limits::kOffersWaitingMax) {}

void OfferedBlocks::Stop() {
  is_stopping_.store(true, std::memory_order_relaxed);
  workers_.Stop();
}

void OfferedBlocks::Take(const Member& from, const PeerIdentity& identity, BlockOffer offer,
                         absl::Time deadline, Done done) {
  if (parts_.sessions.is_refusing()) {
    return done(absl::UnavailableError("this daemon drains, too"));
  }
  const auto shared = std::make_shared<BlockOffer>(std::move(offer));
  const auto answer = std::make_shared<Done>(std::move(done));
  if (!workers_.Submit([this, from, identity, shared, deadline, answer] {
        (*answer)(Run(from, identity, *shared, deadline - kAnswerTime));
      })) {
    (*answer)(absl::ResourceExhaustedError("too many offers"));
  }
}

OfferedBlocks::Answers OfferedBlocks::Run(const Member& from, const PeerIdentity& identity,
                                          const BlockOffer& offer, absl::Time deadline) {
  if (is_stopping_.load(std::memory_order_relaxed)) return absl::UnavailableError("stopping");
  if (MonotonicNow() >= deadline) return absl::DeadlineExceededError("the offer waited too long");
  // The copies are stored for the member that offers them, which may use the tenant.
  const std::string& tenant = offer.identity.tenant;
  CAIRN_ASSIGN_OR_RETURN(const Sessions::Opened opened,
                         parts_.sessions.Open(tenant, absl::StrCat("offers of ", from.name),
                                              identity, /*is_member=*/true));
  const auto end = [this, &opened] { parts_.sessions.End(opened.id); };
  absl::StatusOr<Spaces::Opened> space = parts_.spaces.Open(offer.identity, offer.recipe, tenant);
  absl::StatusOr<Session> session = parts_.sessions.Find(opened.ticket);
  if (!space.ok() || !session.ok()) {
    end();
    return space.ok() ? session.status() : space.status();
  }
  Taking taking = {.from = from,
                   .offer = offer,
                   .deadline = deadline,
                   .space = std::move(space->space),
                   .session = *std::move(session),
                   .images = {},
                   .answers = {}};
  for (const GroupSlice& slice : offer.slices) {
    taking.images.push_back({.group = static_cast<uint16_t>(slice.group), .slice = SliceOf(slice)});
  }
  std::vector<size_t> wanted = Choose(taking);
  // What the member has lost meanwhile ends what it leases.
  for (int i = 0; i < kLeasesMax && !wanted.empty(); ++i) {
    const absl::StatusOr<size_t> read = Read(taking, wanted);
    if (!read.ok()) break;
    wanted.erase(wanted.begin(),
                 wanted.begin() + static_cast<ptrdiff_t>(std::min(*read + 1, wanted.size())));
  }
  room_.Settle();
  const std::vector<bool> have = Have(taking);
  for (size_t i = 0; i < have.size(); ++i) {
    OfferAnswer& answer = taking.answers[i];
    if (answer == OfferAnswer::kFailed && have[i]) answer = OfferAnswer::kTaken;
    (answer == OfferAnswer::kTaken      ? taken_
     : answer == OfferAnswer::kHad      ? had_
     : answer == OfferAnswer::kDeclined ? declined_
                                        : failed_)
        .Add();
  }
  end();
  return std::move(taking.answers);
}

std::vector<bool> OfferedBlocks::Have(const Taking& taking) const {
  return parts_.index.Contains(taking.space->id(), taking.offer.keys, taking.images);
}

std::vector<size_t> OfferedBlocks::Choose(Taking& taking) {
  const std::vector<bool> have = Have(taking);
  std::vector<size_t> wanted;
  bool is_full = false;
  for (size_t i = 0; i < have.size(); ++i) {
    // A block without those before it is of little use.
    is_full =
        is_full || (!have[i] && !room_.Take(taking.offer.image_bytes[i], parts_.host.used_bytes(),
                                            parts_.host.capacity_bytes(), parts_.clock.Now()));
    taking.answers.push_back(have[i]   ? OfferAnswer::kHad
                             : is_full ? OfferAnswer::kDeclined
                                       : OfferAnswer::kFailed);  // so far
    if (!have[i] && !is_full) wanted.push_back(i);
  }
  return wanted;
}

absl::StatusOr<size_t> OfferedBlocks::Read(Taking& taking, std::span<const size_t> wanted) {
  const BlockOffer& offer = taking.offer;
  auto run = std::make_shared<RemoteRun>();
  PeerQuestion question = QuestionOf(offer, taking.space->groups().size());
  for (const size_t i : wanted) question.keys.push_back(offer.keys[i]);
  question.generation = run->generation = parts_.remote.GenerationOf(*taking.space);
  run->matched_at = parts_.clock.Now();
  run->is_offered = true;
  CAIRN_ASSIGN_OR_RETURN(
      run->found, parts_.reader.Match(taking.from, question,
                                      std::min(taking.deadline, MonotonicNow() + kMatchTime)));
  if (!parts_.remote.IsUsable(taking.from, question, run->found)) {
    return absl::FailedPreconditionError("the blocks are of another generation of the space");
  }
  const size_t count = std::min(run->found.blocks().size(), wanted.size());
  if (count == 0) return 0;
  run->space = taking.space.Share();
  {
    const MutexLock lock(run->mutex);
    for (const size_t i : wanted.first(count)) {
      run->keys.push_back(offer.keys[i]);
      run->parents.push_back(offer.parents[i]);
      run->bytes_left.push_back(offer.image_bytes[i]);  // for which there is room
    }
  }
  RemoteLease lease;
  lease.token = RandomBytes<16>();
  lease.tenant = offer.identity.tenant;
  lease.session_id = taking.session.id;
  lease.runs.push_back(run);
  if (!parts_.remote.Add(std::move(lease))) {
    return absl::ResourceExhaustedError("too many blocks of members");
  }
  Fetch(taking, *run);
  return count;
}

void OfferedBlocks::Fetch(Taking& taking, const RemoteRun& run) {
  const auto round = std::make_shared<Round>();
  const auto await = [&](size_t open_max) {
    const MutexLock lock(round->mutex);
    while (round->open > open_max && MonotonicNow() < taking.deadline &&
           !is_stopping_.load(std::memory_order_relaxed)) {
      round->ended.WaitUntil(round->mutex, std::min(taking.deadline, MonotonicNow() + kLook));
    }
    return round->open <= open_max;
  };
  // A block waits until one that comes before it by this many has been stored.
  const double bytes_per_block = static_cast<double>(SumOf(taking.offer.image_bytes)) /
                                 static_cast<double>(taking.offer.image_bytes.size());
  const absl::Duration pace =
      absl::Seconds(bytes_per_block / static_cast<double>(limits::kOfferedRateBytes));
  for (const proto::BlockKey& key : run.keys) {
    next_read_ = std::max(next_read_, MonotonicNow()) + pace;
    for (const WantedGroup& image : taking.images) {
      if (!await(limits::kOfferedReadsMax - 1)) return;
      Request request;
      request.session = taking.session;
      request.arrived = parts_.clock.Now();
      request.deadline = request.arrived + (taking.deadline - MonotonicNow());
      proto::Get get;
      get.space_id = taking.space->id();
      get.key = key;
      get.group = image.group;
      round->Begin();
      if (!parts_.remote.Fetch(request, get, image.slice, [round] { round->End(); })) {
        round->End();
      }
    }
    if (const absl::Duration ahead = next_read_ - MonotonicNow(); ahead > absl::Milliseconds(1)) {
      absl::SleepFor(std::min(ahead, kLook));
    }
  }
  await(0);
}

void OfferedBlocks::Report(MetricSink& sink) const {
  ReportOffers(sink, "received", "taken", taken_);
  ReportOffers(sink, "received", "had", had_);
  ReportOffers(sink, "received", "declined", declined_);
  ReportOffers(sink, "received", "failed", failed_);
}

}  // namespace cairn
