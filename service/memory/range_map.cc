// SPDX-License-Identifier: Apache-2.0
#include "service/memory/range_map.h"

#include <bit>

#include "base/check.h"

namespace cairn {

uint64_t RangeMap::RoundUp(uint64_t pages) {
  const int exponent = std::bit_width(pages) - 1;
  if (exponent <= 4) {
    return pages;
  }
  const uint64_t step = uint64_t{1} << (exponent - 4);
  return (pages + step - 1) & ~(step - 1);
}

uint32_t RangeMap::ClassOf(uint32_t pages) {
  const int exponent = std::bit_width(pages) - 1;
  if (exponent <= 4) {
    return pages;
  }
  return static_cast<uint32_t>(exponent - 4) * 16 + (pages >> (exponent - 4));
}

RangeMap::RangeMap(uint32_t pages) : entries_(pages) {
  CAIRN_CHECK(pages <= kPagesMax);
  heads_.fill(kNone);
  if (pages > 0) {
    Link(0, pages);
  }
}

uint32_t RangeMap::FirstClassFrom(uint32_t index) const {
  uint64_t word = nonempty_[index / 64] & (~uint64_t{0} << (index % 64));
  for (uint32_t i = index / 64;;) {
    if (word != 0) {
      return i * 64 + static_cast<uint32_t>(std::countr_zero(word));
    }
    if (++i == nonempty_.size()) {
      return kNone;
    }
    word = nonempty_[i];
  }
}

void RangeMap::Link(uint32_t first, uint32_t pages) {
  const uint32_t index = ClassOf(pages);
  Entry& entry = entries_[first];
  entry.pages = pages;
  entry.state = kFree;
  entry.free.next = heads_[index];
  entry.free.previous = kNone;
  if (entry.free.next != kNone) {
    entries_[entry.free.next].free.previous = first;
  }
  heads_[index] = first;
  nonempty_[index / 64] |= uint64_t{1} << (index % 64);
  entries_[first + pages - 1].tail_pages = pages;
}

void RangeMap::Unlink(uint32_t first) {
  Entry& entry = entries_[first];
  CAIRN_DCHECK(entry.state == kFree);
  const uint32_t pages = entry.pages;
  const uint32_t index = ClassOf(pages);
  if (entry.free.next != kNone) {
    entries_[entry.free.next].free.previous = entry.free.previous;
  }
  if (entry.free.previous != kNone) {
    entries_[entry.free.previous].free.next = entry.free.next;
  } else {
    heads_[index] = entry.free.next;
    if (heads_[index] == kNone) {
      nonempty_[index / 64] &= ~(uint64_t{1} << (index % 64));
    }
  }
  entry.state = kInside;
  entries_[first + pages - 1].tail_pages = 0;
}

std::optional<uint32_t> RangeMap::Take(uint32_t pages, Use use) {
  CAIRN_DCHECK(pages > 0 && pages == RoundUp(pages));
  const uint32_t index = FirstClassFrom(ClassOf(pages));
  if (index == kNone) {
    return std::nullopt;
  }
  // A rounded size is the smallest of its class, so every range in that list is long enough.
  const uint32_t first = heads_[index];
  const uint32_t found = entries_[first].pages;
  CAIRN_CHECK(found >= pages);
  Unlink(first);
  if (found > pages) {
    Link(first + pages, found - pages);
  }
  Entry& entry = entries_[first];
  entry.pages = pages;
  entry.state = TakenAs(use);
  entry.owner = nullptr;
  return first;
}

void RangeMap::Free(uint32_t first, uint32_t pages) {
  entries_[first].state = kInside;
  const uint32_t after = first + pages;
  if (after < entries_.size() && entries_[after].state == kFree) {
    pages += entries_[after].pages;
    Unlink(after);
  }
  if (first > 0 && entries_[first - 1].tail_pages != 0) {
    const uint32_t before = entries_[first - 1].tail_pages;
    first -= before;
    pages += before;
    Unlink(first);
  }
  if (hand_ > first && hand_ - first < pages) {
    hand_ = first;
  }
  Link(first, pages);
}

void RangeMap::Return(uint32_t first) {
  CAIRN_CHECK(is_taken(first));
  Free(first, entries_[first].pages);
}

void RangeMap::Shrink(uint32_t first, uint32_t pages) {
  CAIRN_CHECK(is_taken(first) && pages > 0 && pages <= entries_[first].pages);
  const uint32_t tail = entries_[first].pages - pages;
  if (tail > 0) {
    entries_[first].pages = pages;
    Free(first + pages, tail);
  }
}

uint32_t RangeMap::PagesOf(uint32_t first) const {
  CAIRN_CHECK(is_taken(first));
  return entries_[first].pages;
}

Use RangeMap::UseOf(uint32_t first) const {
  CAIRN_CHECK(is_taken(first));
  return entries_[first].state == kTakenPlaced ? Use::kPlaced : Use::kStaging;
}

void RangeMap::SetUse(uint32_t first, Use use) {
  CAIRN_CHECK(is_taken(first));
  entries_[first].state = TakenAs(use);
}

void RangeMap::SetOwner(uint32_t first, void* owner) {
  CAIRN_CHECK(is_taken(first));
  entries_[first].owner = owner;
}

uint32_t RangeMap::largest_free() const {
  for (uint32_t i = static_cast<uint32_t>(nonempty_.size()); i-- > 0;) {
    if (nonempty_[i] == 0) {
      continue;
    }
    // Every range of the largest nonempty class fits the smallest size of that class.
    const uint32_t index = i * 64 + 63 - static_cast<uint32_t>(std::countl_zero(nonempty_[i]));
    return index < 32 ? index : (16 + index % 16) << (index / 16 - 1);
  }
  return 0;
}

std::optional<uint64_t> RangeMap::CostOf(uint32_t first,
                                         absl::FunctionRef<uint64_t(void*)> cost) const {
  const Entry& entry = entries_[first];
  if (entry.state == kFree) {
    return 0;
  }
  if (entry.owner == nullptr) {
    return std::nullopt;
  }
  const uint64_t value = cost(entry.owner);
  return value == UINT64_MAX ? std::nullopt : std::optional<uint64_t>(value);
}

std::vector<void*> RangeMap::CheapestWindow(uint32_t pages, size_t ranges_max,
                                            absl::FunctionRef<uint64_t(void*)> cost,
                                            uint32_t* pages_passed) {
  // Moves a window [left, right) over the ranges in the order of addresses.
  const uint32_t start = hand_;
  uint32_t left = start, right = start, best_left = kNone, best_right = 0;
  uint64_t sum = 0, best = UINT64_MAX;
  for (size_t ranges = 0; ranges < ranges_max && right < entries_.size(); ++ranges) {
    const std::optional<uint64_t> value = CostOf(right, cost);
    right += entries_[right].pages;
    if (!value.has_value()) {
      left = right;
      sum = 0;
      continue;
    }
    sum += *value;
    while (right - left >= pages) {
      if (sum < best) {
        best = sum;
        best_left = left;
        best_right = right;
      }
      sum -= *CostOf(left, cost);
      left += entries_[left].pages;
    }
  }
  // If no window was found, the next search continues with the current window, provided that the
  // window has moved past the start.
  hand_ = best_left != kNone ? best_right : left > start ? left : right;
  *pages_passed += hand_ - start;
  if (hand_ == entries_.size() || right == entries_.size()) {
    *pages_passed += static_cast<uint32_t>(entries_.size()) - hand_;
    hand_ = 0;
  }
  std::vector<void*> owners;
  for (uint32_t at = best_left; at != kNone && at < best_right; at += entries_[at].pages) {
    if (entries_[at].state != kFree) {
      owners.push_back(entries_[at].owner);
    }
  }
  return owners;
}

}  // namespace cairn
