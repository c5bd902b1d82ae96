// SPDX-License-Identifier: Apache-2.0
#include "tests/kernels/gpu_check/table.h"

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <string_view>
#include <vector>

namespace cairn::kernels {
namespace {

std::string Today() {
  const std::time_t now = std::time(nullptr);
  char text[16];
  std::strftime(text, sizeof(text), "%Y-%m-%d", std::gmtime(&now));
  return text;
}

constexpr std::string_view kTooMuchShared =
    "since a kernel needs more shared memory than a block of the device has";

// "what: a, b."; empty where there are no names.
std::string NamesBehind(const std::string& what, const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? what + ": " : ", ") + name;
  return text.empty() ? text : text + ".";
}

std::string Number(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.3g", value);
  return text;
}

std::string Caption(const device::Description& device, const std::string& command,
                    const Conformance& conformance, const Scale& scale) {
  std::string text = "Device: " + device.name + ", driver " + device.driver + "; `" + command +
                     "`, " + Today() + ". Conformance before it: " + SummaryOf(conformance) + "\n";
  text += "Images of " + std::to_string(scale.layers) + " layers x " + std::to_string(scale.heads) +
          " heads x " + std::to_string(scale.tokens) + " tokens x " + std::to_string(scale.dim) +
          " channels, bf16, in pages of 16 tokens; " + std::to_string(scale.images) +
          " of them one after another. Medians of " + std::to_string(scale.rounds) + " rounds.\n";
  text +=
      "TB/s: of bf16 in the cache; of CRC, of image bytes; of the copy, read and written. Over the "
      "copy: what is read and\nwritten, image and cache, over a device copy of the same round. Of "
      "attention, bf16 that images stand for; batches are\nof sequences, of 32k tokens where "
      "images have 128, with 4 query heads a KV head. Attention to `raw` is a flash-decoding "
      "kernel "
      "of our own for bf16, the\nbaseline. nvCOMP is left out: none of its formats is an "
      "image's.\n";
  return text;
}

// How much faster than bf16 attention is.
std::string OverBaseline(const Measured& measured) {
  const auto is_attended = [](const Row& row) { return row.kernels == "attend"; };
  const auto baseline = std::ranges::find_if(
      measured.rows, [&](const Row& row) { return is_attended(row) && row.recipe == "raw"; });
  std::string text;
  if (baseline == measured.rows.end()) return text;
  for (const Row& row : measured.rows) {
    if (!is_attended(row) || row.recipe == "raw") continue;
    text += text.empty() ? "\nAttention, over that to bf16: " : "; ";
    text += row.recipe;
    for (size_t i = 0; i < row.cells.size() && i < baseline->cells.size(); ++i) {
      text += i == 0 ? " " : ", ";
      text += Number(row.cells[i].rate / baseline->cells[i].rate) + " x in batches of " +
              std::to_string(row.cells[i].taken);
    }
  }
  return text.empty() ? text : text + ".\n";
}

}  // namespace

std::string SummaryOf(const Conformance& conformance) {
  std::string text = std::to_string(conformance.tests) +
                     " tests passed, in as many blocks as the device likes and in one.";
  return text + NamesBehind(" Of these, some plans were refused, " + std::string(kTooMuchShared),
                            conformance.refused);
}

std::string RefusalsOf(const Measured& measured) {
  return NamesBehind("Refused, " + std::string(kTooMuchShared), measured.refused);
}

std::string TableOf(const device::Description& device, const std::string& command,
                    const Conformance& conformance, const Scale& scale, const Measured& measured) {
  std::string text = Caption(device, command, conformance, scale) + "\n| kernels | recipe |";
  std::string line = "| --- | --- |";
  for (const char* what : {"TB/s", "over the copy"}) {
    for (const uint32_t batch : scale.batches) {
      text += " " + std::string(what) + ", batches of " + std::to_string(batch) + " |";
      line += " --- |";
    }
  }
  text += "\n" + line + "\n";
  for (const Row& row : measured.rows) {
    text += "| " + row.kernels + " | " + (row.recipe.empty() ? "" : row.recipe + " ") + "|";
    for (const bool is_rate : {true, false}) {
      for (size_t i = 0; i < scale.batches.size(); ++i) {
        if (i >= row.cells.size()) {
          text += " |";
          continue;
        }
        const Cell& cell = row.cells[i];
        text += " " + Number(is_rate ? cell.rate / 1e12 : cell.over_copy);
        if (cell.taken != cell.batch) text += " (of " + std::to_string(cell.taken) + ")";
        text += " |";
      }
    }
    text += "\n";
  }
  text += OverBaseline(measured);
  for (const std::string& line :
       {RefusalsOf(measured), NamesBehind("Left out, since time was up", measured.left_out)}) {
    if (!line.empty()) text += "\n" + line + "\n";
  }
  return text;
}

}  // namespace cairn::kernels
