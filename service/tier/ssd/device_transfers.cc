// SPDX-License-Identifier: Apache-2.0
// Bytes to and from the device. Transfers are of whole pages; what is not, passes through pages of
// its own.
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/status.h"
#include "codecs/image/image.h"
#include "proto/block_key.h"
#include "service/tier/ssd/await_done.h"
#include "service/tier/ssd/device.h"

namespace cairn {
namespace {

bool AreWholePages(const void* memory, uint64_t offset) {
  return reinterpret_cast<uintptr_t>(memory) % kPageBytes == 0 && offset % kPageBytes == 0;
}

int64_t UnixSeconds() { return absl::ToUnixSeconds(MonotonicNow()); }

}  // namespace

IoId SsdDevice::Read(const TierRead& read, TierDone done) {
  const uint64_t offset = DeviceOffset(read.place->offset());
  IoTransfer transfer;
  transfer.deadline = read.deadline;
  transfer.is_background = read.is_background;
  uint32_t slot = 0;
  {
    const MutexLock lock(mutex_);
    segments_->Find(offset).is_hit |= !read.is_background;
    slot = segments_->SlotOf(offset);
    transfer.fd = files_[slot].get();
  }
  const uint64_t first = offset % budget_.segment_bytes + read.offset;
  const std::span<std::byte> target = read.target;
  // Whole pages go straight to the target, the rest, or all where it is not aligned, through a
  // bounce of whole pages.
  const size_t direct =
      AreWholePages(target.data(), first) ? target.size() / kPageBytes * kPageBytes : 0;
  const uint64_t begin = first / kPageBytes * kPageBytes;
  const uint64_t end = SegmentMap::RoundedBytes(first + target.size());
  PageMemory bounce(end - begin - direct);
  transfer.offset = begin;
  transfer.parts[0] = direct > 0 ? target.first(direct) : bounce.bytes();
  transfer.parts[1] = direct > 0 ? bounce.bytes() : std::span<std::byte>();
  const size_t skip = direct > 0 ? 0 : first - begin;
  const std::span<std::byte> rest = target.subspan(direct);
  return engine_->Submit(transfer, [this, slot, rest, skip, bounce = std::move(bounce),
                                    bytes = read.is_background ? 0 : target.size(),
                                    done = std::move(done)](absl::Status status) mutable {
    if (status.ok()) {
      read_bytes_.Add(bytes);
      if (!rest.empty()) {
        std::memcpy(rest.data(), bounce.bytes().data() + skip, rest.size());
      }
    } else {
      CountError(slot, IoKind::kRead, status);
    }
    std::move(done)(std::move(status));
  });
}

IoId SsdDevice::Write(const TierWrite& write, TierDone done) {
  CAIRN_CHECK(write.space != nullptr && write.source.size() == write.place->size_bytes());
  const uint64_t offset = DeviceOffset(write.place->offset());
  Written written;
  written.offset = offset;
  written.record = {.key = write.image.key,
                    .parent = write.parent,
                    .first_position = write.image.first_position,
                    .tokens = write.image.tokens,
                    .group = write.image.group,
                    .slice = write.image.slice,
                    .source_bytes = write.image.source_bytes,
                    .recipe = write.copy.recipe,
                    .image_bytes = write.source.size(),
                    .directory_crc = write.copy.directory_crc,
                    .side_object = write.side_object,
                    .created_unix_s = UnixSeconds(),
                    .expires_unix_s = write.image.expires_unix_s};
  written.space = write.space;
  written.space_id = write.image.space_id;
  written.side_objects = write.side_objects;
  written.done = std::move(done);
  IoTransfer transfer;
  transfer.kind = IoKind::kWrite;
  transfer.deadline = write.deadline;
  transfer.is_background = true;
  {
    const MutexLock lock(mutex_);
    const uint32_t slot = segments_->SlotOf(offset);
    ++segments_->at(slot).writes;
    transfer.fd = files_[slot].get();
    const auto reserved = reserved_.find(offset);
    CAIRN_CHECK(reserved != reserved_.end(), "a place is written once");
    written.id = reserved->second;
    reserved_.erase(reserved);
  }
  // What is past the image in its last page is zero.
  const std::span<const std::byte> source = write.source;
  const size_t direct =
      AreWholePages(source.data(), 0) ? source.size() / kPageBytes * kPageBytes : 0;
  PageMemory bounce(SegmentMap::RoundedBytes(source.size() - direct));
  if (const std::span<const std::byte> rest = source.subspan(direct); !rest.empty()) {
    std::memcpy(bounce.bytes().data(), rest.data(), rest.size());
    std::memset(bounce.bytes().data() + rest.size(), 0, bounce.bytes().size() - rest.size());
  }
  // The engine only reads them.
  const std::span<std::byte> whole(const_cast<std::byte*>(source.data()), direct);
  transfer.offset = offset % budget_.segment_bytes;
  transfer.parts[0] = direct > 0 ? whole : bounce.bytes();
  transfer.parts[1] = direct > 0 ? bounce.bytes() : std::span<std::byte>();
  return engine_->Submit(transfer, [this, bounce = std::move(bounce),
                                    written = std::move(written)](absl::Status status) mutable {
    Landed(std::move(written), std::move(status));
  });
}

void SsdDevice::Landed(Written written, absl::Status status) {
  const uint64_t bytes = written.record.image_bytes;
  uint32_t slot = 0;
  {
    const MutexLock lock(mutex_);
    slot = segments_->SlotOf(written.offset);
    if (status.ok()) {
      (written.space == nullptr ? carried_bytes_ : written_bytes_).Add(bytes);
      queued_.written.push_back(std::move(written));
      commit_due_.NotifyOne();
      return;
    }
    --segments_->at(slot).writes;
  }
  CountError(slot, IoKind::kWrite, status);
  End(written, std::move(status));
}

void SsdDevice::End(Written& written, absl::Status status) {
  std::move(written.done)(std::move(status));
  const MutexLock lock(mutex_);
  EndWrite(written.id);
}

void SsdDevice::CountError(uint32_t slot, IoKind kind, const absl::Status& status) {
  // What was not begun says nothing of the device.
  if (!absl::IsDataLoss(status) && !absl::IsInternal(status)) {
    return;
  }
  faults_.Add();
  size_t set_aside = 0;
  {
    const MutexLock lock(mutex_);
    const SegmentMap::State state = segments_->at(slot).state;
    if (kind == IoKind::kWrite &&
        (state == SegmentMap::State::kOpen || state == SegmentMap::State::kFull)) {
      segments_->SetState(slot, SegmentMap::State::kSetAside);
      care_due_.NotifyOne();
    }
    set_aside = segments_->count(SegmentMap::State::kSetAside);
  }
  LogWarn("ssd", "transfer failed",
          {{"path", options_.path},
           {"segment", slot},
           {"op", kind == IoKind::kRead ? "read" : "write"},
           {"error", status}});
  if (set_aside >= kSetAsideMax) {
    TurnReadOnly("segments failed", status);
  }
}

absl::Status SsdDevice::Transfer(IoKind kind, int fd, uint64_t offset, std::span<std::byte> pages) {
  return AwaitDone([&](IoDone done) {
    engine_->Submit(
        {.kind = kind, .fd = fd, .offset = offset, .parts = {pages}, .is_background = true},
        std::move(done));
  });
}

bool SsdDevice::IsImageOf(const ExtentRecord& record, std::span<const std::byte> bytes) {
  codecs::ImageView view;
  if (codecs::ParseImage(bytes, &view) != codecs::Error::kOk) {
    return false;
  }
  const codecs::ImageSpec& spec = view.spec();
  static_assert(sizeof(spec.key) == sizeof(record.key));
  return view.bytes().size() == record.image_bytes &&
         codecs::PeekDirectoryCrc(bytes) == record.directory_crc &&
         std::memcmp(spec.key.data(), record.key.data(), sizeof(record.key)) == 0 &&
         spec.group == record.group && spec.slice == record.slice &&
         codecs::VerifyTiles(view) == codecs::Error::kOk;
}

}  // namespace cairn
