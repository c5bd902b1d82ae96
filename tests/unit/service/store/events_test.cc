// SPDX-License-Identifier: Apache-2.0
// The log of what comes and goes; that blocks are told of in it copies_test.cc has.
#include "service/index/event_log.h"

#include <gtest/gtest.h>

#include "tests/support/fake_clock.h"

namespace cairn {
namespace {

TEST(EventTest, WhoFallsBehindIsToldSo) {
  FakeClock clock;
  EventLog log(clock, 4);
  EventCursor cursor;
  bool can_go_on = false;
  ASSERT_TRUE(log.Begin(&cursor, &can_go_on).ok());
  const EventCursor begin = cursor;
  for (uint16_t i = 0; i < 6; ++i) {
    IndexEvent event;
    event.tokens = i;
    log.Append(event);
  }
  std::vector<IndexEvent> events;
  EXPECT_FALSE(log.Read(&cursor, 10, &events));
  EXPECT_EQ(cursor.next, begin.next + 6);
  EXPECT_TRUE(log.Read(&cursor, 10, &events) && events.empty());
  EventCursor back{begin.epoch, begin.next + 2};  // the oldest that is kept
  ASSERT_TRUE(log.Begin(&back, &can_go_on).ok() && can_go_on);
  ASSERT_TRUE(log.Read(&back, 3, &events));
  ASSERT_EQ(events.size(), 3);
  EXPECT_EQ(events[0].tokens, 2);
  EXPECT_EQ(back.next, begin.next + 5);
  log.End();
  log.End();
  clock.Advance(absl::Milliseconds(limits::kEventsKeptMs));
  log.Append({});
  EXPECT_TRUE(log.is_recording());  // who comes back in time has missed nothing
  clock.Advance(absl::Milliseconds(1));
  log.Append({});
  EXPECT_FALSE(log.is_recording());
  ASSERT_TRUE(log.Begin(&back, &can_go_on).ok());
  EXPECT_TRUE(!can_go_on && back.epoch != begin.epoch);
  for (size_t i = 1; i < limits::kWatchersMax; ++i) {
    EXPECT_TRUE(log.Begin(&back, &can_go_on).ok() && can_go_on);
  }
  EXPECT_TRUE(absl::IsResourceExhausted(log.Begin(&back, &can_go_on)));
}

}  // namespace
}  // namespace cairn
