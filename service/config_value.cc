// SPDX-License-Identifier: Apache-2.0
#include "service/config_value.h"

#include <arpa/inet.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status.h"
#include "base/text.h"
#include "base/units.h"
#include "codecs/recipe/recipe.h"
#include "service/limits.h"

namespace cairn {
namespace {

bool IsHostCharacter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
         c == '-' || c == '_';
}

bool IsIpv6Character(char c) { return IsHostCharacter(c) || c == ':' || c == '%'; }

}  // namespace

std::string HostPort::ToString() const {
  if (!enabled()) return "off";
  if (host.find(':') != std::string::npos) return absl::StrCat("[", host, "]:", port);
  return absl::StrCat(host, ":", port);
}

absl::StatusOr<HostPort> ParseHostPort(std::string_view text) {
  if (text == "off") return HostPort{};
  const absl::Status error =
      absl::InvalidArgumentError("expected HOST:PORT, [IPV6]:PORT or off, the port 0 to 65535");
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos || text.size() > 300) return error;
  std::string_view host = text.substr(0, colon);
  const absl::StatusOr<uint64_t> port = ParseInteger(text.substr(colon + 1));
  if (!port.ok() || *port > 65535) return error;
  const bool is_bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (is_bracketed) host = host.substr(1, host.size() - 2);
  if (host.empty() ||
      !std::ranges::all_of(host, is_bracketed ? IsIpv6Character : IsHostCharacter)) {
    return error;
  }
  return HostPort{std::string(host), static_cast<uint16_t>(*port)};
}

std::string ControlAddress::ToString() const {
  return is_unix() ? absl::StrCat("unix:", path) : tcp.ToString();
}

absl::StatusOr<ControlAddress> ParseControlAddress(std::string_view text) {
  constexpr std::string_view kUnix = "unix:";
  ControlAddress address;
  if (text.starts_with(kUnix)) {
    address.path = text.substr(kUnix.size());
    const absl::Status status = CheckSocketPath(address.path);
    if (!status.ok()) return status;
    if (address.path == "off") return absl::InvalidArgumentError("not an absolute path");
    return address;
  }
  absl::StatusOr<HostPort> tcp = ParseHostPort(text);
  if (!tcp.ok() || !tcp->enabled()) {
    return absl::InvalidArgumentError(
        "expected HOST:PORT, [IPV6]:PORT or unix:PATH, the port 0 to 65535");
  }
  address.tcp = *std::move(tcp);
  return address;
}

absl::StatusOr<std::vector<SsdFolder>> ParseSsd(std::string_view text) {
  std::vector<SsdFolder> folders;
  if (text == "off") return folders;
  for (const std::string& part : std::vector<std::string>(absl::StrSplit(ToAbsl(text), ','))) {
    const size_t equals = part.rfind('=');
    if (equals == std::string::npos) return absl::InvalidArgumentError("expected PATH=BYTES");
    SsdFolder folder = {.path = part.substr(0, equals), .budget_bytes = 0};
    while (folder.path.size() > 1 && folder.path.back() == '/') folder.path.pop_back();
    if (!folder.path.starts_with('/') || folder.path.size() < 2) {
      return absl::InvalidArgumentError("not an absolute path of a folder");
    }
    CAIRN_ASSIGN_OR_RETURN(folder.budget_bytes, ParseBytes(part.substr(equals + 1)));
    if (folder.budget_bytes < limits::kSsdBytesMin || folder.budget_bytes > limits::kSsdBytesMax) {
      return absl::InvalidArgumentError("bytes out of range");
    }
    if (std::ranges::find(folders, folder.path, &SsdFolder::path) != folders.end()) {
      return absl::InvalidArgumentError("a folder is named twice");
    }
    folders.push_back(std::move(folder));
  }
  if (folders.size() > limits::kSsdDevicesMax) {
    return absl::InvalidArgumentError("too many folders");
  }
  return folders;
}

absl::StatusOr<std::optional<GpuShare>> ParseGpu(std::string_view text) {
  if (text == "off") return std::optional<GpuShare>();
  const size_t equals = text.find('=');
  if (equals == std::string_view::npos) return absl::InvalidArgumentError("expected DEVICE=BYTES");
  CAIRN_ASSIGN_OR_RETURN(const uint64_t device, ParseInteger(text.substr(0, equals)));
  CAIRN_ASSIGN_OR_RETURN(const uint64_t bytes, ParseBytes(text.substr(equals + 1)));
  if (device > limits::kGpuDeviceMax) return absl::InvalidArgumentError("no such number");
  if (bytes < limits::kGpuBytesMin || bytes > limits::kGpuBytesMax) {
    return absl::InvalidArgumentError("bytes out of range");
  }
  return std::optional<GpuShare>({.device = static_cast<uint32_t>(device), .bytes = bytes});
}

absl::StatusOr<WriteBudgetValue> ParseWriteBudget(std::string_view text) {
  WriteBudgetValue value;
  if (text == "off") return value;
  if (text.ends_with('%')) {
    CAIRN_ASSIGN_OR_RETURN(value.percent, ParseInteger(text.substr(0, text.size() - 1)));
    if (value.percent < 1 || value.percent > 10'000) {
      return absl::InvalidArgumentError("percent out of range");
    }
    return value;
  }
  CAIRN_ASSIGN_OR_RETURN(value.bytes, ParseBytes(text));
  if (value.bytes < kGiB || value.bytes > 1024 * kTiB) {
    return absl::InvalidArgumentError("bytes a day out of range");
  }
  return value;
}

absl::StatusOr<std::optional<uint64_t>> ParseScrubRate(std::string_view text) {
  if (text == "auto") return std::optional<uint64_t>();
  CAIRN_ASSIGN_OR_RETURN(const uint64_t bytes, ParseBytes(text));
  if (bytes > limits::kScrubRateBytesCeiling) {
    return absl::InvalidArgumentError("too many bytes a second");
  }
  return std::optional<uint64_t>(bytes);
}

