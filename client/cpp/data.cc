// SPDX-License-Identifier: Apache-2.0
#include "client/cpp/data.h"

#include <algorithm>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"
#include "client/cpp/dial.h"
#include "client/cpp/route.h"
#include "transport/tls/tls_files.h"

namespace cairn {
namespace {

constexpr std::string_view kUnix = "unix:";

// All gets of one batch run at the same time, even if the window is smaller.
int WindowOf(const ConnectOptions& options) {
  return std::max(options.window, int{proto::kBatchMax});
}

bool Contains(std::span<const std::byte> bytes, const void* place) {
  const auto* byte = static_cast<const std::byte*>(place);
  return std::less_equal<>()(bytes.data(), byte) &&
         std::less<>()(byte, bytes.data() + bytes.size());
}

}  // namespace

Buffer::~Buffer() {
  if (memory_ != nullptr) {
    pool_->Free(slot_, std::move(memory_));
  }
}

bool Buffer::is_current() const { return pool_->IsLast(slot_, connection_); }

std::span<std::byte> Scratch::Region(size_t bytes) {
  if (region_ == nullptr || region_->bytes().size() < bytes) {
    region_ = nullptr;
    if (auto allocated = connection_->Allocate(bytes); allocated.ok()) {
      region_ = *std::move(allocated);
    } else {
      overflow_.resize(std::max(overflow_.size(), bytes));
      return std::span(overflow_).first(bytes);
    }
  }
  return region_->bytes().first(bytes);
}

std::span<std::byte> Scratch::Heap(size_t bytes) {
  heap_.resize(std::max(heap_.size(), bytes));
  return std::span(heap_).first(bytes);
}

std::span<std::byte> Scratch::Prefix(size_t bytes) {
  prefix_.resize(std::max(prefix_.size(), bytes));
  return std::span(prefix_).first(bytes);
}

DataPool::DataPool(const ConnectOptions& options)
    : options_(options), slots_(static_cast<size_t>(options.connections)) {}

DataPool::~DataPool() {
  for (const Slot& slot : slots_) {
    CAIRN_CHECK(!slot.is_busy, "a client was destroyed while a call of it ran");
    CAIRN_CHECK(slot.buffers.empty(), "a client was destroyed before its buffers");
  }
}

absl::Status DataPool::CheckRoute(const SessionInfo& session) const {
  const auto& addresses = session.data_addresses;
  // The socket may not exist yet.
  const bool has_others = std::any_of(addresses.begin(), addresses.end(), [](const auto& address) {
    return TransportOf(address) != DataTransport::kLocal;
  });
  return has_others ? ChooseDataAddress(options_, addresses).status() : absl::OkStatus();
}

int DataPool::CheckOut(const void* place, absl::Time deadline, Order order) {
  const int count = static_cast<int>(slots_.size());
  MutexLock lock(mutex_);
  int wanted = -1;
  for (int i = 0; place != nullptr && i < count && wanted < 0; ++i) {
    const auto& buffers = slots_[static_cast<size_t>(i)].buffers;
    if (std::any_of(buffers.begin(), buffers.end(),
                    [place](std::span<const std::byte> bytes) { return Contains(bytes, place); })) {
      wanted = i;
    }
  }
  while (true) {
    for (int i = 0; i < count; ++i) {
      // The lowest free slot. A single thread thus always uses the same connection, whose caches
      // are warm.
      const int free = order == Order::kLowest ? i : count - 1 - i;
      const int slot = wanted >= 0 ? wanted : free;
      if (!slots_[static_cast<size_t>(slot)].is_busy) {
        slots_[static_cast<size_t>(slot)].is_busy = true;
        return slot;
      }
    }
    if (!freed_.WaitUntil(mutex_, deadline) && MonotonicNow() >= deadline) {
      return -1;
    }
  }
}

void DataPool::CheckIn(int slot) {
  std::vector<std::unique_ptr<transport::Buffer>> retired;
  Slot& held = slots_[static_cast<size_t>(slot)];
  {
    MutexLock lock(mutex_);
    retired.swap(held.retired);
  }
  retired.clear();  // while the slot is checked out, because this accesses the connection's region
  MutexLock lock(mutex_);
  if (held.connection != nullptr && held.epoch <= ended_epoch_) {
    held.connection->Unmap();
  }
  held.is_busy = false;
  freed_.NotifyAll();
}

void DataPool::Free(int slot, std::unique_ptr<transport::Buffer> memory) {
  Slot& held = slots_[static_cast<size_t>(slot)];
  bool is_mine = false;
  {
    MutexLock lock(mutex_);
    std::erase_if(held.buffers, [&memory](std::span<const std::byte> bytes) {
      return bytes.data() == memory->bytes().data();
    });
    held.retired.push_back(std::move(memory));
    is_mine = !std::exchange(held.is_busy, true);
  }
  if (is_mine) {
    CheckIn(slot);
  }
}

void DataPool::SessionEnded(uint64_t epoch) {
  MutexLock lock(mutex_);
  ended_epoch_ = std::max(ended_epoch_, epoch);
  for (Slot& slot : slots_) {
    if (!slot.is_busy && slot.connection != nullptr && slot.epoch <= ended_epoch_) {
      slot.connection->Unmap();
    }
  }
}

bool DataPool::IsLast(int slot, uint64_t connection) const {
  MutexLock lock(mutex_);
  return slots_[static_cast<size_t>(slot)].connections == connection;
}

absl::Status DataPool::EnsureConnected(Slot& slot, const SessionInfo& session,
                                       absl::Time deadline) {
  if (slot.connection != nullptr) {
    slot.connection->Poll(absl::InfinitePast());  // detects a peer that is gone
    if (!slot.connection->broken() && slot.epoch == session.epoch) {
      return absl::OkStatus();
    }
    for (Scratch& scratch : slot.scratch) {
      scratch.region_ = nullptr;
    }
    slot.connection = nullptr;
  }
  CAIRN_ASSIGN_OR_RETURN(const std::string address,
                         ChooseDataAddress(options_, session.data_addresses));
  if (tls_ != nullptr) tls_->Look();  // new connections use new certificates
  CAIRN_ASSIGN_OR_RETURN(slot.connection, options_.dialer(DialRequest{
                                              .address = address,
                                              .ticket = session.ticket,
                                              .window = static_cast<uint32_t>(WindowOf(options_)),
                                              .region_bytes = options_.region_bytes,
                                              .deadline = deadline,
                                              .tls = tls_,
                                              .tls_server = DataServerName(options_)}));
  slot.epoch = session.epoch;
  slot.seq = kHelloSeq + 1;
  slot.scratch.resize(
      static_cast<size_t>(std::clamp(slot.connection->window(), 1, WindowOf(options_))));
  for (Scratch& scratch : slot.scratch) {
    scratch.connection_ = slot.connection.get();
    scratch.is_region_shared_ = address.starts_with(kUnix);
  }
  MutexLock lock(mutex_);
  ++slot.connections;
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<transport::Buffer>> DataPool::AllocateIn(Slot& slot,
                                                                        const SessionInfo& session,
                                                                        size_t bytes,
                                                                        absl::Time deadline) {
  CAIRN_RETURN_IF_ERROR(EnsureConnected(slot, session, deadline));
  auto allocated = slot.connection->Allocate(bytes);
  if (absl::IsResourceExhausted(allocated.status())) {
    for (Scratch& scratch : slot.scratch) {
      scratch.region_ = nullptr;
    }
    allocated = slot.connection->Allocate(bytes);
  }
  return allocated;
}

absl::StatusOr<Buffer> DataPool::Allocate(const SessionInfo& session, size_t bytes,
                                          absl::Time deadline) {
  const int index = CheckOut(nullptr, deadline);
  if (index < 0) {
    return absl::DeadlineExceededError("every data connection is busy");
  }
  return Lend(index, AllocateIn(slots_[static_cast<size_t>(index)], session, bytes, deadline));
}

absl::StatusOr<Buffer> DataPool::AllocateStaging(const SessionInfo& session, size_t bytes,
                                                 absl::Time deadline) {
  const int index = CheckOut(nullptr, deadline, Order::kHighest);
  if (index < 0) {
    return absl::DeadlineExceededError("every data connection is busy");
  }
  Slot& slot = slots_[static_cast<size_t>(index)];
  uint64_t lent_bytes = bytes;
  {
    MutexLock lock(mutex_);
    for (const std::span<const std::byte> lent : slot.buffers) {
      lent_bytes += lent.size();
    }
  }
  if (lent_bytes > options_.region_bytes / 2) {
    return Lend(index,
                absl::ResourceExhaustedError(absl::StrCat(
                    "staging would take ", lent_bytes, " bytes, more than half of region_bytes")));
  }
  return Lend(index, AllocateIn(slot, session, bytes, deadline));
}

absl::StatusOr<Buffer> DataPool::Lend(int index,
                                      absl::StatusOr<std::unique_ptr<transport::Buffer>> memory) {
  uint64_t connection = 0;
  if (memory.ok()) {
    MutexLock lock(mutex_);
    Slot& slot = slots_[static_cast<size_t>(index)];
    slot.buffers.push_back((*memory)->bytes());
    connection = slot.connections;
  }
  CheckIn(index);
  CAIRN_RETURN_IF_ERROR(memory.status());
  return Buffer(this, index, connection, *std::move(memory));
}

void DataPool::MarkLent(const Slot& slot, std::span<Exchange* const> exchanges) {
  MutexLock lock(mutex_);
  for (Exchange* exchange : exchanges) {
    exchange->is_lent = std::any_of(slot.buffers.begin(), slot.buffers.end(),
                                    [exchange](std::span<const std::byte> bytes) {
                                      return Contains(bytes, exchange->place());
                                    });
  }
}

void DataPool::Run(const SessionInfo& session, std::span<Exchange* const> exchanges,
                   absl::Time deadline, Meanwhile meanwhile) {
  if (exchanges.empty()) {
    return;
  }
  const auto fail_all = [exchanges](const absl::Status& status) {
    for (Exchange* exchange : exchanges) {
      exchange->Fail(status);
    }
  };
  const int index = CheckOut(exchanges.front()->place(), deadline);
  if (index < 0) {
    return fail_all(absl::DeadlineExceededError("every data connection is busy"));
  }
  Slot& slot = slots_[static_cast<size_t>(index)];
  if (const absl::Status status = EnsureConnected(slot, session, deadline); status.ok()) {
    MarkLent(slot, exchanges);
    Pipeline(slot.connection, slot.scratch, static_cast<size_t>(options_.window),
             options_.region_bytes / 2, session.ticket, &slot.seq, deadline)
        .Run(exchanges, meanwhile);
  } else {
    fail_all(status);
  }
  CheckIn(index);
}

}  // namespace cairn
