// SPDX-License-Identifier: Apache-2.0
#include "service/policy/yaml_text.h"

#include <yaml-cpp/eventhandler.h>

#include <sstream>

namespace cairn {
namespace {

// Keeps where the last document started.
class DocumentStarts final : public YAML::EventHandler {
 public:
  const YAML::Mark& last() const { return last_; }

  void OnDocumentStart(const YAML::Mark& mark) override { last_ = mark; }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
  void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t,
                const std::string&) override {}
  void OnSequenceStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                       YAML::EmitterStyle::value) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                  YAML::EmitterStyle::value) override {}
  void OnMapEnd() override {}

 private:
  YAML::Mark last_;
};

}  // namespace

YamlText LoadYaml(const std::string& text) {
  YamlText loaded{.first = YAML::Node(YAML::NodeType::Undefined), .second = std::nullopt};
  std::istringstream stream(text);
  YAML::Parser parser(stream);
  DocumentStarts starts;
  if (!parser.HandleNextDocument(starts)) return loaded;
  if (parser.HandleNextDocument(starts)) loaded.second = starts.last();
  loaded.first = YAML::Load(text);
  return loaded;
}

}  // namespace cairn
