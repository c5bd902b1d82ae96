// SPDX-License-Identifier: Apache-2.0
#include "absl/time/clock.h"
#include "base/in_flight.h"
#include "base/status.h"
#include "service/upkeep/upkeep.h"

namespace cairn {
namespace {

constexpr absl::Duration kProgressStep = absl::Milliseconds(500);
// The time between tries while staging is full.
constexpr absl::Duration kStagingStep = absl::Milliseconds(10);

// Reads the copy and waits for it. Cancels the read once `goes_on` returns false.
absl::Status AwaitRead(CopyTier& tier, const CopyPin& pin, std::span<std::byte> target,
                       const std::function<bool()>& goes_on) {
  absl::Status result;
  InFlight in_flight;
  in_flight.Enter();
  const TransferId id = tier.Read({.place = &pin.extent(), .target = target, .is_background = true},
                                  [&](absl::Status status) {
                                    result = std::move(status);
                                    in_flight.Leave();
                                  });
  bool is_cancelled = false;
  // The loop ends, because a tier completes every transfer.
  while (!in_flight.AwaitUntil(MonotonicNow() + kProgressStep)) {
    if (!is_cancelled && !goes_on()) {
      is_cancelled = true;
      tier.Cancel(id);
    }
  }
  return result;
}

// Allocates memory for an image as soon as there is room. Returns Cancelled once `goes_on` returns
// false.
absl::StatusOr<Extent> AwaitStaging(HostTier& host, uint64_t bytes,
                                    const std::function<bool()>& goes_on) {
  for (;;) {  // until gets and puts free memory, or the caller gives up
    absl::StatusOr<Extent> memory = host.AllocateStaging(bytes);
    if (!absl::IsResourceExhausted(memory.status())) {
      return memory;
    }
    if (!goes_on()) {
      return absl::CancelledError("verify: cancelled");
    }
    absl::SleepFor(kStagingStep);
  }
}

}  // namespace

absl::Status Upkeep::VerifyTier(CopyTier& tier, uint64_t space_id, VerifyProgress& done,
                                const std::function<bool()>& goes_on) {
  uint64_t cursor = 0;
  CopyPin pin;
  while (index_.WalkTier(tier.id(), space_id, &cursor, &pin)) {
    if (pin.is_empty()) {
      continue;
    }
    bool is_intact = false;
    if (tier.traits().is_addressable) {
      is_intact = check_.Check(pin, pin.bytes());
    } else {
      CAIRN_ASSIGN_OR_RETURN(const Extent memory,
                             AwaitStaging(tiers_.host(), pin.copy().image_bytes, goes_on));
      const absl::Status read = AwaitRead(tier, pin, memory.bytes(), goes_on);
      if (absl::IsDataLoss(read)) {
        check_.Drop(pin, "the tier cannot read it");
      } else if (!read.ok()) {
        return goes_on() ? read : absl::CancelledError("verify: cancelled");
      }
      is_intact = read.ok() && check_.Check(pin, memory.bytes());
    }
    ++done.images_checked;
    done.bytes_checked += pin.copy().image_bytes;
    done.corrupt_images += is_intact ? 0 : 1;
    pin.Reset();
    if (!goes_on()) {
      return absl::CancelledError("verify: cancelled");
    }
  }
  return absl::OkStatus();
}

absl::Status Upkeep::Verify(uint64_t space_id,
                            const std::function<bool(const VerifyProgress&)>& progress) {
  VerifyProgress done;
  if (space_id == 0) {
    for (const CopyTier* tier : tiers_.all()) {
      done.images_total += index_.figures(tier->id()).copy_count;
    }
  } else {
    done.images_total = index_.figures(space_id).image_count;
  }
  absl::Time reported = MonotonicNow();
  const auto goes_on = [&] {
    if (MonotonicNow() - reported < kProgressStep) {
      return true;
    }
    reported = MonotonicNow();
    done.images_total = std::max(done.images_total, done.images_checked);
    return progress(done);
  };
  for (CopyTier* tier : tiers_.all()) {
    CAIRN_RETURN_IF_ERROR(VerifyTier(*tier, space_id, done, goes_on));
  }
  // Copies may have been added or removed meanwhile.
  done.images_total = done.images_checked;
  progress(done);
  return absl::OkStatus();
}

}  // namespace cairn
