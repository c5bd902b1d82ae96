// SPDX-License-Identifier: Apache-2.0
// Side objects of each kind through the SDK and a real cairnd, from put to get.

#include <signal.h>

#include "codecs/backend/backends.h"
#include "codecs/image/decode.h"
#include "codecs/image/encode.h"
#include "tests/e2e/client/member_store.h"
#include "tests/support/side_object_bytes.h"

namespace cairn {
namespace {

using Bytes = std::vector<std::byte>;
constexpr auto kBf16 = codecs::DType::kBf16;
constexpr codecs::ProfileShape kShape = {.layers = kLayers,
                                         .heads = kHeads,
                                         .k_dim = kDim,
                                         .v_dim = kDim,
                                         .rope = codecs::RopeKind::kHalf,
                                         .rotary_first = 0,
                                         .rotary_dims = kDim,
                                         .has_basis = true};

// A kind over a plane.
using Case = std::tuple<SideObjectCase, Plane>;
std::string NameOf(const testing::TestParamInfo<Case>& info) {
  return NameOfKind(std::get<0>(info.param).kind) + PlaneName(std::get<1>(info.param));
}
auto AllCases(const std::vector<Plane>& planes = Planes()) {
  return testing::Combine(testing::Values(kProfileCase, kBankCase), testing::ValuesIn(planes));
}

class SideObjectTest : public StoreTest<PlaneAndTest<SideObjectCase>> {
 protected:
  static Bytes Made(uint64_t seed = 1, const codecs::ProfileShape& shape = kShape) {
    return SideObjectBytes(Param().kind, seed, shape);
  }
  static absl::StatusOr<InstalledSideObject> Install(StoreSpace& space, const Bytes& bytes) {
    return space.PutSideObject(0, Param().kind, bytes);
  }
  void SetUp() override {
    StoreTest::SetUp();
    client_ = Connect(Options());
    space_ = Open(client_, ToyIdentity(kBf16, Model()), Param().recipe);
    ASSERT_TRUE(client_ && space_);
    source_ = ToyValues(kBf16, *space_->SourceBytes({}), 5);
  }
  BlockKey Key(uint32_t first) const { return space_->DeriveChain(ToyTokens(1, first))[0]; }
  absl::Status Put(const BlockKey& key, Side side = Side::kDaemon, const GroupSlice& slice = {}) {
    Bytes part(*space_->SourceBytes(slice));
    const size_t row = part.size() / kLayers;
    const size_t head = source_.size() / kLayers / kHeads;
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      std::memcpy(&part[layer * row], &source_[layer * head * kHeads + slice.head_first * head],
                  row);
    }
    return space_->Put({.key = key, .slice = slice, .encode = side, .source = SourceBytes{part}})
        .status();
  }
  static absl::StatusOr<Bytes> ImageOf(StoreSpace& space, const BlockKey& key) {
    Bytes image(*space.ImageBytesMax({}));
    const auto got = space.Get({.key = key, .target = ImageTarget{image}});
    if (!got.ok()) return got.status();
    image.resize(got->bytes);
    return image;
  }
  static std::string RecipeOf(StoreSpace& space, const BlockKey& key) {
    const auto image = ImageOf(space, key);
    codecs::ImageView view;
    if (!image.ok() || codecs::ParseImage(*image, &view) != codecs::Error::kOk) return "";
    return std::string(codecs::FormatRecipe(view.spec().recipe));
  }
  // What a reader without Cairn's daemon gets out of the image.
  static Bytes DecodedByCodec(const Bytes& image, const Bytes& side_bytes) {
    proto::SideObjectContent side;
    codecs::ImageView view;
    const codecs::Backend* backend = nullptr;
    EXPECT_EQ(proto::SideObjectContent::Parse(Param().kind, side_bytes, &side), codecs::Error::kOk);
    EXPECT_EQ(codecs::ParseImage(image, &view), codecs::Error::kOk);
    EXPECT_EQ(codecs::ActiveBackend(&backend), codecs::Error::kOk);
    uint64_t bytes = 0;
    EXPECT_EQ(codecs::SourceBytes(view.spec().tile, view.spec().slice, view.spec().tokens, &bytes),
              codecs::Error::kOk);
    Bytes decoded(bytes);
    EXPECT_EQ(codecs::Decode(*backend, view, view.spec().slice, decoded, side.inputs()),
              codecs::Error::kOk);
    return decoded;
  }
  static absl::StatusOr<Bytes> ValuesOf(StoreSpace& space, const BlockKey& key, Side side,
                                        const GroupSlice& slice = {}) {
    Bytes values(*space.SourceBytes(slice));
    const auto got =
        space.Get({.key = key, .slice = slice, .decode = side, .target = SourceTarget{values}});
    if (!got.ok()) return got.status();
    return values;
  }

