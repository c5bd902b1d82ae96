// SPDX-License-Identifier: Apache-2.0
// What members say of each other. The first byte chooses: the text of a file of members, the reply
// to a question who has blocks, batches of announcements, an offer, or the answer to one. A file
// that parses has distinct names; a reply that parses names known members only; a table of
// announcements knows of each member what its own batches said, whatever others announced; and an
// offer that parses has all of each block, and slices that its space has.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "base/check.h"
#include "cairn/v1/peer.pb.h"
#include "codecs/types/shape.h"
#include "proto/convert.h"
#include "proto/location.h"
#include "service/config_members.h"
#include "service/members/file_source.h"
#include "service/peer/announced.h"
#include "service/peer/located.h"
#include "service/peer/location_table.h"
#include "service/peer/offer.h"

namespace cairn {
namespace {

void ReadMemberFile(std::string_view text) {
  const auto listed = ParseMemberFile(text);
  if (!listed.ok()) {
    CAIRN_CHECK(absl::IsInvalidArgument(listed.status()));
    return;
  }
  std::set<std::string> names;
  for (const ListedMember& member : *listed) {
    CAIRN_CHECK(IsPlainName(member.name, kMemberNameBytesMax));
    CAIRN_CHECK(names.insert(member.name).second);
  }
}

void ReadReply(std::string_view bytes) {
  v1::LocateReply reply;
  if (!reply.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return;
  const size_t count = reply.counts().size();
  CAIRN_CHECK(!ParseLocated(reply, count + 1).ok());
  const auto located = ParseLocated(reply, count);
  if (!located.ok()) {
    CAIRN_CHECK(absl::IsInvalidArgument(located.status()));
    return;
  }
  CAIRN_CHECK(located->holders.size() == count);
  for (const HolderList& holders : located->holders) {
    CAIRN_CHECK(holders.size() <= kHoldersMax);
    for (const uint16_t holder : holders) CAIRN_CHECK(holder < located->members.size());
  }
  const auto again = ParseLocated(ReplyOf(*located), count);
  CAIRN_CHECK(again.ok() && again->members == located->members);
  CAIRN_CHECK(again->holders == located->holders);
}

void ReadOffer(std::string_view bytes) {
  constexpr size_t kKeysMax = 16;
  v1::OfferRequest request;
  if (!request.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return;
  const auto offer = ParseOffer(request, kKeysMax);
  if (!offer.ok()) {
    CAIRN_CHECK(absl::IsInvalidArgument(offer.status()));
    return;
  }
  const size_t count = offer->keys.size();
  CAIRN_CHECK(count > 0 && count <= kKeysMax);
  CAIRN_CHECK(offer->parents.size() == count && offer->image_bytes.size() == count);
  const std::vector<codecs::GroupShape> shapes = proto::ShapesOf(offer->identity);
  CAIRN_CHECK(!offer->slices.empty());
  for (const GroupSlice& slice : offer->slices) {
    CAIRN_CHECK(slice.group < shapes.size());
    CAIRN_CHECK(slice.layer_count > 0 && slice.head_count > 0);
    CAIRN_CHECK(slice.layer_first + slice.layer_count <= shapes[slice.group].layers);
    CAIRN_CHECK(slice.head_first + slice.head_count <= shapes[slice.group].heads);
  }
  const auto again = ParseOffer(RequestOf(*offer), kKeysMax);
  CAIRN_CHECK(again.ok() && again->keys == offer->keys && again->parents == offer->parents);
}

void ReadAnswers(std::string_view bytes) {
  v1::OfferReply reply;
  if (!reply.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return;
  const size_t count = reply.answers().size();
  CAIRN_CHECK(!ParseAnswers(reply, count + 1).ok());
  const auto answers = ParseAnswers(reply, count);
  if (!answers.ok()) {
    CAIRN_CHECK(absl::IsInvalidArgument(answers.status()));
    return;
  }
  CAIRN_CHECK(ReplyOf(*answers).answers() == reply.answers());
}

// --- Announcements -------------------------------------------------------------------------------

// A member as its own batches describe it.
struct Announcer {
  uint64_t incarnation = 1, epoch = 0, next = 0;
  bool has_begun = false;
  std::set<uint8_t> stored;
};

constexpr uint8_t kNames = 64;  // few, so that no bucket of the smallest table is full
proto::LocationName NameOf(uint8_t number) {
  proto::LocationName name{};
  auto* bytes = reinterpret_cast<uint8_t*>(&name);
  for (size_t i = 0; i < sizeof(name); ++i) bytes[i] = static_cast<uint8_t>(number * (i + 3) + i);
  return name;
}

class Bytes {
 public:
  explicit Bytes(std::string_view bytes) : bytes_(bytes) {}
  bool is_over() const { return next_ >= bytes_.size(); }
  uint8_t Take() { return is_over() ? uint8_t{0} : static_cast<uint8_t>(bytes_[next_++]); }

 private:
  std::string_view bytes_;
  size_t next_ = 0;
};

void Announce(std::string_view input) {
  LocationTable table(LocationTable::kBytesMin);
  Announced announced(table);
  std::map<uint16_t, Announcer> announcers;
  for (Bytes bytes(input); !bytes.is_over();) {
    const uint8_t act = bytes.Take(), counts = bytes.Take(), step = bytes.Take();
    const auto number = static_cast<uint16_t>(1 + act % 3);
    Announcer& announcer = announcers[number];
    const bool is_reset = (act & 4) != 0, is_new = (act & 8) != 0;
    Member from;
    from.number = number;
    from.incarnation = announcer.incarnation + ((act >> 4) & 1);
    std::vector<proto::LocationName> stored, removed;
    std::vector<uint8_t> stored_numbers, removed_numbers;
    for (int i = counts & 7; i > 0; --i) {
      stored_numbers.push_back(bytes.Take() % (kNames / 2));
      stored.push_back(NameOf(stored_numbers.back()));
    }
    for (int i = counts >> 5; i > 0; --i) {
      removed_numbers.push_back(bytes.Take() % kNames);
      removed.push_back(NameOf(removed_numbers.back()));
    }
    const AnnouncedBatch batch = {.epoch = announcer.epoch + (is_new ? 1 : 0),
                                  .first_sequence = announcer.next + step - (step < 128 ? 0 : 256),
                                  .is_reset = is_reset,
                                  .stored = stored,
                                  .removed = removed};
    const bool is_known = announcer.has_begun && batch.epoch == announcer.epoch &&
                          from.incarnation == announcer.incarnation;
    const bool begins = is_reset && !is_known;
    const absl::Status status = announced.Take(from, batch);
    if (begins) {
      announcer = {.incarnation = from.incarnation,
                   .epoch = batch.epoch,
                   .next = batch.first_sequence,
                   .has_begun = true,
                   .stored = {}};
    }
    const bool is_next = batch.first_sequence == announcer.next;
    CAIRN_CHECK(!begins || status.ok());
    if (!status.ok()) {
      CAIRN_CHECK(absl::IsFailedPrecondition(status) && !(is_known && is_next));
    } else if (is_next) {
      for (const uint8_t name : removed_numbers) announcer.stored.erase(name);
      for (const uint8_t name : stored_numbers) announcer.stored.insert(name);
      announcer.next += stored.size() + removed.size();
    }
  }
  for (uint8_t name = 0; name < kNames; ++name) {
    std::set<uint16_t> expected, found;
    for (const auto& [number, announcer] : announcers) {
      if (announcer.stored.contains(name)) expected.insert(number);
    }
    for (const LocationTable::Holder& holder : table.Find(NameOf(name))) {
      CAIRN_CHECK(found.insert(holder.member).second);
    }
    CAIRN_CHECK(found == expected);
  }
}

}  // namespace
}  // namespace cairn

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 5) {
    case 0:
      cairn::ReadMemberFile(bytes);
      break;
    case 1:
      cairn::ReadReply(bytes);
      break;
    case 2:
      cairn::Announce(bytes);
      break;
    case 3:
      cairn::ReadOffer(bytes);
      break;
    default:
      cairn::ReadAnswers(bytes);
  }
  return 0;
}
