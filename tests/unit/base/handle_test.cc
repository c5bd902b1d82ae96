// SPDX-License-Identifier: Apache-2.0
#include "base/handle.h"

#include <gtest/gtest.h>

#include <memory>
#include <type_traits>
#include <vector>

namespace cairn {
namespace {

// Gives out numbers and notes those that come back.
class Desk {
  void Release(int number) { released.push_back(number); }

 public:
  using Ticket = Handle<Desk, int, &Desk::Release>;
  Ticket Give(int number) { return Ticket(*this, number); }
  std::vector<int> released;
};
using Ticket = Desk::Ticket;
using Numbers = std::vector<int>;

static_assert(!std::is_copy_constructible_v<Ticket> && !std::is_copy_assignable_v<Ticket>);
static_assert(std::is_nothrow_move_constructible_v<Ticket> &&
              std::is_nothrow_move_assignable_v<Ticket>);

// A class with a handle, of an owner that is declared only.
class Owner;
class Held {
 public:
  Held() = default;
  Held(Owner& owner, std::unique_ptr<int> value) : handle_(owner, std::move(value)) {}

 private:
  static void Release(Owner& owner, std::unique_ptr<int> value);
  Handle<Owner, std::unique_ptr<int>, &Held::Release> handle_;
};

struct Owner {
  std::vector<std::unique_ptr<int>> returned;
};

void Held::Release(Owner& owner, std::unique_ptr<int> value) {
  owner.returned.push_back(std::move(value));
}

TEST(Handle, ReleasesOnDestruction) {
  Desk desk;
  {
    const Ticket ticket = desk.Give(7);
    EXPECT_FALSE(ticket.is_empty());
    EXPECT_EQ(ticket.value(), 7);
    EXPECT_EQ(&ticket.owner(), &desk);
    EXPECT_EQ(desk.released, Numbers());
  }
  EXPECT_EQ(desk.released, Numbers({7}));
}

TEST(Handle, AnEmptyOneReleasesNothing) {
  Ticket ticket;
  EXPECT_TRUE(ticket.is_empty());
  EXPECT_EQ(ticket.value(), 0);
  ticket.Reset();
}

TEST(Handle, ResetReleasesOnce) {
  Desk desk;
  Ticket ticket = desk.Give(7);
  ticket.Reset();
  EXPECT_TRUE(ticket.is_empty());
  EXPECT_EQ(ticket.value(), 0);
  ticket.Reset();
  EXPECT_EQ(desk.released, Numbers({7}));
}

TEST(Handle, AMoveTakesTheDutyAlong) {
  Desk desk;
  {
    Ticket first = desk.Give(7);
    const Ticket second = std::move(first);
    EXPECT_TRUE(first.is_empty());  // NOLINT(bugprone-use-after-move): that is the subject
    EXPECT_EQ(first.value(), 0);
    EXPECT_EQ(second.value(), 7);
  }
  EXPECT_EQ(desk.released, Numbers({7}));
}

TEST(Handle, AssignmentReleasesTheFormerValue) {
  Desk desk, other;
  {
    Ticket ticket = desk.Give(7);
    ticket = other.Give(8);
    EXPECT_EQ(desk.released, Numbers({7}));
    EXPECT_EQ(&ticket.owner(), &other);
    Ticket& same = ticket;
    ticket = std::move(same);
    EXPECT_EQ(ticket.value(), 8);
    EXPECT_EQ(other.released, Numbers());
  }
  EXPECT_EQ(other.released, Numbers({8}));
}

TEST(Handle, TakeReleasesNothing) {
  Desk desk;
  {
    Ticket ticket = desk.Give(7);
    EXPECT_EQ(ticket.Take(), 7);
    EXPECT_TRUE(ticket.is_empty());
    EXPECT_EQ(ticket.value(), 0);
  }
  EXPECT_EQ(desk.released, Numbers());
}

TEST(Handle, AMemberOfAClassMovesAndReleases) {
  Owner owner;
  {
    Held held(owner, std::make_unique<int>(7));
    Held moved = std::move(held);
    held = std::move(moved);
    EXPECT_TRUE(owner.returned.empty());
  }
  ASSERT_EQ(owner.returned.size(), 1);
  EXPECT_EQ(*owner.returned.front(), 7);
}

}  // namespace
}  // namespace cairn
