// SPDX-License-Identifier: Apache-2.0
// The value of a space (declared in record.h). It has no fixed size: its fields lie one after
// another, lists and texts behind their count.

#include <algorithm>
#include <cstring>
#include <limits>
#include <tuple>
#include <type_traits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status.h"
#include "codecs/types/bytes.h"
#include "service/tier/ssd/record.h"

namespace cairn {
namespace {

using proto::GroupGeometry;

class FieldsOut {
 public:
  explicit FieldsOut(std::string* target) : target_(target) {}

  template <typename Value>
  void Put(const Value& value) {
    static_assert(std::has_unique_object_representations_v<Value> || std::is_same_v<Value, double>);
    target_->append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  void PutCount(size_t count) {
    CAIRN_CHECK(count <= std::numeric_limits<uint16_t>::max());
    Put(static_cast<uint16_t>(count));
  }
  void PutText(std::string_view text) {
    PutCount(text.size());
    target_->append(text);
  }

 private:
  std::string* target_;
};

// Reads what FieldsOut wrote. Once a field does not fit, it and all later ones are zero or empty.
class FieldsIn {
 public:
  explicit FieldsIn(std::string_view rest) : rest_(rest) {}

  template <typename Value>
  Value Take() {
    Value value{};
    if (const std::string_view bytes = Bytes(sizeof(value)); !bytes.empty()) {
      std::memcpy(&value, bytes.data(), sizeof(value));
    }
    return value;
  }
  std::string TakeText() { return std::string(Bytes(Take<uint16_t>())); }
  // Of fields that take `bytes` at least; 0 if so many cannot follow.
  size_t TakeCount(size_t bytes) {
    const size_t count = Take<uint16_t>();
    is_whole_ = is_whole_ && count * bytes <= rest_.size();
    return is_whole_ ? count : 0;
  }
  bool IsAtEnd() const { return is_whole_ && rest_.empty(); }

 private:
  std::string_view Bytes(size_t bytes) {
    is_whole_ = is_whole_ && bytes <= rest_.size();
    const std::string_view taken = rest_.substr(0, is_whole_ ? bytes : 0);
    rest_.remove_prefix(taken.size());
    return taken;
  }