  std::unique_ptr<StoreClient> client_;
  std::unique_ptr<StoreSpace> space_;
  Bytes source_;
};
INSTANTIATE_TEST_SUITE_P(Of, SideObjectTest, AllCases(Stores()), NameOf);

// What one daemon has of them.
class SideObjectsOfOneTest : public SideObjectTest {};
INSTANTIATE_TEST_SUITE_P(Of, SideObjectsOfOneTest, AllCases(), NameOf);

TEST_P(SideObjectTest, BlocksAreExactUntilThereIsOneAndCodedWithItFromThenOn) {
  ASSERT_TRUE(Put(Key(1)).ok());
  EXPECT_EQ(RecipeOf(*space_, Key(1)), "exact");
  EXPECT_EQ(*ValuesOf(*space_, Key(1), Side::kClient), source_);
  const auto installed = Install(*space_, Made());
  ASSERT_TRUE(installed.ok()) << installed.status();
  EXPECT_TRUE(installed->was_created);
  Bytes images[2];
  for (const Side side : {Side::kDaemon, Side::kClient}) {
    ASSERT_TRUE(space_->Invalidate().ok());
    const absl::Status put = Put(Key(2), side);
    ASSERT_TRUE(put.ok()) << put;
    const auto image = ImageOf(*space_, Key(2));
    ASSERT_TRUE(image.ok()) << image.status();
    images[side == Side::kClient ? 1 : 0] = *image;
    EXPECT_EQ(RecipeOf(*space_, Key(2)), Param().recipe);
    const Bytes expected = DecodedByCodec(*image, Made());
    EXPECT_NE(expected, source_);
    EXPECT_EQ(*ValuesOf(*space_, Key(2), Side::kDaemon), expected);
    EXPECT_EQ(*ValuesOf(*space_, Key(2), Side::kClient), expected);
    const GroupSlice part{.layer_first = 1, .layer_count = 1};
    const size_t layer = expected.size() / kLayers;
    EXPECT_EQ(*ValuesOf(*space_, Key(2), Side::kClient, part),
              Bytes(expected.begin() + layer, expected.begin() + 2 * layer));
  }
  EXPECT_EQ(images[0], images[1]);
  ExpectFetched(3);
}

TEST_P(SideObjectTest, SlicesOfTwoRanksAreTheWholeForAClientThatHasNothingYet) {
  ASSERT_TRUE(Install(*space_, Made()).ok());
  ASSERT_TRUE(Put(Key(1)).ok());
  const Bytes whole = *ImageOf(*space_, Key(1));
  ASSERT_EQ(*space_->Invalidate(), 1u);
  ASSERT_TRUE(Put(Key(1), Side::kClient, {.head_first = 2, .head_count = 2}).ok());
  ASSERT_TRUE(Put(Key(1), Side::kDaemon, {.head_count = 2}).ok());
  const auto reader = Connect(Options());
  const auto space = Open(reader, ToyIdentity(kBf16, Model()), Param().recipe);
  ASSERT_TRUE(reader && space);
  EXPECT_FALSE(space->was_created());
  EXPECT_EQ(*ImageOf(*space, Key(1)), whole);
  EXPECT_EQ(*ValuesOf(*space, Key(1), Side::kClient), DecodedByCodec(whole, Made()));
}

TEST_P(SideObjectsOfOneTest, OneIsReplacedAndDroppedWithTheLastBlockThatNamesIt) {
  const auto first = Install(*space_, Made(1));
  ASSERT_TRUE(first.ok());
  ASSERT_TRUE(Put(Key(1)).ok());
  const auto second = Install(*space_, Made(2));
  ASSERT_TRUE(second.ok());
  ASSERT_TRUE(Put(Key(2)).ok());
  EXPECT_EQ(*ValuesOf(*space_, Key(1), Side::kClient),
            DecodedByCodec(*ImageOf(*space_, Key(1)), Made(1)));
  EXPECT_EQ(*ValuesOf(*space_, Key(2), Side::kClient),
            DecodedByCodec(*ImageOf(*space_, Key(2)), Made(2)));
  const auto listed = space_->ListSideObjects();
  ASSERT_TRUE(listed.ok());
  ASSERT_EQ(listed->size(), 2u);
  for (const SideObjectFigures& one : *listed) {
    EXPECT_EQ(one.current_groups.size(), one.id == second->id ? 1u : 0u);
    EXPECT_EQ(one.references, 1u);
    EXPECT_EQ(one.bytes, Made().size());
  }
  const Bytes image = *ImageOf(*space_, Key(1));
  ASSERT_EQ(*space_->Invalidate(), 2u);
  ASSERT_EQ(space_->ListSideObjects()->size(), 1u);
  EXPECT_EQ(space_->ListSideObjects()->front().references, 0u);
  // What names the one that is gone is refused, and nothing appears.
  const auto refused = space_->Put({.key = Key(1), .source = ImageBytes{image}});
  EXPECT_TRUE(absl::IsFailedPrecondition(refused.status())) << refused.status();
  EXPECT_THAT(std::string(refused.status().message()),
              testing::HasSubstr("put the side object first"));
  EXPECT_TRUE(absl::IsNotFound(ValuesOf(*space_, Key(1), Side::kDaemon).status()));
  const auto other = Connect(Options());
  const auto space = Open(other, ToyIdentity(kBf16, Model()), "");
  ASSERT_TRUE(other && space);
  EXPECT_TRUE(absl::IsNotFound(space->GetSideObject(first->id).status()));
  const auto held = space->GetSideObject(second->id);
  ASSERT_TRUE(held.ok()) << held.status();
  EXPECT_EQ(Bytes((*held)->bytes().begin(), (*held)->bytes().end()), Made(2));
}

TEST_P(SideObjectsOfOneTest, AnotherTenantSeesNoneOfIt) {
  const auto installed = Install(*space_, Made());
  ASSERT_TRUE(installed.ok());
  ConnectOptions options = Options();
  options.tenant = "other";
  const auto other = Connect(options);
  const auto space = Open(other, ToyIdentity(kBf16, Model()), Param().recipe);
  ASSERT_TRUE(other && space);
  EXPECT_TRUE(space->was_created());
  EXPECT_TRUE(absl::IsNotFound(space->GetSideObject(installed->id).status()));
  EXPECT_TRUE(space->ListSideObjects()->empty());
}

TEST_P(SideObjectsOfOneTest, HostileOnesAreRefusedByName) {
  const auto refused = [&](uint32_t group, const Bytes& bytes, const std::string& text) {
    const absl::Status status = space_->PutSideObject(group, Param().kind, bytes).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr(text));
  };
  Bytes cut = Made();
  cut.resize(cut.size() / 2);
  codecs::ProfileShape narrow = kShape;
  narrow.heads = 1;
  const std::string none = absl::StrCat("not a ", proto::Name(Param().kind));
  refused(0, {}, none);
  refused(0, ToyValues(kBf16, 5000, 1), none);
  refused(0, cut, none);
  refused(0, Made(1, narrow), "group 0 has 4 layers, 4 heads");
  refused(1, Made(), "the space has 1 groups");
  refused(0, Bytes(proto::kSideObjectBytesMax + 1), "the limit is");
  EXPECT_TRUE(space_->ListSideObjects()->empty());
  if (Param().kind != SideObjectKind::kProfile) return;  // which alone have rates
  const auto fine = Open(client_, ToyIdentity(kBf16, Model() + "2"), "cairn:3.0");
  ASSERT_NE(fine, nullptr);
  const absl::Status rate = Install(*fine, Made()).status();
  EXPECT_THAT(std::string(rate.message()), testing::HasSubstr("it has cairn:BITS for 2.3, 4.3"));
}

