// SPDX-License-Identifier: Apache-2.0
#pragma once
// A move-only handle: a value that an owner has given out, and that is given back to the owner.
//
//   class Arena {
//    public:
//     using Extent = Handle<Arena, Range, &Arena::Free>;  // after the declaration of Free(Range)
//
// A class that also needs other members has a Handle as a member. Then it needs no destructor and
// no move operations. If the owner's type is incomplete in the header, make kRelease a static
// function of the class that has the Handle, and define it where the owner's type is complete:
//
//   class Pin {
//     static void Release(Index& index, Image* image);
//     Handle<Index, Image*, &Pin::Release> handle_;
//   };
// The value is released once: on destruction, on Reset(), or when another handle is moved into this
// one. A handle is empty if it is default-constructed, moved from, reset or taken. An empty handle
// releases nothing, and its value is a default-constructed Value.
//
// Thread-safety: Thread-compatible. kRelease runs on the thread that releases the value.
// Ownership:     the owner must outlive the handle. The value must not be used after its release.

#include <functional>
#include <utility>

#include "base/check.h"

namespace cairn {

// kRelease is a member function of Owner that takes a Value, or a function of (Owner&, Value).
// Value() and moving a Value must be cheap and must not throw.
template <typename Owner, typename Value, auto kRelease>
class Handle {
 public:
  Handle() = default;
  Handle(Owner& owner, Value value) : owner_(&owner), value_(std::move(value)) {}
  Handle(Handle&& source) noexcept
      : owner_(std::exchange(source.owner_, nullptr)),
        value_(std::exchange(source.value_, Value())) {}
  Handle& operator=(Handle&& source) noexcept {
    if (this != &source) {
      Reset();
      owner_ = std::exchange(source.owner_, nullptr);
      value_ = std::exchange(source.value_, Value());
    }
    return *this;
  }
  ~Handle() { Reset(); }

  // Releases the value. The handle is then empty.
  void Reset() {
    if (Owner* const owner = std::exchange(owner_, nullptr); owner != nullptr) {
      std::invoke(kRelease, *owner, std::exchange(value_, Value()));
    }
  }
  // Returns the value without releasing it; the caller must release it. The handle is then empty.
  [[nodiscard]] Value Take() {
    owner_ = nullptr;
    return std::exchange(value_, Value());
  }

  bool is_empty() const { return owner_ == nullptr; }
  bool IsOf(const Owner& owner) const { return owner_ == &owner; }
  // REQUIRES: not empty.
  Owner& owner() const {
    CAIRN_DCHECK(owner_ != nullptr);
    return *owner_;
  }
  Value& value() { return value_; }
  const Value& value() const { return value_; }

 private:
  Owner* owner_ = nullptr;
  Value value_{};
};

}  // namespace cairn
