// SPDX-License-Identifier: Apache-2.0
// What the .proto files put on the wire is listed in cairn.v1.txt, a line each, so that a change of
// them is seen in a diff. Clients and daemons of different versions meet: a line may be added; one
// that changes or goes breaks them (docs say what may be mixed).
#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cairn/v1/admin.pb.h"
#include "cairn/v1/events.pb.h"
#include "cairn/v1/peer.pb.h"
#include "cairn/v1/store.pb.h"

namespace cairn {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::EnumDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::FileDescriptor;
using google::protobuf::MethodDescriptor;
using google::protobuf::ServiceDescriptor;

std::string TypeOf(const FieldDescriptor& field) {
  if (field.message_type() != nullptr) {
    return field.message_type()->full_name();
  }
  return field.enum_type() != nullptr ? field.enum_type()->full_name() : field.type_name();
}

void Append(const EnumDescriptor& type, std::vector<std::string>& lines) {
  for (int i = 0; i < type.value_count(); ++i) {
    lines.push_back(
        absl::StrCat(type.full_name(), " = ", type.value(i)->number(), " ", type.value(i)->name()));
  }
}

void Append(const Descriptor& message, std::vector<std::string>& lines) {
  if (message.options().map_entry()) {
    return;  // its field says all
  }
  for (int i = 0; i < message.field_count(); ++i) {
    const FieldDescriptor& field = *message.field(i);
    std::string type = TypeOf(field);
    if (field.is_map()) {
      const Descriptor& entry = *field.message_type();
      type = absl::StrCat("map<", TypeOf(*entry.field(0)), ", ", TypeOf(*entry.field(1)), ">");
    } else if (field.is_repeated()) {
      type = absl::StrCat(field.is_packed() ? "packed " : "repeated ", type);
    } else if (field.has_optional_keyword()) {
      type = absl::StrCat("optional ", type);
    }
    const auto* oneof = field.real_containing_oneof();
    lines.push_back(absl::StrCat(message.full_name(), " = ", field.number(), " ", field.name(),
                                 ": ", type, oneof == nullptr ? "" : " in ",
                                 oneof == nullptr ? "" : oneof->name()));
  }
  for (int i = 0; i < message.reserved_range_count(); ++i) {
    const Descriptor::ReservedRange& range = *message.reserved_range(i);
    lines.push_back(
        absl::StrCat(message.full_name(), " reserves ", range.start, " to ", range.end - 1));
  }
  for (int i = 0; i < message.nested_type_count(); ++i) Append(*message.nested_type(i), lines);
  for (int i = 0; i < message.enum_type_count(); ++i) Append(*message.enum_type(i), lines);
}

void Append(const ServiceDescriptor& service, std::vector<std::string>& lines) {
  for (int i = 0; i < service.method_count(); ++i) {
    const MethodDescriptor& method = *service.method(i);
    lines.push_back(absl::StrCat(
        service.full_name(), "/", method.name(), "(", method.client_streaming() ? "stream " : "",
        method.input_type()->full_name(), ") -> ", method.server_streaming() ? "stream " : "",
        method.output_type()->full_name()));
  }
}

std::vector<std::string> Lines() {
  std::vector<std::string> lines;
  for (const FileDescriptor* file :
       {v1::OpenSessionRequest::descriptor()->file(), v1::TierInfo::descriptor()->file(),
        v1::BlockEvent::descriptor()->file(), v1::PeerSelf::descriptor()->file()}) {
    for (int i = 0; i < file->service_count(); ++i) Append(*file->service(i), lines);
    for (int i = 0; i < file->message_type_count(); ++i) Append(*file->message_type(i), lines);
    for (int i = 0; i < file->enum_type_count(); ++i) Append(*file->enum_type(i), lines);
  }
  return lines;
}

TEST(ProtoGolden, EachFieldMethodAndValueIsListed) {
  const std::vector<std::string> lines = Lines();
  if (std::getenv("CAIRN_WRITE") != nullptr) {
    std::ofstream(CAIRN_GOLDEN_FILE) << absl::StrJoin(lines, "\n") << "\n";
  }
  std::vector<std::string> listed;
  std::ifstream file(CAIRN_GOLDEN_FILE);
  for (std::string line; std::getline(file, line);) listed.push_back(line);
  for (const std::string& line : listed) {
    EXPECT_THAT(lines, testing::Contains(line)) << "old clients and daemons depend on it";
  }
  for (const std::string& line : lines) {
    EXPECT_THAT(listed, testing::Contains(line))
        << "new: CAIRN_WRITE=1 proto_golden_test lists it in " << CAIRN_GOLDEN_FILE;
  }
}

}  // namespace
}  // namespace cairn
