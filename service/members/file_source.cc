// SPDX-License-Identifier: Apache-2.0
#include "service/members/file_source.h"

#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "base/file.h"
#include "base/status.h"
#include "base/text.h"
#include "service/config_members.h"
#include "service/config_value.h"

namespace cairn {
namespace {

constexpr size_t kFileBytesMax = size_t{1} << 20;
// A file that is being written in place must not be taken in part.
constexpr absl::Duration kSettleTime = absl::Milliseconds(20);

class FileSource final : public PolledSource {
 public:
  FileSource(std::string path, absl::Duration period)
      : PolledSource(period), path_(std::move(path)) {}
  ~FileSource() override { Stop(); }

 protected:
  absl::StatusOr<std::vector<ListedMember>> Read() override {
    absl::StatusOr<std::string> text = ReadFile(path_, kFileBytesMax);
    if (text.ok() && *text != seen_) {
      absl::SleepFor(kSettleTime);
      const absl::StatusOr<std::string> again = ReadFile(path_, kFileBytesMax);
      if (again != text) return absl::UnavailableError(absl::StrCat(path_, ": is being written"));
      seen_ = *text;
    }
    CAIRN_RETURN_IF_ERROR(text.status());
    absl::StatusOr<std::vector<ListedMember>> listed = ParseMemberFile(*text);
    if (!listed.ok()) return Annotate(listed.status(), path_);
    return listed;
  }

 private:
  const std::string path_;
  std::string seen_;
};

}  // namespace

absl::StatusOr<std::vector<ListedMember>> ParseMemberFile(std::string_view text) {
  std::vector<ListedMember> listed;
  std::set<std::string> names;
  int number = 0;
  for (const absl::string_view line : absl::StrSplit(ToAbsl(text), '\n')) {
    ++number;
    const absl::string_view kept = absl::StripAsciiWhitespace(line.substr(0, line.find('#')));
    if (kept.empty()) continue;
    const std::vector<std::string> words =
        absl::StrSplit(kept, absl::ByAnyChar(" \t"), absl::SkipEmpty());
    const size_t equals = words[0].find('=');
    ListedMember one;
    if (equals != std::string::npos) {
      one.name = words[0].substr(0, equals);
      one.address = words[0].substr(equals + 1);
    }
    if (words.size() == 2) one.zone = words[1];
    const absl::StatusOr<HostPort> address = ParseHostPort(one.address);
    const bool is_good = IsPlainName(one.name, kMemberNameBytesMax) && address.ok() &&
                         address->port != 0 && words.size() <= 2 &&
                         (words.size() < 2 || IsPlainName(one.zone, kMemberNameBytesMax));
    if (!is_good) {
      return absl::InvalidArgumentError(
          absl::StrCat("line ", number, ": expected NAME=HOST:PORT [ZONE]"));
    }
    if (!names.insert(one.name).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("line ", number, ": ", one.name, " is there twice"));
    }
    listed.push_back(std::move(one));
  }
  return listed;
}

std::unique_ptr<MemberSource> MakeFileSource(std::string path, absl::Duration period) {
  return std::make_unique<FileSource>(std::move(path), period);
}

}  // namespace cairn