absl::StatusOr<std::optional<uint64_t>> ParseIndexBytes(std::string_view text) {
  if (text == "auto") return std::optional<uint64_t>();
  CAIRN_ASSIGN_OR_RETURN(const uint64_t bytes, ParseBytes(text));
  if (bytes < limits::kIndexBytesMin || bytes > limits::kIndexBytesMax) {
    return absl::InvalidArgumentError("bytes out of range");
  }
  return std::optional<uint64_t>(bytes);
}

absl::StatusOr<uint64_t> ParseInteger(std::string_view text) {
  uint64_t value = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (code != std::errc() || end != text.data() + text.size()) {
    return absl::InvalidArgumentError("expected a whole number");
  }
  return value;
}

std::string PrintBytes(uint64_t bytes) {
  std::string text = FormatBytes(bytes);
  const absl::StatusOr<uint64_t> back = ParseBytes(text);
  return back.ok() && *back == bytes ? text : absl::StrCat(bytes);
}

std::string VariableOf(std::string_view name) {
  std::string variable = "CAIRN_";
  for (const char c : name) {
    variable += c == '-' ? '_' : static_cast<char>(c >= 'a' && c <= 'z' ? c - 32 : c);
  }
  return variable;
}

// --- Checks --------------------------------------------------------------------------------------

namespace {

bool IsGraphic(char c) { return c > ' ' && c < 0x7f; }

}  // namespace

absl::Status CheckSocketPath(std::string_view text) {
  if (text == "off") return absl::OkStatus();
  if (text.size() < 2 || text.size() > 100 || text[0] != '/' || text.back() == '/' ||
      !std::ranges::all_of(text, IsGraphic)) {
    return absl::InvalidArgumentError("not a valid path for a unix socket");
  }
  return absl::OkStatus();
}

absl::Status CheckPath(std::string_view text) {
  if (text == "off") return absl::OkStatus();
  if (text.size() < 2 || text[0] != '/' || text.back() == '/' ||
      !std::ranges::all_of(text, IsGraphic)) {
    return absl::InvalidArgumentError("not an absolute path");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> ParseDoors(std::string_view text) {
  constexpr size_t kFolderBytesMax = 80;
  std::vector<std::string> folders;
  if (text == "off") return folders;
  for (std::string folder : std::vector<std::string>(absl::StrSplit(ToAbsl(text), ','))) {
    while (folder.size() > 1 && folder.back() == '/') folder.pop_back();
    if (folder.size() < 2 || folder.size() > kFolderBytesMax || folder[0] != '/' ||
        !std::ranges::all_of(folder, IsGraphic)) {
      return absl::InvalidArgumentError("not an absolute path of at most 80 bytes");
    }
    if (std::ranges::find(folders, folder) != folders.end()) {
      return absl::InvalidArgumentError("a folder is named twice");
    }
    folders.push_back(std::move(folder));
  }
  if (folders.size() > limits::kDoorsMax) return absl::InvalidArgumentError("too many folders");
  return folders;
}

std::string DoorControlPath(std::string_view folder) {
  return absl::StrCat(ToAbsl(folder), "/control.sock");
}
std::string DoorDataPath(std::string_view folder) {
  return absl::StrCat(ToAbsl(folder), "/cairnd.sock");
}

absl::Status CheckTlsCa(std::string_view text) {
  if (text == "off") return absl::OkStatus();
  for (const absl::string_view one : absl::StrSplit(ToAbsl(text), ',')) {
    const std::string_view path = ToStd(one.substr(one.find('=') + 1));
    CAIRN_RETURN_IF_ERROR(CheckPath(path));
    if (path == "off") return absl::InvalidArgumentError("not an absolute path");
  }
  return absl::OkStatus();
}

std::string_view TlsCaForm() {
  return "an absolute path, or DOMAIN=PATH; several separated by commas or one per flag; or off";
}

bool IsLoopback(std::string_view host) {
  in_addr address{};
  if (::inet_pton(AF_INET, std::string(host).c_str(), &address) == 1) {
    return (ntohl(address.s_addr) >> 24) == 127;
  }
  return host == "localhost" || host == "::1";
}

std::string_view PathForm() { return "an absolute path, or off"; }

absl::Status CheckPortRange(std::string_view text) {
  if (text == "any") return absl::OkStatus();
  const size_t dash = text.find('-');
  if (dash == std::string_view::npos) return absl::InvalidArgumentError("not a range");
  const absl::StatusOr<uint64_t> first = ParseInteger(text.substr(0, dash));
  const absl::StatusOr<uint64_t> last = ParseInteger(text.substr(dash + 1));
  if (!first.ok() || !last.ok() || *first < 1024 || *last > 65535 || *first > *last) {
    return absl::InvalidArgumentError("not a range");
  }
  return absl::OkStatus();
}

absl::Status CheckRecipe(std::string_view text) {
  codecs::Recipe recipe;
  return codecs::ParsePolicyRecipe(text, &recipe) == codecs::Error::kOk
             ? absl::OkStatus()
             : absl::InvalidArgumentError("not a recipe");
}

absl::Status CheckWriteBudget(std::string_view text) { return ParseWriteBudget(text).status(); }

absl::Status CheckScrubRate(std::string_view text) { return ParseScrubRate(text).status(); }

std::string_view WriteBudgetForm() {
  return "bytes a day, 1GiB to 1024TiB, or 1% to 10000% of the SSD tier a day, or off";
}

std::string_view ScrubRateForm() { return "auto, or bytes a second, at most 1GiB; 0: off"; }

}  // namespace cairn
