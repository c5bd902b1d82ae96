// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a source of the member list has to do, whatever it reads. Each source gives a Registry: the
// thing that it reads, under the control of the test.

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "service/members/member_source.h"

namespace cairn {

class Registry {
 public:
  virtual ~Registry() = default;
  // Whether the source gives the members' names and zones.
  virtual bool has_names() const { return true; }
  virtual bool has_zones() const { return true; }
  // Whether List() is one change for the source, and not one for each member.
  virtual bool has_bulk_lists() const { return true; }
  // The port of all members, if they have one in common; 0: each has its own.
  virtual uint16_t port() const { return 0; }
  // The largest number of members that it can list.
  virtual int members_max() const { return 1000; }

  virtual std::unique_ptr<MemberSource> MakeSource() = 0;
  virtual void List(const std::vector<ListedMember>& members) = 0;
  // Cannot be read any more, until Mend().
  virtual void Break() = 0;
  virtual void Mend() = 0;
  // Answers something that is not a list.
  virtual void Lie() = 0;
};

struct RegistryCase {
  std::string name;
  // Null: not here; the test is skipped with `missing`.
  std::function<std::unique_ptr<Registry>()> make;
  std::string missing;
};

class MemberSources : public ::testing::TestWithParam<RegistryCase> {};

}  // namespace cairn
