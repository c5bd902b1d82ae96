// SPDX-License-Identifier: Apache-2.0
#pragma once
// Output of cairnctl: JSON, tables, bars, progress.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/time/time.h"

namespace cairn::cli {

// Writes one JSON value. The calls must be nested as the JSON is.
class JsonWriter {
 public:
  enum class Layout { kIndented, kOneLine };  // indented by two spaces, or one line for streams
  explicit JsonWriter(Layout layout = Layout::kIndented) : layout_(layout) {}

  JsonWriter& BeginObject() { return Open('{'); }
  JsonWriter& EndObject() { return Close('}'); }
  JsonWriter& BeginArray() { return Open('['); }
  JsonWriter& EndArray() { return Close(']'); }
  JsonWriter& Key(std::string_view key);
  JsonWriter& String(std::string_view value);
  JsonWriter& Number(uint64_t value);
  JsonWriter& Real(double value);
  JsonWriter& Bool(bool value);
  JsonWriter& Null();

  JsonWriter& Field(std::string_view key, std::string_view value) { return Key(key).String(value); }
  JsonWriter& Field(std::string_view key, const char* value) { return Key(key).String(value); }
  JsonWriter& Field(std::string_view key, uint64_t value) { return Key(key).Number(value); }
  JsonWriter& Field(std::string_view key, uint32_t value) { return Key(key).Number(value); }
  JsonWriter& Field(std::string_view key, bool value) { return Key(key).Bool(value); }

  // Prints the JSON to stdout, with a newline.
  void Print() const;
  const std::string& text() const { return text_; }

 private:
  JsonWriter& Open(char bracket);
  JsonWriter& Close(char bracket);
  void Separate();
  void NewLine();

  const Layout layout_;
  std::string text_;
  int depth_ = 0;
  bool is_first_ = true;
  bool is_after_key_ = false;
};

// Prints a table. Each column is as wide as its widest cell. Numbers (cells that begin with a
// digit) are right-aligned.
void PrintTable(const std::vector<std::string>& heads,
                const std::vector<std::vector<std::string>>& rows);

// Returns a bar such as "████▌ " that is `width` cells wide. It is empty only if `part` is 0.
std::string Bar(uint64_t part, uint64_t whole, int width);

// Return texts such as "37 %" and "1.98x".
std::string Percent(uint64_t part, uint64_t whole);
std::string Ratio(uint64_t source_bytes, uint64_t image_bytes);

// A line on stderr that shows progress. It appears once the work has taken a second, and each
// update replaces it. The destructor clears it.
class Progress {
 public:
  explicit Progress(bool is_shown);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  void Update(std::string_view what, uint64_t done, uint64_t total);

 private:
  const bool is_shown_;
  const absl::Time started_;
  absl::Time printed_ = absl::InfinitePast();
  bool is_dirty_ = false;
};

}  // namespace cairn::cli
