// SPDX-License-Identifier: Apache-2.0
// The log of what comes and goes; that blocks are told of in it copies_test.cc has.
#include "service/index/event_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/support/fake_clock.h"

namespace cairn {
namespace {

IndexEvent Event(uint64_t space_id, uint16_t tokens) {
  return {.name = {.space_id = space_id, .key = {}}, .tokens = tokens};
}

class EventLogTest : public ::testing::Test {
 protected:
  EventLogTest() {
    log_.AddSpace(1, "acme");
    log_.AddSpace(2, "other");
  }
  EventCursor Begin(const std::string& tenant) {
    EventCursor cursor;
    bool can_go_on = false;
    EXPECT_TRUE(log_.Begin(tenant, &cursor, &can_go_on).ok());
    return cursor;
  }
  bool GoesOn(const std::string& tenant, EventCursor cursor) {
    bool can_go_on = false;
    EXPECT_TRUE(log_.Begin(tenant, &cursor, &can_go_on).ok());
    log_.End(tenant);
    return can_go_on;
  }

  FakeClock clock_;
  EventLog log_{clock_, 4};
  std::vector<IndexEvent> events_;
};

TEST_F(EventLogTest, WhoFallsBehindIsToldSo) {
  EventCursor cursor = Begin("acme");
  const EventCursor begin = cursor;
  for (uint16_t i = 0; i < 6; ++i) log_.Append(Event(1, i));
  EXPECT_FALSE(log_.Read("acme", &cursor, EventBatchRoom(10), &events_));
  EXPECT_EQ(cursor.next, begin.next + 6);
  EXPECT_TRUE(log_.Read("acme", &cursor, EventBatchRoom(10), &events_) && events_.empty());
  EventCursor back{begin.epoch, begin.next + 2};  // the oldest that is kept
  EXPECT_TRUE(GoesOn("acme", back));
  ASSERT_TRUE(log_.Read("acme", &back, EventBatchRoom(3), &events_));
  ASSERT_EQ(events_.size(), 3);
  EXPECT_EQ(events_[0].tokens, 2);
  EXPECT_EQ(back.next, begin.next + 5);
}

TEST_F(EventLogTest, NamesAreBoundedToo) {
  const EngineNamesRef names =
      ShareNames({.hash = {}, .parent = {}, .tokens = std::vector<uint32_t>(64)});
  EventLog log(clock_, 100, 3 * names->bytes());
  log.AddSpace(1, "acme");
  EventCursor cursor;
  bool can_go_on = false;
  ASSERT_TRUE(log.Begin("acme", &cursor, &can_go_on).ok());
  EventCursor late = {cursor.epoch, cursor.next + 2};
  for (uint16_t i = 0; i < 5; ++i) {
    IndexEvent event = Event(1, i);
    event.names = names;
    log.Append(event);
  }
  ASSERT_TRUE(log.Read("acme", &late, EventBatchRoom(10), &events_));
  ASSERT_EQ(events_.size(), 3);  // the oldest two went
  EXPECT_EQ(events_[0].tokens, 2);
  EXPECT_FALSE(log.Read("acme", &cursor, EventBatchRoom(10), &events_));
  log.End("acme");
}

TEST_F(EventLogTest, WhoComesBackInTimeHasMissedNothing) {
  const EventCursor begin = Begin("acme");
  log_.End("acme");
  clock_.Advance(absl::Milliseconds(limits::kEventsKeptMs));
  log_.Append(Event(1, 1));
  EXPECT_TRUE(log_.is_recording());
  EXPECT_TRUE(GoesOn("acme", begin));
  clock_.Advance(absl::Milliseconds(limits::kEventsKeptMs) + absl::Seconds(1));
  log_.Append(Event(1, 2));
  EXPECT_FALSE(log_.is_recording());
  EXPECT_NE(Begin("acme").epoch, begin.epoch);
}

TEST_F(EventLogTest, OthersAreNotSeenInATenantsNumbers) {
  EventCursor quiet = Begin("acme");
  const EventCursor begin = quiet;
  log_.Append(Event(2, 1));
  EXPECT_EQ(Begin("acme").next, begin.next) << "nobody of the other watches";
  (void)Begin("other");
  log_.Append(Event(1, 7));
  for (uint16_t i = 0; i < 100; ++i) log_.Append(Event(2, i));
  log_.Append(Event(3, 1));  // a space of nobody
  ASSERT_TRUE(log_.Read("acme", &quiet, EventBatchRoom(10), &events_))
      << "pushed out by the other's";
  ASSERT_EQ(events_.size(), 1);
  EXPECT_EQ(events_[0].tokens, 7);
  EXPECT_EQ(quiet.next, begin.next + 1);
  EXPECT_FALSE(GoesOn("other", begin)) << "a place of another tenant's";
}

TEST_F(EventLogTest, ATenantLeavesWatchersToOthers) {
  size_t taken = 0;
  absl::Status refused;
  EventCursor cursor;
  bool can_go_on = false;
  while ((refused = log_.Begin("acme", &cursor, &can_go_on)).ok()) ++taken;
  EXPECT_EQ(taken, limits::kWatchersMax / 2);
  EXPECT_TRUE(absl::IsResourceExhausted(refused));
  EXPECT_THAT(std::string(refused.message()),
              ::testing::HasSubstr("watchers: the tenant holds 32"));
  (void)Begin("other");
  log_.End("acme");
  EXPECT_TRUE(log_.Begin("acme", &cursor, &can_go_on).ok());
}

TEST_F(EventLogTest, InventedTenantsLeaveNothingBehind) {
  const EventCursor begin = Begin("acme");
  for (int i = 0; i < 1000; ++i) {
    const std::string invented = absl::StrCat("invented", i);
    (void)Begin(invented);
    log_.End(invented);
  }
  EXPECT_TRUE(GoesOn("acme", begin)) << "who watches is never dropped";
  EXPECT_EQ(Begin("acme").epoch, begin.epoch);
}

}  // namespace
}  // namespace cairn
