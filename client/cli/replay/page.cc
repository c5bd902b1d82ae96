// SPDX-License-Identifier: Apache-2.0
// The page of a replay: its figures, and two plots over the time of the trace as inline SVG.
#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "base/text.h"
#include "base/units.h"
#include "client/cli/replay/report.h"

namespace cairn::replay {
namespace {

constexpr double kWidth = 900, kHeight = 300, kLeft = 60, kRight = 10, kTop = 10, kBottom = 30;
constexpr double kPlotWidth = kWidth - kLeft - kRight, kPlotHeight = kHeight - kTop - kBottom;
constexpr int kTimeTicks = 6;

constexpr char kHead[] =
    "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>cairnctl "
    "replay</title>"
    "<style>\n"
    "body{font:15px/1.5 system-ui,sans-serif;max-width:920px;margin:2em auto;padding:0 1em;"
    "color:#222;background:#fff}\n"
    "table{border-collapse:collapse;margin:1em 0}\n"
    "td,th{padding:.2em .9em .2em 0;text-align:right;font-variant-numeric:tabular-nums}\n"
    "td:first-child,th:first-child{text-align:left}\nth{border-bottom:1px solid #999}\n"
    "svg{width:100%;height:auto}\nsvg text{font:12px system-ui,sans-serif;fill:#555}\n"
    ".key{display:inline-block;margin-right:1.5em}\n"
    ".key b{display:inline-block;width:1.2em;height:.7em;margin-right:.4em}\n"
    "</style></head><body>\n";

std::string Escape(const std::string& text) {
  return absl::StrReplaceAll(text,
                             {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}});
}

const char* ColorOf(Tier tier) {
  switch (tier) {
    case Tier::kGpu:
      return "#7b4fa3";
    case Tier::kHost:
      return "#2f6fb0";
    case Tier::kSsd:
      return "#8fbfe0";
    case Tier::kNone:
      break;
  }
  return "#bbbbbb";
}
constexpr std::array<const char*, kCallCount> kCallColors = {"#2f6fb0", "#2f9e5b", "#d9822b"};

std::string Key(const char* color, std::string_view text) {
  return absl::StrCat("<span class=\"key\"><b style=\"background:", color, "\"></b>", ToAbsl(text),
                      "</span>\n");
}

double X(double share) { return kLeft + share * kPlotWidth; }
double Y(double share) { return kTop + (1 - share) * kPlotHeight; }

// The middle of window `index`, as a share of the trace's time.
double MiddleOf(size_t index, size_t count) {
  return (static_cast<double>(index) + 0.5) / static_cast<double>(count);
}

std::string Grid(double share, std::string_view label) {
  return absl::StrFormat(
      "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"#ddd\"/>"
      "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\">%s</text>\n",
      kLeft, kLeft + kPlotWidth, Y(share), Y(share), kLeft - 6, Y(share) + 4, ToAbsl(label));
}

std::string TimeAxis(uint64_t trace_ms) {
  std::string text;
  for (int tick = 0; tick <= kTimeTicks; ++tick) {
    const double share = static_cast<double>(tick) / kTimeTicks;
    absl::StrAppendFormat(&text, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">%.3g min</text>\n",
                          X(share), kHeight - 8, tick == kTimeTicks ? "end" : "middle",
                          static_cast<double>(trace_ms) / 60000 * share);
  }
  return text;
}

// Over the windows for which there is a height, a share of the plot's.
std::string Line(const Report& report, const char* style,
                 const std::function<double(const TallyWindow&)>& height) {
  std::string points;
  const std::vector<TallyWindow>& windows = report.tally.windows;
  for (size_t i = 0; i < windows.size(); ++i) {
    const double share = height(windows[i]);
    if (share >= 0) {
      absl::StrAppendFormat(&points, "%.1f,%.1f ", X(MiddleOf(i, windows.size())),
                            Y(std::min(share, 1.0)));
    }
  }
  return absl::StrCat("<polyline fill=\"none\" points=\"", points, "\" ", style, "/>\n");
}

// Hits of blocks: a bar for each window, tier upon tier, and the ceiling's line.
std::string HitPlot(const Report& report) {
  std::string text = absl::StrFormat("<svg viewBox=\"0 0 %g %g\" role=\"img\">\n", kWidth, kHeight);
  for (int percent = 0; percent <= 100; percent += 25) {
    absl::StrAppend(&text, Grid(percent / 100.0, absl::StrCat(percent, " %")));
  }
  const std::vector<TallyWindow>& windows = report.tally.windows;
  const double width = kPlotWidth / static_cast<double>(windows.size());
  for (size_t i = 0; i < windows.size(); ++i) {
    double below = 0;
    for (const Tier tier : TiersOf(report)) {
      const uint64_t hits = windows[i].hits[static_cast<size_t>(tier)].blocks;
      if (hits == 0) {
        continue;
      }
      const double share = static_cast<double>(hits) / static_cast<double>(windows[i].asked.blocks);
      absl::StrAppendFormat(
          &text, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"%s\"/>\n",
          kLeft + static_cast<double>(i) * width, Y(below + share), std::max(width - 0.5, 0.5),
          share * kPlotHeight, ColorOf(tier));
      below += share;
    }
  }
  absl::StrAppend(&text,
                  Line(report, "stroke=\"#c0392b\" stroke-width=\"1.5\"",
                       [](const TallyWindow& window) {
                         return window.asked.blocks == 0
                                    ? -1
                                    : static_cast<double>(window.ceiling.blocks) /
                                          static_cast<double>(window.asked.blocks);
                       }),
                  TimeAxis(report.trace_ms), "</svg>\n");
  return text;
}

// From 10 us to 10 s, a decade a sixth of the height.
std::string LatencyPlot(const Report& report) {
  constexpr double kDecades = 6;
  std::string text = absl::StrFormat("<svg viewBox=\"0 0 %g %g\" role=\"img\">\n", kWidth, kHeight);
  constexpr const char* kTicks[] = {"10 µs", "100 µs", "1 ms", "10 ms", "100 ms", "1 s", "10 s"};
  for (size_t tick = 0; tick < std::size(kTicks); ++tick) {
    absl::StrAppend(&text, Grid(static_cast<double>(tick) / kDecades, kTicks[tick]));
  }
  for (size_t call = 0; call < kCallCount; ++call) {
    for (const auto& [share, dash] : {std::pair(0.5, ""), std::pair(0.99, "4 3")}) {
      const std::string style =
          absl::StrCat("stroke=\"", kCallColors[call],
                       "\" stroke-width=\"1.5\" stroke-dasharray=\"", dash, "\"");
      absl::StrAppend(&text, Line(report, style.c_str(), [&, share = share](const auto& window) {
        const std::vector<uint32_t>& times = window.call_us[call];
        return times.empty()
                   ? -1
                   : std::max(0.0,
                              (std::log10(std::max(Percentile(times, share), 1U)) - 1) / kDecades);
      }));
    }
  }
  return absl::StrCat(text, TimeAxis(report.trace_ms), "</svg>\n");
}

std::string Row(const std::vector<std::string>& cells, const char* tag = "td") {
  std::string text = "<tr>";
  for (const std::string& cell : cells) {
    absl::StrAppend(&text, "<", tag, ">", Escape(cell), "</", tag, ">");
  }
  return text + "</tr>\n";
}

std::string TableOf(const std::vector<std::vector<std::string>>& rows) {
  std::string text = "<table>" + Row(rows.front(), "th");
  for (size_t i = 1; i < rows.size(); ++i) {
    absl::StrAppend(&text, Row(rows[i]));
  }
  return text + "</table>\n";
}

std::string FigureTable(const Report& report) {
  const Tally& tally = report.tally;
  std::string text =
      absl::StrCat("<table>", Row({"wrong bytes", absl::StrCat(tally.wrong_bytes)}),
                   Row({"late calls", absl::StrCat(tally.late_calls)}),
                   Row({"wire bytes of gets", FormatBytes(report.get_bytes)}),
                   Row({"wire bytes of puts", FormatBytes(report.put_bytes)}),
                   Row({"blocks stored", absl::StrCat(tally.puts - tally.duplicate_puts)}),
                   Row({"bytes stored", FormatBytes(tally.stored_bytes)}));
  for (const TierFigures& tier : report.tiers) {
    absl::StrAppend(&text, Row({absl::StrCat(NameOf(tier.tier), " used at the end"),
                                absl::StrCat(FormatBytes(tier.used_bytes), " of ",
                                             FormatBytes(tier.capacity_bytes))}));
    if (const uint64_t blocks = EvictedForIndex(report, tier.tier); blocks > 0) {
      absl::StrAppend(&text, Row({absl::StrCat(NameOf(tier.tier), " blocks that a full index cost"),
                                  absl::StrCat(blocks)}));
    }
  }
  for (const auto& [name, count] : tally.errors) {
    absl::StrAppend(&text, Row({"failed: " + name, absl::StrCat(count)}));
  }
  return text + "</table>\n";
}

}  // namespace

