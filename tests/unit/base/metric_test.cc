// SPDX-License-Identifier: Apache-2.0
#include "base/metric.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "tests/support/metric_capture.h"

namespace cairn {
namespace {

using testing::ElementsAre;

TEST(Metric, CountersAndGaugesAddUpOverThreads) {
  Counter counter;
  Gauge gauge;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int turn = 0; turn < 1000; ++turn) {
        counter.Add();
        gauge.Add(turn % 2 == 0 ? 3 : -3);
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(counter.Value(), 4000);
  EXPECT_EQ(gauge.Value(), 0);
}

TEST(Metric, HistogramPutsAValueInTheFirstBucketThatHoldsIt) {
  Histogram histogram({1, 2, 4});
  for (const double value : {0.0, 1.0, 1.5, 2.0, 4.0, 4.1, 100.0}) {
    histogram.Observe(value);
  }
  const HistogramSnapshot snapshot = histogram.Snapshot();
  EXPECT_THAT(snapshot.bounds, ElementsAre(1, 2, 4));
  EXPECT_THAT(snapshot.counts, ElementsAre(2, 2, 1, 2));
  EXPECT_EQ(snapshot.count, 7);
  EXPECT_DOUBLE_EQ(snapshot.sum, 112.6);
}

TEST(Metric, LatencyBoundsFitAHistogram) {
  Histogram histogram(LatencyBounds());
  histogram.Observe(absl::Milliseconds(3));
  EXPECT_EQ(histogram.Snapshot().count, 1);
  EXPECT_DOUBLE_EQ(histogram.Snapshot().sum, 0.003);
}

TEST(MetricDeathTest, BoundsMustIncrease) {
  EXPECT_DEATH(Histogram({2, 1}), "check failed");
  EXPECT_DEATH(Histogram({1, 1}), "check failed");
  EXPECT_DEATH(Histogram(absl::Span<const double>()), "check failed");
}

TEST(Metric, CaptureNamesSeriesAsPrometheusDoes) {
  MetricCapture capture;
  capture.AddGauge("cairn_host_bytes", "Bytes.", {{"state", "used"}, {"tier", "host"}}, 5);
  capture.AddCounter("cairn_gets_total", "Gets.", {}, 2);
  EXPECT_EQ(capture.Value("cairn_host_bytes{state=\"used\",tier=\"host\"}"), 5);
  EXPECT_EQ(capture.Value("cairn_gets_total"), 2);
  EXPECT_FALSE(capture.Has("cairn_puts_total"));
}

}  // namespace
}  // namespace cairn