  std::string_view rest_;
  bool is_whole_ = true;
};

constexpr size_t kGroupBytesMin = 46;
constexpr size_t kCurrentBytes = 36;

void PutGroup(const GroupGeometry& group, FieldsOut& out) {
  out.Put(group.kind);
  out.Put(group.rope.kind);
  out.Put(group.kv_heads);
  out.Put(group.k_dim);
  out.Put(group.v_dim);
  out.Put(group.window_tokens);
  out.Put(group.state_bytes);
  out.Put(group.row_bytes);
  out.Put(group.rope.rotary_dims);
  out.Put(group.rope.base);
  out.PutCount(group.rope.inverse_frequencies.size());
  for (const double frequency : group.rope.inverse_frequencies) {
    out.Put(frequency);
  }
  out.PutCount(group.layers.size());
  for (const uint32_t layer : group.layers) {
    out.Put(layer);
  }
}

GroupGeometry TakeGroup(FieldsIn& in) {
  GroupGeometry group;
  group.kind = in.Take<GroupGeometry::Kind>();
  group.rope.kind = in.Take<proto::Rope::Kind>();
  group.kv_heads = in.Take<uint32_t>();
  group.k_dim = in.Take<uint32_t>();
  group.v_dim = in.Take<uint32_t>();
  group.window_tokens = in.Take<uint32_t>();
  group.state_bytes = in.Take<uint32_t>();
  group.row_bytes = in.Take<uint32_t>();
  group.rope.rotary_dims = in.Take<uint32_t>();
  group.rope.base = in.Take<double>();
  group.rope.inverse_frequencies.resize(in.TakeCount(sizeof(double)));
  std::ranges::generate(group.rope.inverse_frequencies, [&] { return in.Take<double>(); });
  group.layers.resize(in.TakeCount(sizeof(uint32_t)));
  std::ranges::generate(group.layers, [&] { return in.Take<uint32_t>(); });
  return group;
}

void PutIdentity(const proto::SpaceIdentity& identity, FieldsOut& out) {
  out.PutText(identity.tenant);
  out.PutText(identity.model);
  out.PutText(identity.weights_revision);
  out.Put(identity.dtype);
  out.Put(identity.tokens_per_block);
  out.PutCount(identity.groups.size());
  for (const GroupGeometry& group : identity.groups) {
    PutGroup(group, out);
  }
}

proto::SpaceIdentity TakeIdentity(FieldsIn& in) {
  proto::SpaceIdentity identity;
  identity.tenant = in.TakeText();
  identity.model = in.TakeText();
  identity.weights_revision = in.TakeText();
  identity.dtype = in.Take<codecs::DType>();
  identity.tokens_per_block = in.Take<uint32_t>();
  identity.groups.resize(in.TakeCount(kGroupBytesMin));
  std::ranges::generate(identity.groups, [&] { return TakeGroup(in); });
  return identity;
}

void PutCurrent(const SpaceRecord::Current& current, FieldsOut& out) {
  out.Put(static_cast<uint16_t>(current.group));
  out.Put(current.kind);
  out.Put(static_cast<uint8_t>(current.is_mined ? 1 : 0));
  out.Put(current.id);
}

// Groups of the identity, ascending, each kind once.
bool IsInOrder(const SpaceRecord& record) {
  const auto place = [](const SpaceRecord::Current& c) { return std::tuple(c.group, c.kind); };
  for (size_t i = 0; i < record.current.size(); ++i) {
    if (record.current[i].group >= record.identity.groups.size() ||
        (i > 0 && place(record.current[i - 1]) >= place(record.current[i]))) {
      return false;
    }
  }
  return true;
}

bool IsInRange(const SpaceRecord& record) {
  return record.recipe.size() <= kRecipeNameBytesMax &&
         record.cold_recipe.size() <= kRecipeNameBytesMax &&
         proto::Validate(record.identity).ok() &&
         proto::FingerprintOf(record.identity) == record.fingerprint && IsInOrder(record);
}

}  // namespace

std::string EncodeSpace(std::string_view key, const SpaceRecord& record) {
  CAIRN_CHECK(IsInRange(record));
  std::string value;
  FieldsOut out(&value);
  const bool has_policy = !record.cold_recipe.empty() || record.ttl_s != 0;
  out.Put(has_policy ? kSpaceVersionWithPolicy : kSpaceVersion);
  out.Put(record.fingerprint);
  PutIdentity(record.identity, out);
  out.PutText(record.recipe);
  out.PutCount(record.current.size());
  for (const SpaceRecord::Current& current : record.current) {
    PutCurrent(current, out);
  }
  if (has_policy) {
    out.PutText(record.cold_recipe);
    out.Put(record.ttl_s);
  }
  SealRecord(key, &value);
  return value;
}

absl::StatusOr<SpaceRecord> ParseSpace(std::string_view key, std::string_view value) {
  const bool has_policy =
      !value.empty() && static_cast<uint8_t>(value[0]) == kSpaceVersionWithPolicy;
  CAIRN_ASSIGN_OR_RETURN(
      const std::string_view content,
      OpenRecord(key, value, has_policy ? kSpaceVersionWithPolicy : kSpaceVersion));
  FieldsIn in(content);
  SpaceRecord record;
  record.fingerprint = in.Take<proto::Fingerprint>();
  record.identity = TakeIdentity(in);
  record.recipe = in.TakeText();
  record.current.resize(in.TakeCount(kCurrentBytes));
  bool are_flags_known = true;
  for (SpaceRecord::Current& current : record.current) {
    current.group = in.Take<uint16_t>();
    current.kind = in.Take<proto::SideObjectKind>();
    const auto flags = in.Take<uint8_t>();
    are_flags_known = are_flags_known && flags <= 1 &&
                      (current.kind == proto::SideObjectKind::kProfile ||
                       current.kind == proto::SideObjectKind::kBank);
    current.is_mined = flags == 1;
    current.id = in.Take<codecs::Digest>();
  }
  if (has_policy) {
    record.cold_recipe = in.TakeText();
    record.ttl_s = in.Take<uint32_t>();
  }
  if (!in.IsAtEnd()) {
    return absl::DataLossError("record of a space: wrong length");
  }
  if (!are_flags_known) {
    return absl::UnimplementedError("record of a space: a side object this program does not know");
  }
  if (!IsInRange(record)) {
    return absl::DataLossError("record of a space: a field is out of range");
  }
  return record;
}

}  // namespace cairn