std::string PageOf(const Report& report) {
  std::string keys;
  for (const Tier tier : TiersOf(report)) {
    absl::StrAppend(&keys, Key(ColorOf(tier), NameOf(tier)));
  }
  absl::StrAppend(&keys, Key("#c0392b", "unbounded store"));
  std::string calls;
  for (size_t call = 0; call < kCallCount; ++call) {
    absl::StrAppend(&calls, Key(kCallColors[call], kCallNames[call]));
  }
  return absl::StrCat(
      kHead, "<h1>Replay of ", Escape(report.trace_name), "</h1>\n<p>",
      Escape(absl::StrFormat(
          "%d requests, %d blocks, %d of them distinct, of %s in source form, kept as %s. Played "
          "in %s, %d at a time.",
          report.tally.requests, report.sum.asked.blocks, report.distinct_blocks,
          FormatBytes(report.block_bytes), report.recipe,
          absl::FormatDuration(absl::Trunc(report.elapsed, absl::Milliseconds(10))),
          report.options.parallel)),
      "</p>\n<h2>Hit rate of blocks over the trace's time</h2>\n", keys, HitPlot(report),
      TableOf(HitRows(report)),
      "<h2>Latency</h2>\n<p>Lines: median. Dashed: 99th percentile.</p>\n", calls,
      LatencyPlot(report), TableOf(CallRows(report)), "<h2>Figures</h2>\n", FigureTable(report),
      "</body></html>\n");
}

}  // namespace cairn::replay
