// SPDX-License-Identifier: Apache-2.0
// Kernels that attend to images as they are coded give what the plain loops make of decoded ones,
// within the tolerances of attention_fixture.h.
#include "tests/kernels/attention_fixture.h"

namespace cairn::kernels {
namespace {

using codecs::DType;
using codecs::Error;
using codecs::GroupKind;

constexpr uint16_t kTwoBlocks[] = {200, 50};

class AttentionTest : public AttentionFixture {
 protected:
  // Images of any lengths, which the fast kernels attend to but for those with rows.
  Sequence AnyFast(DType dtype, uint32_t images) {
    std::vector<uint16_t> tokens;
    for (uint32_t i = 0; i < images; ++i) {
      tokens.push_back(static_cast<uint16_t>(Below(3) == 0 ? 128 : 16 + Below(300)));
    }
    return MakeSequence(kFastRecipes[Below(std::size(kFastRecipes))], Kv(dtype, 128, 128), tokens);
  }
  void AddTail(Sequence* sequence, uint32_t tokens, const CacheShape& shape) {
    sequence->tail_tokens = tokens;
    sequence->tail_tokens_max = tokens + Below(3) * Below(100);
    sequence->tail_shape = shape;
  }
  static Tolerance Near(DType dtype) { return dtype == DType::kBf16 ? kNearBf16 : kNearFp16; }
};

TEST_F(AttentionTest, TilesOfAnyLength) {
  uint32_t small = 0;
  for (uint16_t tokens = 16; tokens <= 150; tokens = static_cast<uint16_t>(tokens + 1 + Below(3))) {
    const char* recipe = kFastRecipes[tokens % 4];
    SCOPED_TRACE(std::string(recipe) + " " + std::to_string(tokens));
    const uint32_t dim = tokens % 8 == 7 ? 64 : 128;  // of fp8 alone
    Sequence sequence = MakeSequence(recipe, Kv(DType::kFp16, dim, dim), {&tokens, 1});
    Check(std::move(sequence), kNearFp16);
    EXPECT_EQ(Works(AttendList::kNarrow) + Works(AttendList::kWide), 0U);
    small += Works(AttendList::kFp8Of64);
  }
  EXPECT_GT(small, 5U);
}

TEST_F(AttentionTest, ManyTilesOfAWarp) {
  works_wanted_ = 1;
  for (uint32_t round = 0; round < 8; ++round) {
    const DType dtype = round % 2 == 0 ? DType::kBf16 : DType::kFp16;
    Sequence sequence = AnyFast(dtype, 12);
    const bool is_peaked = round >= 4;  // a few tokens have nearly all of the weight
    sequence.spread = is_peaked ? 6.0F : 1.0F;
    const Tolerance near = Near(dtype);
    Check(std::move(sequence), is_peaked ? Tolerance{3 * near.output, 3 * near.log_sum} : near);
  }
}

TEST_F(AttentionTest, HeadsAndTokensThatAsk) {
  constexpr struct {
    uint32_t rows_of_token, query_tokens;
  } kAsked[] = {{1, 1}, {1, 5}, {2, 1}, {3, 2}, {4, 4}, {8, 1}, {8, 4}, {16, 1}, {7, 5}};
  for (const auto& asked : kAsked) {
    Sequence sequence = AnyFast(DType::kFp16, 2);
    sequence.rows_of_token = asked.rows_of_token;
    sequence.query_tokens = asked.query_tokens;
    AddTail(&sequence, asked.query_tokens + Below(60), AnyShape());
    sequence.is_causal = Below(2) == 0;
    SCOPED_TRACE(asked.rows_of_token * 100 + asked.query_tokens);
    Check(std::move(sequence), kNearFp16);
  }
}

TEST_F(AttentionTest, TailsOfAnyLengthInAnyCache) {
  for (uint32_t round = 0; round < 30; ++round) {
    const DType dtype = round % 3 == 0   ? DType::kBf16
                        : round % 3 == 1 ? DType::kFp16
                                         : DType::kFp32;
    Sequence sequence = MakeSequence("raw", Kv(dtype, 1 + Below(140), 1 + Below(140)), {});
    sequence.query_tokens = 1 + Below(4);
    sequence.is_causal = round % 2 == 0;
    AddTail(&sequence, 1 + Below(round % 5 == 0 ? 400 : 140), AnyShape());
    Check(std::move(sequence), kSame);
  }
}

TEST_F(AttentionTest, EveryFormThatHasAPlaceForEachCode) {
  uint32_t narrow = 0, wide = 0;
  for (const char* recipe : kRecipes) {
    for (uint32_t round = 0; round < 4; ++round) {
      const DType dtype = round % 2 == 0 ? DType::kBf16 : round == 1 ? DType::kFp16 : DType::kFp32;
      const codecs::TileShape shape = Kv(dtype, 16 + Below(round == 3 ? 140 : 60), 16 + Below(60));
      const uint16_t tokens[] = {static_cast<uint16_t>(16 + Below(round == 3 ? 280 : 80))};
      codecs::ImageSpec spec;
      ASSERT_TRUE(codecs::ParsePolicyRecipe(recipe, &spec.recipe) == Error::kOk ||
                  codecs::ParsePlannedRecipe(recipe, &spec.recipe) == Error::kOk);
      if (!WhyDecodeFirst(spec).empty()) break;
      SCOPED_TRACE(recipe);
      Sequence sequence = MakeSequence(recipe, shape, tokens);
      if (round == 2) AddTail(&sequence, 1 + Below(40), AnyShape());
      Check(std::move(sequence), kSame);
      narrow += Works(AttendList::kNarrow);
      wide += Works(AttendList::kWide);
    }
  }
  EXPECT_GT(narrow, 10U);
  EXPECT_GT(wide, 10U);
}

// Tails of any length and raw tiles of heads of 64 and 128, some of them where rows are at no
// multiple of 16 bytes.
TEST_F(AttentionTest, SourceBitsOfWholeHeads) {
  uint32_t plain = 0, small = 0, slow = 0;
  for (uint32_t round = 0; round < 16; ++round) {
    SCOPED_TRACE(round);
    const DType dtype = round % 2 == 0 ? DType::kBf16 : DType::kFp16;
    works_wanted_ = round % 4 == 0 ? 1 : 64;
    const auto tokens = static_cast<uint16_t>(1 + Below(300));
    const uint32_t dim = round % 8 < 4 ? 128 : 64;
    Sequence sequence =
        MakeSequence("raw", Kv(dtype, dim, dim), {&tokens, round % 3 == 0 ? 1U : 0U});
    sequence.rows_of_token = 1 + Below(5);
    sequence.query_tokens = 1 + Below(5);
    sequence.is_causal = round % 4 < 2;
    sequence.spread = round % 5 == 4 ? 6.0F : 1.0F;
    AddTail(&sequence, 1 + Below(round % 5 == 0 ? 500 : 140), AnyShape());
    const Tolerance near = Near(dtype);
    Check(std::move(sequence),
          round % 5 == 4 ? Tolerance{3 * near.output, 3 * near.log_sum} : near);
    plain += Works(AttendList::kPlainBf16) + Works(AttendList::kPlainFp16);
    small += Works(AttendList::kPlain64Bf16) + Works(AttendList::kPlain64Fp16);
    slow += Works(AttendList::kNarrow) + Works(AttendList::kWide);
  }
  EXPECT_GT(plain, 10U);
  EXPECT_GT(small, 10U);
  EXPECT_EQ(slow, 0U);
}

TEST_F(AttentionTest, Latents) {
  for (const char* recipe : {"raw", "kivi:4", "mixkvq", "cairn-hot:4.5", "fp8"}) {
    SCOPED_TRACE(recipe);
    const uint16_t tokens[] = {100, 40};
    const codecs::TileShape shape = {GroupKind::kLatent, DType::kBf16, 144, 0};
    Sequence sequence = MakeSequence(recipe, shape, tokens);
    sequence.rows_of_token = 20;
    AddTail(&sequence, 1 + Below(40), AnyShape());
    Check(std::move(sequence), kSame);
  }
}

TEST_F(AttentionTest, RowsAndRawTilesBesideCodes) {
  uint32_t affine = 0, narrow = 0;
  for (uint32_t round = 0; round < 12; ++round) {
    // Token 0 of a chain is a row in those of "+"; ott and logquant have more.
    const char* recipe = round % 3 == 0 ? "kivi:2+" : round % 3 == 1 ? "ott:4" : "logquant:2";
    const uint16_t tokens[] = {150, 64, 128};
    Sequence sequence = MakeSequence(recipe, Kv(DType::kFp16, 128, 128), tokens);
    if (round % 2 == 0) sequence.images[1] = MakeWritten("raw", sequence.tile, 33);
    sequence.images[2] = MakeWritten("kivi:4", sequence.tile, 200);
    AddTail(&sequence, Below(3) * 20, AnyShape());
    Check(std::move(sequence), kNearFp16);
    affine += Works(AttendList::kAffine4);
    narrow += Works(AttendList::kNarrow);
  }
  EXPECT_GT(affine, 10U);
  EXPECT_GT(narrow, 10U);
}

// A token whose scale would be no fp16.
TEST_F(AttentionTest, RowsBesideBytesOfE4m3) {
  for (const uint32_t plane : {0, 1}) {
    Sequence sequence = MakeSequence("fp8", Kv(DType::kBf16, 128, 128), kTwoBlocks);
    ImageOf& image = sequence.images[1];
    for (uint32_t tile = plane; tile < image.View().tile_count(); tile += 2) {
      const uint64_t row = (uint64_t{tile} * image.spec.tokens + 20 + tile) * 128;
      codecs::StoreElement(DType::kBf16, codecs::U8(image.source.data()), row + 3,
                           plane == 0 ? -1e8F : 1e8F);
    }
    size_t bytes = 0;
    image.bytes.resize(image.bytes.size() + 10000);
    ASSERT_EQ(codecs::Encode(codecs::ReferenceBackend(), image.spec, image.source, image.bytes,
                             &bytes, {}),
              Error::kOk);
    image.bytes.resize(bytes);
    Check(std::move(sequence), kNearBf16);
    EXPECT_GT(Works(AttendList::kFp8), 0U);
    EXPECT_GT(Works(AttendList::kNarrow), 0U);
  }
}

TEST_F(AttentionTest, NothingToAttendTo) {
  Sequence sequence = MakeSequence("raw", Kv(DType::kBf16, 64, 48), {});
  Check(std::move(sequence), kSame);
  sequence = MakeSequence("raw", Kv(DType::kBf16, 64, 48), {});
  sequence.tail_tokens_max = 40;
  Check(std::move(sequence), kSame);
  // A first token that does not see the tail, which is shorter than the draft.
  sequence = MakeSequence("raw", Kv(DType::kBf16, 64, 48), {});
  sequence.query_tokens = 5;
  sequence.is_causal = true;
  AddTail(&sequence, 3, {});
  Check(std::move(sequence), kSame);
}

TEST_F(AttentionTest, SequencesOfABatchApart) {
  for (uint32_t round = 0; round < 3; ++round) {
    works_wanted_ = round == 0 ? 1 : 64;
    std::vector<Sequence> sequences;
    for (uint32_t i = 0; i < 6; ++i) {
      sequences.push_back(
          i % 3 == 2 ? MakeSequence("fp8", Kv(DType::kBf16, 64, i == 2 ? 40 : 64), kTwoBlocks)
                     : AnyFast(DType::kBf16, 1 + Below(4)));
      AddTail(&sequences.back(), Below(30), AnyShape());
      Prepare(&sequences.back());
    }
    std::vector<AttendJob> jobs;
    for (const Sequence& sequence : sequences) jobs.push_back(JobOf(sequence));
    const Attended attended = Attend(jobs);
    ASSERT_EQ(attended.error, Error::kOk);
    ASSERT_EQ(attended.fault, "");
    if (attended.is_refused) continue;
    for (const uint32_t status : attended.status) EXPECT_EQ(status, 0U);
    for (const Sequence& sequence : sequences) {
      Compare(sequence, Reference(sequence), Near(sequence.tile.dtype));
    }
  }
}

TEST_F(AttentionTest, RefusesWhatHasToBeDecodedFirst) {
  for (const char* recipe : kRecipes) {
    SCOPED_TRACE(recipe);
    Sequence sequence;
    sequence.tile = Kv(DType::kBf16, 128, 128);
    sequence.images.push_back(MakeImage(recipe, sequence.tile, 40, codecs::Content::kBell));
    Prepare(&sequence);
    const codecs::ImageSpec& spec = sequence.images[0].spec;
    const codecs::RecipeId id = spec.recipe.id;
    const bool is_refused = id == codecs::RecipeId::kExact || id == codecs::RecipeId::kCairn ||
                            spec.recipe.NeedsPlan() || spec.domain != codecs::Domain::kAsWritten;
    EXPECT_EQ(WhyDecodeFirst(spec).starts_with("decode first: "), is_refused);
    EXPECT_EQ(WhyDecodeFirst(spec).empty(), !is_refused);
    const AttendJob job = JobOf(sequence);
    EXPECT_EQ(Attend({&job, 1}).error, is_refused ? Error::kUnknownRecipe : Error::kOk);
  }
}

TEST_F(AttentionTest, RefusesJobsThatAreNone) {
  Sequence sequence = AnyFast(DType::kBf16, 1);
  AddTail(&sequence, 20, {});
  sequence.tail_tokens_max = 20;
  Prepare(&sequence);
  const AttendJob right = JobOf(sequence);
  const auto error_of = [&](auto change) {
    AttendJob job = right;
    change(&job);
    return Attend({&job, 1}).error;
  };
  const auto is_shape = [&](auto change) { return error_of(change) == Error::kInvalidShape; };
  EXPECT_EQ(error_of([](AttendJob*) {}), Error::kOk);
  EXPECT_EQ(error_of([](AttendJob* job) { job->layer = 9; }), Error::kInvalidSlice);
  EXPECT_EQ(error_of([](AttendJob* job) { job->head_first = 2; }), Error::kInvalidSlice);
  EXPECT_TRUE(is_shape([](AttendJob* job) { job->query_heads = 5; }));
  EXPECT_TRUE(is_shape([](AttendJob* job) { job->query_heads = 0; }));
  EXPECT_TRUE(is_shape([](AttendJob* job) { job->query_tokens = 0; }));
  EXPECT_TRUE(is_shape([](AttendJob* job) { job->query_tokens = 1000000; }));
  EXPECT_TRUE(is_shape([](AttendJob* job) { job->queries += 2; }));
  EXPECT_TRUE(is_shape([](AttendJob* job) { job->outputs = nullptr; }));
  EXPECT_TRUE(is_shape([](AttendJob* job) { job->outputs = TwoBytesOn(job->outputs); }));
  EXPECT_TRUE(is_shape([](AttendJob* job) { job->log_sums = TwoBytesOn(job->log_sums); }));
  EXPECT_TRUE(is_shape([](AttendJob* job) { job->tail_tokens = TwoBytesOn(job->tail_tokens); }));
  EXPECT_TRUE(is_shape([](AttendJob* job) { job->tail.pages = TwoBytesOn(job->tail.pages); }));
  EXPECT_TRUE(is_shape([](AttendJob* job) { job->tile.k_dim = 64; }));
  EXPECT_TRUE(is_shape([](AttendJob* job) { job->tile = Kv(DType::kBf16, 577, 64); }));
  EXPECT_TRUE(is_shape([](AttendJob* job) { job->tail_tokens_max = 65536; }));
  EXPECT_EQ(error_of([](AttendJob* job) { job->tail_tokens_max = 5000; }), Error::kTargetTooSmall);
  works_wanted_ = 0;
  EXPECT_TRUE(is_shape([](AttendJob*) {}));
  works_wanted_ = 1;
  const std::vector<AttendJob> many(kAttendJobsMax + 1, right);
  EXPECT_EQ(Attend(many).error, Error::kTooLarge);
  const std::vector<AttendImage> images(kAttendImagesMax + 1, right.images[0]);
  EXPECT_EQ(error_of([&](AttendJob* job) { job->images = images; }), Error::kTooLarge);
  // Every part that there can be, and more.
  AttendPlan plan;
  std::vector<PlanUnit> room(10);
  EXPECT_EQ(MakeAttendPlan({&right, 1}, 1, std::as_writable_bytes(std::span(room)), &plan),
            Error::kTargetTooSmall);
  EXPECT_EQ(
      MakeAttendPlan({&right, 1}, 1, std::as_writable_bytes(std::span(room)).subspan(1), &plan),
      Error::kInvalidShape);
}

TEST_F(AttentionTest, TailsThatAreNone) {
  for (uint32_t round = 0; round < 6; ++round) {
    Sequence sequence = AnyFast(DType::kBf16, 2);
    AddTail(&sequence, 60, {.page_tokens = 16});
    sequence.tail_tokens_max = 70;
    Prepare(&sequence);
    if (round % 2 == 0) {
      sequence.cache->pages()[Below(4)] = static_cast<int32_t>(sequence.cache->view().page_count);
    } else {
      codecs::Store(sequence.device_tail_tokens->data(), round % 4 == 1 ? 71 : -1);
    }
    const AttendJob job = JobOf(sequence);
    const Attended attended = Attend({&job, 1});
    ASSERT_EQ(attended.error, Error::kOk);
    ASSERT_EQ(attended.fault, "");
    if (attended.is_refused) continue;
    EXPECT_EQ(attended.status,
              (std::vector<uint32_t>{0, 0, static_cast<uint32_t>(Error::kTargetTooSmall)}));
  }
}

}  // namespace
}  // namespace cairn::kernels
