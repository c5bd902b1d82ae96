// SPDX-License-Identifier: Apache-2.0
#include "client/cli/output.h"

#include <algorithm>
#include <cctype>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/clock.h"
#include "base/text.h"
#include "base/units.h"

namespace cairn::cli {
namespace {

constexpr absl::Duration kQuiet = absl::Seconds(1);
constexpr absl::Duration kRefresh = absl::Milliseconds(200);

// Returns the number of characters: the bytes that do not continue a UTF-8 sequence.
size_t Width(std::string_view text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

bool IsNumber(const std::string& cell) {
  return !cell.empty() && std::isdigit(static_cast<unsigned char>(cell.front())) != 0;
}

}  // namespace

void JsonWriter::Separate() {
  if (is_after_key_) {
    is_after_key_ = false;
    return;
  }
  if (depth_ > 0) {
    text_.append(is_first_ ? "" : ",");
    NewLine();
  }
  is_first_ = false;
}

void JsonWriter::NewLine() {
  if (layout_ == Layout::kIndented) {
    absl::StrAppend(&text_, "\n", std::string(depth_ * 2, ' '));
  }
}

JsonWriter& JsonWriter::Open(char bracket) {
  Separate();
  text_.push_back(bracket);
  ++depth_;
  is_first_ = true;
  return *this;
}

JsonWriter& JsonWriter::Close(char bracket) {
  --depth_;
  if (!is_first_) {
    NewLine();
  }
  text_.push_back(bracket);
  is_first_ = false;
  return *this;
}

JsonWriter& JsonWriter::Key(std::string_view key) {
  String(key);
  text_.append(": ");
  is_after_key_ = true;
  return *this;
}

JsonWriter& JsonWriter::String(std::string_view value) {
  Separate();
  AppendJsonString(value, &text_);
  return *this;
}

JsonWriter& JsonWriter::Number(uint64_t value) {
  Separate();
  absl::StrAppend(&text_, value);
  return *this;
}

JsonWriter& JsonWriter::Real(double value) {
  Separate();
  absl::StrAppendFormat(&text_, "%.6g", value);
  return *this;
}

JsonWriter& JsonWriter::Bool(bool value) {
  Separate();
  text_.append(value ? "true" : "false");
  return *this;
}

JsonWriter& JsonWriter::Null() {
  Separate();
  text_.append("null");
  return *this;
}

void JsonWriter::Print() const {
  std::fwrite(text_.data(), 1, text_.size(), stdout);
  std::fputc('\n', stdout);
}

void PrintTable(const std::vector<std::string>& heads,
                const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths;
  for (size_t column = 0; column < heads.size(); ++column) {
    size_t width = Width(heads[column]);
    for (const auto& row : rows) {
      width = std::max(width, Width(row[column]));
    }
    widths.push_back(width);
  }
  const auto print = [&](const std::vector<std::string>& cells, const std::vector<bool>& right) {
    std::string line;
    for (size_t column = 0; column < cells.size(); ++column) {
      const std::string pad(widths[column] - Width(cells[column]), ' ');
      const bool is_last = column + 1 == cells.size();
      absl::StrAppend(&line,
                      right[column] ? pad + cells[column] : cells[column] + (is_last ? "" : pad),
                      is_last ? "\n" : "  ");
    }
    std::fputs(line.c_str(), stdout);
  };
  std::vector<bool> right;
  for (size_t column = 0; column < heads.size(); ++column) {
    right.push_back(std::all_of(rows.begin(), rows.end(),
                                [column](const auto& row) { return IsNumber(row[column]); }) &&
                    !rows.empty());
  }
  print(heads, right);
  for (const auto& row : rows) {
    print(row, right);
  }
}

std::string Bar(uint64_t part, uint64_t whole, int width) {
  static constexpr const char* kEighths[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  const double share =
      whole == 0 ? 0 : std::min(1.0, static_cast<double>(part) / static_cast<double>(whole));
  int eighths = static_cast<int>(share * width * 8);
  eighths = part > 0 ? std::max(eighths, 1) : 0;
  std::string bar;
  for (int i = 0; i < eighths / 8; ++i) {
    bar += "█";
  }
  bar += kEighths[eighths % 8];
  return bar + std::string(static_cast<size_t>(width) - Width(bar), ' ');
}

std::string Percent(uint64_t part, uint64_t whole) {
  return whole == 0 ? "-"
                    : absl::StrFormat("%.0f %%", 100.0 * static_cast<double>(part) /
                                                     static_cast<double>(whole));
}

std::string Ratio(uint64_t source_bytes, uint64_t image_bytes) {
  return image_bytes == 0 ? "-"
                          : absl::StrFormat("%.2fx", static_cast<double>(source_bytes) /
                                                         static_cast<double>(image_bytes));
}

Progress::Progress(bool is_shown) : is_shown_(is_shown), started_(MonotonicNow()) {}

Progress::~Progress() {
  if (is_dirty_) {
    std::fputs("\r\033[K", stderr);
  }
}

void Progress::Update(std::string_view what, uint64_t done, uint64_t total) {
  const absl::Time now = MonotonicNow();
  if (!is_shown_ || now - started_ < kQuiet || now - printed_ < kRefresh) {
    return;
  }
  printed_ = now;
  is_dirty_ = true;
  const std::string line = absl::StrCat("\r\033[K", ToAbsl(what), " [", Bar(done, total, 24), "] ",
                                        done, " of ", total, " (", Percent(done, total), ")");
  std::fputs(line.c_str(), stderr);
  std::fflush(stderr);
}

}  // namespace cairn::cli