class SideObjectRestartTest : public testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Of, SideObjectRestartTest, AllCases(), NameOf);

TEST_P(SideObjectRestartTest, AKilledDaemonLosesThemAndBlocksAndNothingIsEverWrong) {
  const auto& [side, plane] = GetParam();
  const Bytes bytes = SideObjectBytes(side.kind, 1, kShape);
  const bool is_ucx = plane == Plane::kUcx;
  std::vector<std::string> flags;
  if (is_ucx) flags.emplace_back("--data=127.0.0.1:0");
  auto first = DaemonProcess::Start(flags);
  ASSERT_TRUE(first.ok()) << first.status();
  ConnectOptions options;
  options.control = (*first)->endpoint("control");
  options.data = is_ucx ? (*first)->endpoint("data") : "unix:" + (*first)->endpoint("socket");
  options.timeout = kPatience;
  options.breaker.is_enforced = false;
  auto client = Client::Connect(options);
  ASSERT_TRUE(client.ok()) << client.status();
  auto space = (*client)->OpenSpace(ToyIdentity(kBf16, "restart"), side.recipe);
  ASSERT_TRUE(space.ok()) << space.status();
  const Bytes source = ToyValues(kBf16, *(*space)->SourceBytes({}), 5);
  const BlockKey key = (*space)->DeriveChain(ToyTokens(1))[0];
  Bytes target(source.size());
  const auto get = [&] { return (*space)->Get({.key = key, .target = SourceTarget{target}}); };
  const auto put = [&](Side side) {
    return (*space)->Put({.key = key, .encode = side, .source = SourceBytes{source}}).status();
  };
  ASSERT_TRUE((*space)->PutSideObject(0, side.kind, bytes).ok());
  ASSERT_TRUE(put(Side::kClient).ok());
  ASSERT_TRUE(get().ok());
  const Bytes coded = target;
  EXPECT_NE(coded, source);

  (*first)->process().Signal(SIGKILL);
  ASSERT_TRUE((*first)->process().Wait(absl::Seconds(10)).ok());
  flags = {"--control=" + options.control, "--http=off", "--socket=" + (*first)->endpoint("socket"),
           "--host-bytes=64MiB", "--log-level=error"};
  if (is_ucx) flags.push_back("--data=" + options.data);
  auto second = ChildProcess::Start(CAIRND_PATH, flags);
  ASSERT_TRUE(second.ok()) << second.status();
  ASSERT_TRUE((*second)->ReadLine(absl::Seconds(60)).ok());
  absl::Status status;
  const absl::Time deadline = MonotonicNow() + absl::Seconds(20);
  do {  // until the session is back
    status = get().status();
  } while (!absl::IsNotFound(status) && MonotonicNow() < deadline);
  EXPECT_TRUE(absl::IsNotFound(status)) << "memory is gone: " << status;
  EXPECT_TRUE((*space)->ListSideObjects()->empty());
  ASSERT_TRUE(put(Side::kClient).ok()) << "exact: this daemon has none";
  ASSERT_TRUE(get().ok());
  EXPECT_EQ(target, source);
  ASSERT_TRUE((*space)->PutSideObject(0, side.kind, bytes).ok());
  ASSERT_EQ(*(*space)->Invalidate(), 1u);
  ASSERT_TRUE(put(Side::kDaemon).ok());
  ASSERT_TRUE(get().ok());
  EXPECT_EQ(target, coded);
}

}  // namespace
}  // namespace cairn
