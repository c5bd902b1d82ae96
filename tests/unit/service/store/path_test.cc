// SPDX-License-Identifier: Apache-2.0
// The paths of put and get over the host tier.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "codecs/checksum/checksum.h"
#include "codecs/image/decode.h"
#include "service/active_backend.h"
#include "tests/support/log_capture.h"
#include "tests/support/metric_capture.h"
#include "tests/support/store_fixture.h"
#include "tests/unit/service/store/nothing_held.h"

namespace cairn {
namespace {

using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using Form = proto::Form;

std::vector<std::byte> CopyOf(std::span<const std::byte> bytes) {
  return {bytes.begin(), bytes.end()};
}

TEST(PutGetTest, RawComesBackBitForBit) {
  StoreFixture store;
  const SpaceEntry& space = store.OpenSpace();
  const auto key = StoreFixture::Key(1);
  const auto whole = StoreFixture::Whole(space);
  const auto reply = store.PutSource(space, key, whole);
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_FALSE(reply->is_duplicate);
  EXPECT_GT(reply->image_bytes, 0u);
  {
    const auto answer = store.RunGet(space, key, whole);
    ASSERT_TRUE(answer.ok()) << answer.status();
    EXPECT_EQ(CopyOf(answer->payload), StoreFixture::Source(space, key, 0, whole));
    EXPECT_EQ(answer->payload_crc32c, codecs::Crc32c(answer->payload));
    EXPECT_EQ(answer->reply.source_bytes, answer->payload.size());
    EXPECT_TRUE(answer->staging.is_empty()) << "sent as it lies";
    EXPECT_GT(store.index->pinned_bytes(), 0u);
  }
  ExpectNothingHeld(store);
}

TEST(PutGetTest, ImageGoesInAndOutUntouched) {
  StoreFixture store;
  const SpaceEntry& space = store.OpenSpace("kivi:4");
  const auto key = StoreFixture::Key(1);
  const auto whole = StoreFixture::Whole(space);
  const auto image = StoreFixture::Image(space, key, whole, "kivi:4");
  const auto frame = StoreFixture::PutFrame(space, key, whole, image, Form::kImage);
  ASSERT_TRUE(store.RunPut(frame, image, store.session).ok());
  const auto answer = store.RunGet(space, key, whole, Form::kImage);
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(CopyOf(answer->payload), image);
  EXPECT_EQ(answer->payload_crc32c, codecs::Crc32c(image));
  EXPECT_FALSE(answer->pin.is_empty());
}

TEST(PutGetTest, SourceIsEncodedByTheRecipeOfTheSpace) {
  StoreFixture store;
  const SpaceEntry& space = store.OpenSpace("kivi:2");
  const auto key = StoreFixture::Key(7);
  const auto whole = StoreFixture::Whole(space);
  ASSERT_TRUE(store.PutSource(space, key, whole).ok());
  const auto answer = store.RunGet(space, key, whole, Form::kImage);
  ASSERT_TRUE(answer.ok());
  EXPECT_EQ(CopyOf(answer->payload), StoreFixture::Image(space, key, whole, "kivi:2"));
}

TEST(PutGetTest, MissIsNotFoundAndCounted) {
  StoreFixture store;
  const SpaceEntry& space = store.OpenSpace();
  EXPECT_TRUE(absl::IsNotFound(
      store.RunGet(space, StoreFixture::Key(9), StoreFixture::Whole(space)).status()));
  MetricCapture metrics;
  store.gets->Report(metrics);
  EXPECT_EQ(metrics.Value("cairn_gets_total{outcome=\"miss\",tier=\"none\"}"), 1);
}

TEST(PutGetTest, HalvesOfTwoRanksAreReadWholeAndByLayer) {
  StoreFixture store;
  for (const std::string_view recipe : {"raw", "exact", "kivi:4"}) {
    const SpaceEntry& space = store.OpenSpace(recipe, [&] {
      auto identity = StoreFixture::Identity();
      identity.model = std::string(recipe);
      return identity;
    }());
    const auto key = StoreFixture::Key(3);
    const auto whole = StoreFixture::Whole(space);
    ASSERT_TRUE(store.PutSource(space, key, kRight).ok());
    EXPECT_FALSE(store.RunGet(space, key, whole).ok()) << "half a block is no block";
    ASSERT_TRUE(store.PutSource(space, key, kLeft).ok());
    const auto image = store.RunGet(space, key, whole, Form::kImage);
    ASSERT_TRUE(image.ok()) << image.status();
    EXPECT_EQ(CopyOf(image->payload), StoreFixture::Image(space, key, whole, recipe));
    EXPECT_EQ(image->payload_crc32c, codecs::Crc32c(image->payload));
    const codecs::Slice layer = {1, 1, 0, 4};
    const auto source = store.RunGet(space, key, layer);
    ASSERT_TRUE(source.ok());
    EXPECT_EQ(source->payload_crc32c, codecs::Crc32c(source->payload));
    if (recipe != "kivi:4") {
      EXPECT_EQ(CopyOf(source->payload), StoreFixture::Source(space, key, 0, layer));
    }
  }
}

TEST(PutGetTest, ImagesOfDifferentRecipesBecomeOneRawImage) {
  StoreFixture store;
  const SpaceEntry& space = store.OpenSpace("kivi:8");
  const auto key = StoreFixture::Key(4);
  ASSERT_TRUE(store.PutSource(space, key, kLeft).ok());
  const auto raw = StoreFixture::Image(space, key, kRight, "raw");
  ASSERT_TRUE(
      store
          .RunPut(StoreFixture::PutFrame(space, key, kRight, raw, Form::kImage), raw, store.session)
          .ok());
  const auto answer = store.RunGet(space, key, StoreFixture::Whole(space), Form::kImage);
  ASSERT_TRUE(answer.ok()) << answer.status();
  codecs::ImageView view;
  ASSERT_EQ(codecs::ParseImage(answer->payload, &view), codecs::Error::kOk);
  EXPECT_TRUE(view.spec().recipe.IsLossless());
  std::vector<std::byte> right(StoreFixture::Source(space, key, 0, kRight).size());
  ASSERT_EQ(codecs::Decode(ActiveBackend(), view, kRight, right), codecs::Error::kOk);
  EXPECT_EQ(right, StoreFixture::Source(space, key, 0, kRight));
  const auto source = store.RunGet(space, key, StoreFixture::Whole(space));
  ASSERT_TRUE(source.ok());
  std::vector<std::byte> whole(source->payload.size());
  ASSERT_EQ(codecs::Decode(ActiveBackend(), view, StoreFixture::Whole(space), whole),
            codecs::Error::kOk);
  EXPECT_EQ(CopyOf(source->payload), whole);
}

TEST(PutGetTest, SecondPutIsADuplicateBeforeItsPayloadMoves) {
  StoreFixture store;
  const SpaceEntry& space = store.OpenSpace();
  const auto key = StoreFixture::Key(1);
  ASSERT_TRUE(store.PutSource(space, key, StoreFixture::Whole(space)).ok());
  const auto source = StoreFixture::Source(space, key, 0, kLeft);
  auto put = store.AdmitPut(StoreFixture::PutFrame(space, key, kLeft, source));
  ASSERT_TRUE(put.ok());
  EXPECT_TRUE((*put)->is_duplicate);
  EXPECT_TRUE((*put)->target().empty());
  EXPECT_EQ(store.host->staging_bytes(), 0u);
}

TEST(PutGetTest, OfTwoEqualPutsInFlightTheSecondToPublishIsTheDuplicate) {
  StoreFixture store;
  const SpaceEntry& space = store.OpenSpace();
  const auto key = StoreFixture::Key(1);
  const auto whole = StoreFixture::Whole(space);
  const auto source = StoreFixture::Source(space, key, 0, whole);
  const auto frame = StoreFixture::PutFrame(space, key, whole, source);
  auto first = store.AdmitPut(frame);
  auto second = store.AdmitPut(frame);
  ASSERT_TRUE(first.ok() && second.ok());
  const auto second_reply = store.Land(*std::move(second), source);
  const auto first_reply = store.Land(*std::move(first), source);
  ASSERT_TRUE(first_reply.ok() && second_reply.ok());
  EXPECT_FALSE(second_reply->is_duplicate);
  EXPECT_TRUE(first_reply->is_duplicate);
  EXPECT_EQ(store.index->figures().image_count, 1u);
}

TEST(PutGetTest, PayloadThatDoesNotMatchItsCrcIsDataLoss) {
  StoreFixture store;
  LogCapture log;
  const SpaceEntry& space = store.OpenSpace();
  const auto whole = StoreFixture::Whole(space);
  auto source = StoreFixture::Source(space, StoreFixture::Key(1), 0, whole);
  const auto frame = StoreFixture::PutFrame(space, StoreFixture::Key(1), whole, source);
  source[100] ^= std::byte{1};
  EXPECT_TRUE(absl::IsDataLoss(store.RunPut(frame, source, store.session).status()));
  EXPECT_EQ(store.index->figures().image_count, 0u);
  EXPECT_EQ(store.host->used_bytes(), 0u);
  ExpectNothingHeld(store);
  MetricCapture metrics;
  store.puts->Report(metrics);
  EXPECT_EQ(metrics.Value("cairn_corrupt_tiles_total{where=\"wire\"}"), 1);
  EXPECT_EQ(metrics.Value("cairn_puts_total{outcome=\"corrupt\"}"), 1);
  EXPECT_EQ(log.Lines().size(), 1u);
}

TEST(PutGetTest, ImageWithADamagedTileIsDataLossThoughItsPayloadCrcHolds) {
  StoreFixture store;
  LogCapture log;
  const SpaceEntry& space = store.OpenSpace();
  const auto whole = StoreFixture::Whole(space);
  auto image = StoreFixture::Image(space, StoreFixture::Key(1), whole, "raw");
  image.back() ^= std::byte{1};
  const auto frame =
      StoreFixture::PutFrame(space, StoreFixture::Key(1), whole, image, Form::kImage);
  EXPECT_TRUE(absl::IsDataLoss(store.RunPut(frame, image, store.session).status()));
  EXPECT_EQ(store.index->figures().image_count, 0u);
}

TEST(PutGetTest, ImageOfAnotherBlockIsRefused) {
  StoreFixture store;
  const SpaceEntry& space = store.OpenSpace("kivi:4");
  const auto key = StoreFixture::Key(1);
  const auto whole = StoreFixture::Whole(space);
  const auto put = [&](const std::vector<std::byte>& image) {
    return store
        .RunPut(StoreFixture::PutFrame(space, key, whole, image, Form::kImage), image,
                store.session)
        .status();
  };
  EXPECT_TRUE(absl::IsInvalidArgument(
      put(StoreFixture::Image(space, StoreFixture::Key(2), whole, "kivi:4"))));
  EXPECT_TRUE(absl::IsInvalidArgument(put(StoreFixture::Image(space, key, kLeft, "kivi:4"))));
  EXPECT_TRUE(absl::IsFailedPrecondition(put(StoreFixture::Image(space, key, whole, "kivi:2"))));
  auto longer = StoreFixture::Image(space, key, whole, "kivi:4");
  longer.resize(longer.size() + 16);
  EXPECT_TRUE(absl::IsInvalidArgument(put(longer)));
  EXPECT_TRUE(absl::IsInvalidArgument(put(std::vector<std::byte>(4096))));
  EXPECT_TRUE(put(StoreFixture::Image(space, key, whole, "raw")).ok()) << "lossless is welcome";
  EXPECT_EQ(store.host->staging_bytes(), 0u);
}

TEST(PutGetTest, DerivedKvStaysOutOfLosslessSpaces) {
  StoreFixture store;
  const SpaceEntry& space = store.OpenSpace();
  const auto whole = StoreFixture::Whole(space);
  const auto source = StoreFixture::Source(space, StoreFixture::Key(1), 0, whole);
  proto::Frame frame = StoreFixture::PutFrame(space, StoreFixture::Key(1), whole, source);
  std::get<proto::Put>(frame.body).is_derived = true;
  EXPECT_TRUE(absl::IsFailedPrecondition(store.RunPut(frame, source, store.session).status()));
}

TEST(PutGetTest, FieldsOutOfTheirLimitsAreNamed) {
  StoreFixture store;
  const SpaceEntry& space = store.OpenSpace();
  const auto whole = StoreFixture::Whole(space);
  const auto source = StoreFixture::Source(space, StoreFixture::Key(1), 0, whole);
  const auto refused = [&](auto change) {
    proto::Frame frame = StoreFixture::PutFrame(space, StoreFixture::Key(1), whole, source);
    change(frame, std::get<proto::Put>(frame.body));
    return store.AdmitPut(frame).status().ToString();
  };
  using Frame = proto::Frame;
  EXPECT_THAT(refused([](Frame&, proto::Put& p) { p.group = 1; }), HasSubstr("group 1"));
  EXPECT_THAT(refused([](Frame&, proto::Put& p) { p.slice.layer_count = 3; }), HasSubstr("slice"));
  EXPECT_THAT(refused([](Frame&, proto::Put& p) { p.slice.head_count = 0; }), HasSubstr("slice"));
  EXPECT_THAT(refused([](Frame&, proto::Put& p) { p.tokens = 15; }), HasSubstr("tokens"));
  EXPECT_THAT(refused([](Frame& f, proto::Put&) { f.payload_bytes -= 2; }),
              HasSubstr("payload_bytes"));
  EXPECT_THAT(refused([](Frame&, proto::Put& p) { p.space_id = 99; }), HasSubstr("NOT_FOUND"));
  EXPECT_THAT(refused([](Frame&, proto::Put& p) { p.parent = p.key; }), HasSubstr("parent"));
  EXPECT_THAT(refused([](Frame&, proto::Put& p) { p.parent = StoreFixture::Key(9); }),
              HasSubstr("first_position is 0"));
  EXPECT_EQ(store.host->staging_bytes(), 0u);
}

TEST(PutGetTest, AnotherTenantReachesNothingByKey) {
  StoreFixture store;
  const SpaceEntry& space = store.OpenSpace();
  const auto key = StoreFixture::Key(1);
  const auto whole = StoreFixture::Whole(space);
  ASSERT_TRUE(store.PutSource(space, key, whole).ok());
  store.session = store.OpenSession("rival");
  EXPECT_TRUE(absl::IsNotFound(store.RunGet(space, key, whole).status()));
  EXPECT_TRUE(absl::IsNotFound(store.PutSource(space, key, whole).status()));
  const SpaceEntry& theirs = store.OpenSpace("raw", StoreFixture::Identity("rival"));
  EXPECT_TRUE(absl::IsNotFound(store.RunGet(theirs, key, whole).status()));
}

TEST(PutGetTest, SessionThatEndsMeanwhileLeavesNothing) {
  StoreFixture store;
  const SpaceEntry& space = store.OpenSpace();
  const auto key = StoreFixture::Key(1);
  const auto whole = StoreFixture::Whole(space);
  const auto source = StoreFixture::Source(space, key, 0, whole);
  auto put = store.AdmitPut(StoreFixture::PutFrame(space, key, whole, source));
  ASSERT_TRUE(put.ok());
  EXPECT_EQ(store.sessions.in_flight_bytes(), source.size());
  store.sessions.End(store.session.id);
  EXPECT_EQ(store.sessions.in_flight_bytes(), 0u);
  EXPECT_EQ(store.sessions.quarantine_bytes(), source.size());
  EXPECT_TRUE(absl::IsUnavailable(store.Land(*std::move(put), source).status()));
  EXPECT_EQ(store.sessions.quarantine_bytes(), 0u);
  EXPECT_EQ(store.index->figures().image_count, 0u);
  EXPECT_EQ(store.host->used_bytes(), 0u);
  EXPECT_EQ(store.host->staging_bytes(), 0u);
}

void KeepRawThenEncode(std::string_view recipe) {
  StoreFixture store;
  const SpaceEntry& space = store.OpenSpace(recipe);
  const auto key = StoreFixture::Key(5);
  const auto whole = StoreFixture::Whole(space);
  const auto source = StoreFixture::Source(space, key, 0, whole);
  const auto frame = StoreFixture::PutFrame(space, key, whole, source);
  ASSERT_TRUE(store.RunPut(frame, source, store.session, /*keeps_raw=*/true).ok());
  EXPECT_EQ(store.index->pending_count(), 1u);
  auto before = store.RunGet(space, key, whole, Form::kImage);
  ASSERT_TRUE(before.ok());
  EXPECT_EQ(CopyOf(before->payload), StoreFixture::Image(space, key, whole, "raw"));
  store.upkeep->RunOnce();
  EXPECT_EQ(store.index->pending_count(), 0u);
  const auto after = store.RunGet(space, key, whole, Form::kImage);
  ASSERT_TRUE(after.ok());
  EXPECT_EQ(CopyOf(after->payload), StoreFixture::Image(space, key, whole, recipe));
  EXPECT_EQ(CopyOf(before->payload), StoreFixture::Image(space, key, whole, "raw"))
      << "who reads the old bytes keeps them";
  before = absl::NotFoundError("");
  EXPECT_EQ(store.host->used_bytes(), RoundedExtentBytes(after->payload.size()));
}

TEST(PutGetTest, BusyPoolKeepsTheBlockRawAndUpkeepEncodesIt) {
  KeepRawThenEncode("kivi:4");
  KeepRawThenEncode("exact");
}

TEST(PutGetTest, WhatWaitedPastItsDeadlineIsNotStarted) {
  StoreFixture store;
  const SpaceEntry& space = store.OpenSpace();
  const auto key = StoreFixture::Key(1);
  const auto whole = StoreFixture::Whole(space);
  const auto source = StoreFixture::Source(space, key, 0, whole);
  auto put = store.AdmitPut(StoreFixture::PutFrame(space, key, whole, source), store.session,
                            store.clock.Now() + absl::Seconds(1));
  ASSERT_TRUE(put.ok());
  store.clock.Advance(absl::Seconds(1));
  EXPECT_TRUE(absl::IsDeadlineExceeded(store.Land(*std::move(put), source).status()));
  EXPECT_EQ(store.index->figures().image_count, 0u);
  ASSERT_TRUE(store.PutSource(space, key, whole).ok());
  proto::Get body;
  body.space_id = space.id();
  body.key = key;
  absl::Status status;
  StoreFixture::RunGet(*store.gets, body, StoreFixture::RequestOf(store.session, store.clock.Now()),
                       0, [&](const absl::StatusOr<Answer>& answer) { status = answer.status(); });
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  ExpectNothingHeld(store);
}

TEST(PutGetTest, TooSmallATargetSaysWhatIsNeeded) {
  StoreFixture store;
  const SpaceEntry& space = store.OpenSpace();
  const auto key = StoreFixture::Key(1);
  ASSERT_TRUE(store.PutSource(space, key, StoreFixture::Whole(space)).ok());
  proto::Get body;
  body.space_id = space.id();
  body.key = key;
  body.slice = {0, 2, 0, 4};
  body.form = Form::kImage;
  const auto answer = store.RunGet(body, store.session, 100);
  EXPECT_TRUE(absl::IsInvalidArgument(answer.status()));
  EXPECT_THAT(std::string(answer.status().message()), HasSubstr("target_bytes"));
}

}  // namespace
}  // namespace cairn
