// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "service/members/file_source.h"
#include "tests/conformance/members/source.h"
#include "tests/support/temp_dir.h"

namespace cairn {
namespace {

class FileRegistry final : public Registry {
 public:
  std::unique_ptr<MemberSource> MakeSource() override {
    return MakeFileSource(folder_.File("members"), absl::Milliseconds(10));
  }
  void List(const std::vector<ListedMember>& members) override {
    std::string text;
    for (const ListedMember& one : members) {
      absl::StrAppend(&text, one.name, "=", one.address, " ", one.zone, "\n");
    }
    Write(text);
  }
  void Break() override { std::filesystem::rename(folder_.File("members"), folder_.File("away")); }
  void Mend() override { std::filesystem::rename(folder_.File("away"), folder_.File("members")); }
  void Lie() override { Write("these are\nnot members\n"); }

 private:
  void Write(const std::string& text) {
    std::ofstream(folder_.File("new")) << text;
    std::filesystem::rename(folder_.File("new"), folder_.File("members"));
  }
  TempDir folder_;
};

INSTANTIATE_TEST_SUITE_P(File, MemberSources,
                         ::testing::Values(RegistryCase{
                             "file", [] { return std::make_unique<FileRegistry>(); }, ""}));

}  // namespace
}  // namespace cairn
