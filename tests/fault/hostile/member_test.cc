// SPDX-License-Identifier: Apache-2.0
// A member that the others accept, and that lies: about what it has, in what it sends, about who it
// is, and by not answering. Meanwhile the daemon that it lies to serves its own clients: no wrong
// byte, no late call, and its memory and its threads are bounded. What another member has is found
// and read.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"
#include "codecs/backend/backends.h"
#include "codecs/image/encode.h"
#include "codecs/image/image.h"
#include "proto/convert.h"
#include "proto/location.h"
#include "service/limits.h"
#include "service/members/generations.h"
#include "service/peer/homes.h"
#include "service/peer/located.h"
#include "service/peer/locator.h"
#include "service/peer/offer.h"
#include "service/peer/peer_channels.h"
#include "tests/e2e/client/cluster_fixture.h"
#include "tests/e2e/client/member_wire.h"
#include "tests/fault/hostile/liar.h"
#include "tests/fault/hostile/victim.h"
#include "tests/support/process_weight.h"
#include "tests/support/random.h"
#include "tests/support/sanitizer.h"
#include "tests/support/wait.h"

namespace cairn {
namespace {

using testing::HasSubstr;

constexpr absl::Duration kMatchTime = absl::Milliseconds(200);  // --peer-match-ms
// For a machine that does much else.
const absl::Duration kSoon = absl::Seconds(2) * kSlowdown;
constexpr uint64_t kMemorySlackBytes = uint64_t{96} << 20;
constexpr uint64_t kThreadSlack = 24;

// A daemon that is lied to, an honest member, and the liar.
class Fleet : Cluster {
 public:
  Fleet() : wire_(PeerWire::kTls, folder_, {"victim", "honest", "liar"}) {
    std::ofstream(folder_.File("policy.yaml"))
        << "version: 1\nidentities:\n  - {uid: " << ::getuid()
        << ", tenants: [\"*\"]}\n"
           "  - {uri: \"spiffe://test.example/victim\", peer: true, tenants: [\"*\"]}\n"
           "  - {uri: \"spiffe://test.example/honest\", peer: true, tenants: [\"*\"]}\n"
           "  - {uri: \"spiffe://test.example/liar\", peer: true, tenants: [default]}\n";
    for (const char* name : {"victim", "honest"}) {
      std::vector<std::string> flags = wire_.Flags(name);
      flags.emplace_back("--host-bytes=128MiB");
      flags.push_back(absl::StrCat("--peer-match-ms=", absl::ToInt64Milliseconds(kMatchTime)));
      Start(name, flags);
    }
    const TlsOptions tls = wire_.Tls("liar", "victim");
    liar_ = std::make_unique<Liar>("liar", tls);
    List("liar", liar_->address());
    auto files = transport::TlsFiles::Open({.certificate = tls.cert,
                                            .key = tls.key,
                                            .ca = {{.domain = "", .path = tls.ca}},
                                            .crl = ""},
                                           transport::TlsRole::kClient);
    CAIRN_CHECK_OK(files);
    files_ = *std::move(files);
    const PeerDial dial = {.tls = files_.get(),
                           .may_be_member = [](const PeerIdentity&) { return absl::OkStatus(); }};
    to_victim_ = OpenPeer(victim().endpoint("peer"), dial, 4 << 20);
    to_honest_ = OpenPeer(honest().endpoint("peer"), dial, 4 << 20);
    for (const auto& daemon : daemons_) CAIRN_CHECK(Await(*daemon, "joined", 3), daemon->ReadLog());
  }

  DaemonProcess& victim() { return *daemons_[0]; }
  DaemonProcess& honest() { return *daemons_[1]; }
  Liar& liar() { return *liar_; }
  // Calls of the liar.
  PeerStub& to_victim() { return *to_victim_; }
  PeerStub& to_honest() { return *to_honest_; }

  // The liar is another process, which the victim has met.
  void Restart(LiarsOrders orders) {
    liar_->Restart(std::move(orders));
    ASSERT_TRUE(WaitFor(
        [&] {
          v1::HelloRequest hello;
          *hello.mutable_self() = liar_->Self();
          grpc::ClientContext first, second;
          v1::HelloReply reply;
          (void)to_victim_->Hello(&first, hello, &reply);
          v1::LocateRequest locate;
          *locate.mutable_self() = liar_->Self();
          v1::LocateReply located;
          return to_victim_->Locate(&second, locate, &located).ok();
        },
        kPatience, absl::Milliseconds(20)))
        << victim().ReadLog();
  }
  ConnectOptions AsLiar(const std::string& tenant) const {
    ConnectOptions options;
    options.control = daemons_[0]->endpoint("peer");
    options.transports = "stream";
    options.tenant = tenant;
    options.tls = wire_.Tls("liar", "victim");
    options.timeout = kPatience;
    return options;
  }
  static SequenceClient Open(const DaemonProcess& daemon) {
    ConnectOptions options;
    options.control = daemon.endpoint("control");
    options.breaker.is_enforced = false;
    return SequenceClient::Open(options);
  }

 private:
  const MemberWire wire_;
  std::unique_ptr<Liar> liar_;
  std::unique_ptr<transport::TlsFiles> files_;
  std::unique_ptr<PeerStub> to_victim_, to_honest_;
};

codecs::Digest DigestOf(const BlockKey& key) {
  codecs::Digest digest;
  std::memcpy(digest.data(), key.data(), digest.size());
  return digest;
}

std::vector<std::byte> ImageOf(const Space& space, const BlockKey& key, uint64_t first_position,
                               std::span<const std::byte> values, std::string_view recipe = "raw") {
  const codecs::GroupShape shape = proto::ShapesOf(space.identity())[0];
  codecs::ImageSpec spec;
  spec.space = DigestOf(space.fingerprint());
  spec.key = DigestOf(key);
  spec.tile = shape.tile;
  spec.slice = codecs::WholeOf(shape);
  spec.tokens = kTokens;
  spec.first_position = first_position;
  CAIRN_CHECK(codecs::ParseRecipe(recipe, &spec.recipe) == codecs::Error::kOk);
  uint64_t bytes_max = 0;
  CAIRN_CHECK(codecs::MaxImageBytes(spec, &bytes_max) == codecs::Error::kOk);
  std::vector<std::byte> image(bytes_max);
  const codecs::Backend* backend = nullptr;
  CAIRN_CHECK(codecs::ActiveBackend(&backend) == codecs::Error::kOk);
  size_t bytes = 0;
  CAIRN_CHECK(codecs::Encode(*backend, spec, values, image, &bytes) == codecs::Error::kOk);
  image.resize(bytes);
  return image;
}

grpc::Status ClaimAll(const v1::MatchRequest& request, v1::MatchReply* reply) {
  reply->set_block_count(static_cast<uint32_t>(request.keys_size()));
  reply->set_lease(std::string(16, 'l'));
  reply->set_lease_ms(60'000);
  for (int i = 0; i < request.keys_size(); ++i) {
    v1::MatchedBlock& block = *reply->add_blocks();
    block.set_tier(v1::TIER_HOST);
    block.set_image_bytes(UINT64_MAX);
    block.set_ttl_seconds(UINT32_MAX);
  }
  return grpc::Status::OK;
}

class HostileMemberTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    fleet_ = std::make_unique<Fleet>();
    auto client = Victim::Start(fleet_->victim().endpoint("control"));
    ASSERT_TRUE(client.ok()) << client.status();
    client_ = *std::move(client);
    ASSERT_TRUE(client_->AwaitHit(kPatience));
    base_ = WeightOf(fleet_->victim().process().pid());
  }
  static void TearDownTestSuite() {
    client_.reset();
    fleet_.reset();
  }
  void SetUp() override {
    ASSERT_TRUE(fleet_ != nullptr && client_ != nullptr);
    (void)client_->TakeRecord();
  }
  // Whatever was done to it, it serves its clients.
  void TearDown() override {
    fleet_->liar().Order({});
    EXPECT_TRUE(client_->AwaitHit(kPatience));
    const VictimRecord record = client_->TakeRecord();
    EXPECT_EQ(record.wrong_blocks, 0u);
    // A deletion says so if a member did not confirm it.
    EXPECT_TRUE(record.failures == 0 || record.last_failure.message().find(
                                            "did not confirm it: liar") != absl::string_view::npos)
        << record.failures << ", " << record.last_failure;
    EXPECT_LE(record.late_max, absl::Milliseconds(250) * kSlowdown);
    ASSERT_TRUE(victim().process().is_running()) << victim().ReadLog();
    ProcessWeight now;
    EXPECT_TRUE(WaitFor(
        [&] {
          now = WeightOf(victim().process().pid());
          return (kIsSanitized || now.bytes <= base_.bytes + kMemorySlackBytes) &&
                 now.threads <= base_.threads + kThreadSlack;
        },
        kPatience, absl::Milliseconds(20)))
        << "MiB " << (base_.bytes >> 20) << " -> " << (now.bytes >> 20) << ", threads "
        << base_.threads << " -> " << now.threads;
  }

  static DaemonProcess& victim() { return fleet_->victim(); }
  static Liar& liar() { return fleet_->liar(); }
  static double Reads(const std::string& outcome) {
    return victim().Metric(absl::StrCat("cairn_peer_reads_total{outcome=\"", outcome, "\""));
  }
  static double Corrupt() { return victim().Metric("cairn_corrupt_tiles_total{where=\"peer\""); }
  static double Called(const DaemonProcess& daemon, const std::string& call) {
    return daemon.Metric(absl::StrCat("cairn_control_calls_total{call=\"", call, "\""));
  }

  // A match for the first blocks of a sequence, and gets of what it finds.
  struct Read {
    size_t matched = 0, got = 0;
    absl::Duration match_time, get_time_max;
  };
  static Read ReadAll(const SequenceClient& at, size_t blocks, size_t sequence,
                      absl::Duration timeout = kPatience) {
    Read read;
    const std::vector<BlockKey> keys = at.Keys(blocks, sequence);
    absl::Time began = MonotonicNow();
    const auto match = at.space->Match({.keys = keys, .timeout = kPatience});
    read.match_time = MonotonicNow() - began;
    EXPECT_TRUE(match.ok()) << match.status();
    if (!match.ok()) return read;
    read.matched = match->block_count;
    for (size_t i = 0; i < match->block_count; ++i) {
      const std::vector<std::byte> expected = at.Values(i, sequence);
      std::vector<std::byte> target(expected.size());
      began = MonotonicNow();
      const auto got = at.space->Get(
          {.key = keys[i], .lease = match->lease, .target = SourceTarget{target}}, timeout);
      read.get_time_max = std::max(read.get_time_max, MonotonicNow() - began);
      EXPECT_TRUE(got.ok() || absl::IsNotFound(got.status())) << got.status();
      if (!got.ok()) continue;
      ++read.got;
      EXPECT_EQ(target, expected) << "block " << i << " of " << sequence;
    }
    if (match->lease != LeaseToken{}) (void)at.client->Release({&match->lease, 1});
    return read;
  }
  // Answers gets with the images of a sequence, changed.
  using Change = std::function<LiarsImage(LiarsImage image, const BlockKey& key)>;
  static std::function<LiarsImage(const proto::Get&)> Serve(const SequenceClient& at, size_t blocks,
                                                            size_t sequence, Change change = {}) {
    std::vector<std::pair<BlockKey, std::vector<std::byte>>> images;
    const std::vector<BlockKey> keys = at.Keys(blocks, sequence);
    for (size_t i = 0; i < blocks; ++i) {
      images.emplace_back(keys[i],
                          ImageOf(*at.space, keys[i], i * kTokens, at.Values(i, sequence)));
    }
    return [images, change](const proto::Get& get) {
      LiarsImage image;
      image.error = absl::NotFoundError("no such block");
      for (size_t i = 0; i < images.size(); ++i) {
        if (images[i].first != get.key) continue;
        image = {.error = {}, .bytes = images[i].second, .first_position = i * kTokens};
      }
      return image.error.ok() && change ? change(std::move(image), get.key) : image;
    };
  }
  template <typename Request>
  static Request FromLiar(const v1::PeerSelf& self = liar().Self()) {
    Request request;
    *request.mutable_self() = self;
    return request;
  }

  static inline std::unique_ptr<Fleet> fleet_;
  static inline std::unique_ptr<Victim> client_;
  static inline ProcessWeight base_;
};

// That the test's own member can do it right, too.
TEST_F(HostileMemberTest, AMemberThatTellsTheTruthIsRead) {
  const SequenceClient at = Fleet::Open(victim());
  ASSERT_NO_FATAL_FAILURE(fleet_->Restart({.match = ClaimAll, .get = Serve(at, 4, 1)}));
  const Read read = ReadAll(at, 4, 1);
  EXPECT_EQ(read.matched, 4u);
  EXPECT_EQ(read.got, 4u) << victim().ReadLog();
}

TEST_F(HostileMemberTest, BytesThatAreNotTheBlockAreAMiss) {
  const SequenceClient at = Fleet::Open(victim());
  const std::vector<std::pair<std::string, Change>> lies = {
      {"half",
       [](LiarsImage image, const BlockKey&) {
         image.bytes.resize(image.bytes.size() / 2);
         return image;
       }},
      {"nothing",
       [](LiarsImage image, const BlockKey&) {
         image.bytes.clear();
         return image;
       }},
      {"less than the frame says",
       [](LiarsImage image, const BlockKey&) {
         image.bytes.resize(image.bytes.size() - 64);
         image.bytes_said_more = 64;
         return image;
       }},
      {"any bytes",
       [](LiarsImage image, const BlockKey&) {
         std::mt19937_64 random = SeededRandom();
         for (std::byte& one : image.bytes) one = static_cast<std::byte>(random());
         return image;
       }},
      {"another key's image",
       [&at](LiarsImage image, const BlockKey&) {
         image.bytes = ImageOf(*at.space, at.Keys(1, 99)[0], 0, at.Values(0, 99));
         return image;
       }},
      {"a damaged tile",
       [](LiarsImage image, const BlockKey&) {
         image.bytes.back() ^= std::byte{1};
         return image;
       }},
  };
  size_t sequence = 100;
  for (size_t i = 0; i < lies.size(); ++i, ++sequence) {
    SCOPED_TRACE(lies[i].first);
    LiarsOrders orders{.match = ClaimAll, .get = Serve(at, 1, sequence, lies[i].second)};
    if (i % 2 == 0) {  // the third one would be one too many
      ASSERT_NO_FATAL_FAILURE(fleet_->Restart(std::move(orders)));
    } else {
      liar().Order(std::move(orders));
    }
    const double corrupt = Corrupt(), stored = Reads("stored");
    const Read read = ReadAll(at, 1, sequence);
    EXPECT_EQ(read.matched, 1u);
    EXPECT_EQ(read.got, 0u);
    EXPECT_EQ(Corrupt(), corrupt + 1);
    EXPECT_EQ(Reads("stored"), stored);
    // The daemon's own client computes it.
    ASSERT_NO_FATAL_FAILURE(at.Put(0, 1, sequence));
    EXPECT_EQ(ReadAll(at, 1, sequence).got, 1u);
  }
}

TEST_F(HostileMemberTest, ALossyImageForALosslessSpaceIsAMiss) {
  const SequenceClient at = Fleet::Open(victim());
  ASSERT_NO_FATAL_FAILURE(fleet_->Restart(
      {.match = ClaimAll, .get = Serve(at, 1, 200, [&at](LiarsImage image, const BlockKey& key) {
                            image.bytes = ImageOf(*at.space, key, 0, at.Values(0, 200), "kivi:4");
                            return image;
                          })}));
  const double rejected = Reads("rejected");
  EXPECT_EQ(ReadAll(at, 1, 200).got, 0u);
  EXPECT_EQ(Reads("rejected"), rejected + 1);
}

TEST_F(HostileMemberTest, AMemberThatDeliversDamagedBlocksIsNotReadUntilItRestarts) {
  const SequenceClient at = Fleet::Open(victim()), honest = Fleet::Open(fleet_->honest());
  const Change damage = [](LiarsImage image, const BlockKey&) {
    image.bytes.back() ^= std::byte{1};
    return image;
  };
  ASSERT_NO_FATAL_FAILURE(fleet_->Restart({.match = ClaimAll, .get = Serve(at, 3, 300, damage)}));
  const double corrupt = Corrupt();
  EXPECT_EQ(ReadAll(at, 3, 300).got, 0u);
  EXPECT_EQ(Corrupt(), corrupt + 3);
  EXPECT_EQ(victim().Metric("cairn_peer_members_distrusted"), 1);
  EXPECT_THAT(victim().ReadLog(), HasSubstr("it is not read from until it restarts"));
  // It would be right now, and is not asked.
  liar().Order({.match = ClaimAll, .get = Serve(at, 3, 300)});
  const uint64_t matches = liar().matches();
  EXPECT_EQ(ReadAll(at, 3, 300).matched, 0u);
  EXPECT_EQ(liar().matches(), matches);
  // Others are.
  ASSERT_NO_FATAL_FAILURE(honest.Put(0, 3, 301));
  EXPECT_EQ(ReadAll(at, 3, 301).got, 3u);
  ASSERT_NO_FATAL_FAILURE(fleet_->Restart({.match = ClaimAll, .get = Serve(at, 3, 300)}));
  EXPECT_EQ(ReadAll(at, 3, 300).got, 3u) << victim().ReadLog();
  EXPECT_EQ(victim().Metric("cairn_peer_members_distrusted"), 0);
}

// It always claims more than anybody else has, and has nothing.
TEST_F(HostileMemberTest, AMemberThatClaimsEverythingDoesNotHideOthers) {
  const SequenceClient at = Fleet::Open(victim()), honest = Fleet::Open(fleet_->honest());
  ASSERT_NO_FATAL_FAILURE(fleet_->Restart({.match = ClaimAll}));
  ASSERT_NO_FATAL_FAILURE(honest.Put(0, 6, 400));
  Read read;
  EXPECT_TRUE(WaitFor([&] {
    read = ReadAll(at, 8, 400);
    return read.got == 6;
  })) << read.matched
      << ", " << read.got;
}

TEST_F(HostileMemberTest, AMatchThatIsNotAnsweredDelaysOthersLittle) {
  const SequenceClient at = Fleet::Open(victim()), honest = Fleet::Open(fleet_->honest());
  ASSERT_NO_FATAL_FAILURE(fleet_->Restart({.stalls_match = true}));
  ASSERT_NO_FATAL_FAILURE(honest.Put(0, 2, 500));
  const Read read = ReadAll(at, 3, 500);
  EXPECT_EQ(read.got, 2u);
  EXPECT_LE(read.match_time, kMatchTime + kSoon);
}

// Reads that it does not answer end before their clients' deadlines. Once it has failed, what it
// leased is a miss at once, so that it does not hold the threads that read from others.
TEST_F(HostileMemberTest, ReadsThatAreNotAnsweredHoldNobodyUp) {
  const SequenceClient at = Fleet::Open(victim()), honest = Fleet::Open(fleet_->honest());
  ASSERT_NO_FATAL_FAILURE(fleet_->Restart({.match = ClaimAll, .get = [](const proto::Get&) {
                                             return LiarsImage{
                                                 .error = {}, .bytes = {}, .is_kept_back = true};
                                           }}));
  const std::vector<BlockKey> keys = at.Keys(16, 600);
  const auto match = at.space->Match({.keys = keys, .timeout = kPatience});
  ASSERT_TRUE(match.ok()) << match.status();
  ASSERT_EQ(match->block_count, 16u);
  std::vector<std::byte> target(at.Values(0, 600).size());
  const auto get = [&](size_t i, absl::Duration timeout) {
    const absl::Time began = MonotonicNow();
    const auto got = at.space->Get(
        {.key = keys[i], .lease = match->lease, .target = SourceTarget{target}}, timeout);
    EXPECT_TRUE(absl::IsNotFound(got.status())) << got.status();
    return MonotonicNow() - began;
  };
  get(0, absl::Milliseconds(600));
  get(1, absl::Milliseconds(600));
  for (size_t i = 2; i < keys.size(); ++i) EXPECT_LT(get(i, kPatience), kSoon) << i;
  ASSERT_NO_FATAL_FAILURE(honest.Put(0, 2, 601));
  EXPECT_EQ(ReadAll(at, 2, 601).got, 2u);
}

TEST_F(HostileMemberTest, AnswersWithMoreThanWasAskedAreNone) {
  const SequenceClient at = Fleet::Open(victim()), honest = Fleet::Open(fleet_->honest());
  ASSERT_NO_FATAL_FAILURE(honest.Put(0, 2, 700));
  const auto blocks = [](uint32_t count, int listed) {
    return [=](const v1::MatchRequest&, v1::MatchReply* reply) {
      reply->set_block_count(count);
      for (int i = 0; i < listed; ++i) reply->add_blocks();
      return grpc::Status::OK;
    };
  };
  ASSERT_NO_FATAL_FAILURE(fleet_->Restart({.match = blocks(4, 4)}));
  EXPECT_EQ(ReadAll(at, 3, 700).got, 2u);
  liar().Order({.match = blocks(3, 1'000'000)});  // 2 MB
  EXPECT_EQ(ReadAll(at, 3, 701).matched, 0u);
  liar().Order({.match = [](const v1::MatchRequest&, v1::MatchReply* reply) {
    reply->set_lease(std::string(4 << 20, 'l'));  // longer than any answer may be
    return grpc::Status::OK;
  }});
  EXPECT_EQ(ReadAll(at, 3, 702).matched, 0u);
}

// A deletion far in the future would win for ever.
TEST_F(HostileMemberTest, GenerationsOfTheFutureDeleteNothing) {
  const SequenceClient at = Fleet::Open(victim());
  ASSERT_NO_FATAL_FAILURE(at.Put(0, 1, 800));
  const uint64_t in_two_days =
      static_cast<uint64_t>(absl::ToUnixMicros(absl::Now() + absl::Hours(48)));
  for (const uint64_t generation : {UINT64_MAX, in_two_days}) {
    const auto list = [&](const std::string& tenant) {
      const SpaceGeneration one{tenant, at.space->fingerprint(), generation};
      return SerializeGenerations({&one, 1});
    };
    LiarsOrders orders;
    orders.match = [generation](const v1::MatchRequest& request, v1::MatchReply* reply) {
      reply->set_generation(generation);
      return ClaimAll(request, reply);
    };
    orders.hello = [text = list("default")](v1::HelloReply* reply) {
      reply->set_generations_hash(77);
      reply->set_generations(text);
    };
    ASSERT_NO_FATAL_FAILURE(fleet_->Restart(std::move(orders)));
    EXPECT_EQ(ReadAll(at, 2, 801).matched, 0u) << "of another generation";
    for (const char* tenant : {"default", "victim"}) {
      auto hello = FromLiar<v1::HelloRequest>();
      hello.set_generations_hash(77);
      hello.set_generations(list(tenant));
      grpc::ClientContext context;
      v1::HelloReply reply;
      EXPECT_TRUE(fleet_->to_victim().Hello(&context, hello, &reply).ok());
    }
    EXPECT_EQ(ReadAll(at, 1, 800).got, 1u);
  }
  EXPECT_EQ(victim().Metric("cairn_member_generations"), 0);
}

TEST_F(HostileMemberTest, ATenantThatItsRuleDoesNotNameIsClosedToIt) {
  ASSERT_NO_FATAL_FAILURE(fleet_->Restart({}));
  const auto client = Client::Connect(fleet_->AsLiar("victim"));
  EXPECT_TRUE(absl::IsPermissionDenied(client.status())) << client.status();
  // A deletion that would be taken of another tenant.
  const SequenceClient at = Fleet::Open(victim());
  const SpaceGeneration one{"victim", at.space->fingerprint(),
                            static_cast<uint64_t>(absl::ToUnixMicros(absl::Now()))};
  auto hello = FromLiar<v1::HelloRequest>();
  hello.set_generations_hash(77);
  hello.set_generations(SerializeGenerations({&one, 1}));
  grpc::ClientContext context;
  v1::HelloReply reply;
  EXPECT_TRUE(fleet_->to_victim().Hello(&context, hello, &reply).ok());
  EXPECT_EQ(victim().Metric("cairn_member_generations"), 0);
}

TEST_F(HostileMemberTest, NobodySpeaksInTheNameOfAnother) {
  ASSERT_NO_FATAL_FAILURE(fleet_->Restart({}));
  v1::HelloReply honest;
  {
    grpc::ClientContext context;
    ASSERT_TRUE(fleet_->to_honest().Hello(&context, FromLiar<v1::HelloRequest>(), &honest).ok());
  }
  const auto announce = [&](const v1::PeerSelf& self, uint64_t epoch, bool is_reset,
                            const std::string& names) {
    auto request = FromLiar<v1::AnnounceRequest>(self);
    request.set_epoch(epoch);
    request.set_reset(is_reset);
    request.set_stored(names);
    grpc::ClientContext context;
    v1::AnnounceReply reply;
    return fleet_->to_victim().Announce(&context, request, &reply).error_code();
  };
  const std::string one(16, 'x');
  EXPECT_EQ(announce(honest.self(), 9, true, ""), grpc::StatusCode::PERMISSION_DENIED);
  grpc::ClientContext context;
  v1::LocateReply located;
  EXPECT_EQ(fleet_->to_victim()
                .Locate(&context, FromLiar<v1::LocateRequest>(honest.self()), &located)
                .error_code(),
            grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(announce(liar().Self(), 1, true, ""), grpc::StatusCode::OK);
  EXPECT_EQ(announce(liar().Self(), 1, false, std::string(16 * 1025, 'x')),
            grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(announce(liar().Self(), 1, false, std::string(2'900'000, 'x')),
            grpc::StatusCode::INVALID_ARGUMENT);
  // Each epoch costs a walk over the table.
  int refused = 0;
  for (uint64_t epoch = 2; epoch < 40; ++epoch) {
    if (announce(liar().Self(), epoch, true, "") == grpc::StatusCode::RESOURCE_EXHAUSTED) {
      ++refused;
    } else {
      EXPECT_EQ(announce(liar().Self(), epoch, false, one), grpc::StatusCode::OK);
    }
  }
  EXPECT_GT(refused, 0);
}

TEST_F(HostileMemberTest, OffersTakeNoMoreThanTheySay) {
  const SequenceClient at = Fleet::Open(victim());
  ASSERT_NO_FATAL_FAILURE(fleet_->Restart({.match = ClaimAll, .get = Serve(at, 4, 900)}));
  const auto offer = [&](const std::string& tenant, uint64_t bytes, v1::OfferReply* reply,
                         size_t sequence = 900, absl::Duration time = kPatience) {
    const std::vector<BlockKey> keys = at.Keys(4, sequence);
    BlockOffer blocks;
    blocks.identity = at.space->identity();
    blocks.identity.tenant = tenant;
    blocks.recipe = "raw";
    blocks.keys = keys;
    blocks.parents = {BlockKey{}, keys[0], keys[1], keys[2]};
    blocks.image_bytes.assign(keys.size(), bytes);
    blocks.slices = {{.group = 0, .layer_count = kLayers, .head_count = kHeads}};
    v1::OfferRequest request = RequestOf(blocks);
    *request.mutable_self() = liar().Self();
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + time));
    return fleet_->to_victim().Offer(&context, request, reply).error_code();
  };
  v1::OfferReply reply;
  EXPECT_EQ(offer("default", UINT64_MAX, &reply), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(offer("default", 0, &reply), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(offer("victim", 1 << 20, &reply), grpc::StatusCode::PERMISSION_DENIED);
  const double stored = Reads("stored");
  EXPECT_EQ(offer("default", 1000, &reply), grpc::StatusCode::OK);
  EXPECT_EQ(reply.answers(), std::string(4, '\x04')) << "they are larger than was said";
  EXPECT_EQ(Reads("stored"), stored);
  EXPECT_EQ(offer("default", 1 << 20, &reply), grpc::StatusCode::OK);
  EXPECT_EQ(reply.answers(), std::string(4, '\x01')) << victim().ReadLog();

  // Without end, of what it does not deliver.
  liar().Order({.match = ClaimAll, .get = [](const proto::Get&) {
                  return LiarsImage{.error = {}, .bytes = {}, .is_kept_back = true};
                }});
  std::atomic<bool> ends = false;
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      while (!ends) {
        v1::OfferReply ignored;
        (void)offer("default", 1 << 20, &ignored, 902, absl::Milliseconds(500));
      }
    });
  }
  const SequenceClient honest = Fleet::Open(fleet_->honest());
  EXPECT_TRUE(client_->AwaitHit(kPatience));
  honest.Put(0, 2, 901);
  EXPECT_EQ(ReadAll(at, 2, 901).got, 2u);
  ends = true;
  for (std::thread& thread : threads) thread.join();
}

// Each greeting says something new of a member, which the victim would have to hear from it.
TEST_F(HostileMemberTest, AFloodOfGreetingsMakesNoFloodOfGreetings) {
  ASSERT_NO_FATAL_FAILURE(fleet_->Restart({}));
  const uint64_t hellos = liar().hellos();
  const double of_honest = Called(fleet_->honest(), "Hello");
  std::atomic<bool> ends = false;
  std::atomic<uint64_t> sent = 0;
  std::vector<std::thread> threads;
  for (const char* name : {"liar", "honest"}) {
    threads.emplace_back([&, name] {
      for (uint64_t i = 1; !ends; ++i) {
        auto request = FromLiar<v1::HelloRequest>();
        request.mutable_self()->set_name(name);
        request.mutable_self()->set_incarnation(i << 32);
        request.mutable_self()->set_draining(i % 2 == 0);
        grpc::ClientContext context;
        v1::HelloReply reply;
        if (fleet_->to_victim().Hello(&context, request, &reply).ok()) ++sent;
      }
    });
  }
  EXPECT_TRUE(WaitFor([&] { return sent > 500; }));
  EXPECT_TRUE(client_->AwaitHit(kPatience));
  ends = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(liar().hellos() - hellos, sent / 20);
  EXPECT_LE(Called(fleet_->honest(), "Hello") - of_honest, static_cast<double>(sent) / 20);
}

// A session for each of many tenants: those that wait for it are few.
TEST_F(HostileMemberTest, SessionsThatDoNotOpenHoldNobodyUp) {
  const SequenceClient at = Fleet::Open(victim()), honest = Fleet::Open(fleet_->honest());
  ASSERT_NO_FATAL_FAILURE(honest.Put(0, 2, 1100));
  EXPECT_EQ(ReadAll(at, 1, 1100).got, 1u);
  ASSERT_NO_FATAL_FAILURE(fleet_->Restart({.stalls_session = true}));
  const uint64_t before = liar().sessions();
  std::vector<std::thread> threads;
  std::atomic<int> asked = 0;
  for (int i = 0; i < 12; ++i) {
    threads.emplace_back([&, i] {
      ConnectOptions options;
      options.control = victim().endpoint("control");
      options.tenant = absl::StrCat("tenant-", i);
      const SequenceClient client = SequenceClient::Open(options);
      const std::vector<BlockKey> keys = client.Keys(1);
      (void)client.space->Match({.keys = keys, .timeout = kPatience});
      ++asked;
    });
  }
  EXPECT_TRUE(WaitFor([&] { return asked == 12; }));
  EXPECT_EQ(ReadAll(at, 2, 1100).got, 2u);
  EXPECT_LE(liar().sessions() - before, 4u);
  for (std::thread& thread : threads) thread.join();
}

TEST_F(HostileMemberTest, SessionsThatEndAtOnceAreNotOpenedWithoutAPause) {
  const SequenceClient at = Fleet::Open(victim());
  ASSERT_NO_FATAL_FAILURE(fleet_->Restart({.match = ClaimAll, .ends_sessions = true}));
  (void)ReadAll(at, 1, 1000);
  const uint64_t before = liar().sessions();
  const absl::Time began = MonotonicNow();
  // Of two tenants, as the other client goes on.
  EXPECT_TRUE(WaitFor([&] { return liar().sessions() >= before + 14; }));
  EXPECT_GE(MonotonicNow() - began, absl::Milliseconds(600));
}

// What homes say of members is compared with the view.
TEST(HostileHome, NamesMembersThatThereAreNot) {
  Liar liar("liar", {});
  Members members({.cluster = "cairn", .self = {"me", "127.0.0.1:1", ""}, .incarnation = 5},
                  nullptr, RealClock::Get());
  members.Take({{"me", "127.0.0.1:1", ""}, {"liar", liar.address(), ""}, {"b", "127.0.0.1:2", ""}});
  members.Meet({.name = "liar", .incarnation = 1});
  PeerChannels channels(PeerDial(), 3'000'000);
  const LocationTable table(LocationTable::kBytesMin);
  Locator locator({members, channels, table, "test"}, {.young = absl::ZeroDuration()});
  std::vector<proto::BlockKey> keys(1);
  const auto is_of_liar = [&] {  // the first home
    const ViewPtr view = members.view();
    return view->Find(Homes(*view).Of(proto::RunOf(keys[0])).first)->name == "liar";
  };
  while (!is_of_liar()) keys[0][0] = static_cast<std::byte>(std::to_integer<int>(keys[0][0]) + 1);
  const auto holders = [&](std::function<void(v1::LocateReply*)> lie) {
    liar.Order({.locate = [lie](const v1::LocateRequest&, v1::LocateReply* reply) { lie(reply); }});
    const Located located = locator.Locate({}, keys, 0, MonotonicNow() + kPatience);
    return located.holders.at(0).size();
  };
  const auto name = [](v1::LocateReply* reply, const std::string& text) {
    v1::LocatedMember& member = *reply->add_members();
    member.set_name(text);
    member.set_incarnation(1);
    reply->add_holders(static_cast<uint32_t>(reply->members_size()) - 1);
  };
  const auto count = [](v1::LocateReply* reply, char holders) {
    reply->set_counts(std::string(1, holders));
  };
  EXPECT_EQ(holders([&](auto* reply) {
              name(reply, "liar");
              count(reply, 1);
            }),
            1u);
  for (const char* text : {"me", "b", "nobody", "two words", ""}) {
    EXPECT_EQ(holders([&](auto* reply) {
                name(reply, text);
                count(reply, 1);
              }),
              0u)
        << text;
  }
  EXPECT_EQ(holders([&](auto* reply) {
              for (int i = 0; i < 4; ++i) name(reply, "liar");
              count(reply, 4);
            }),
            1u)
      << "one member, four times";
  EXPECT_EQ(holders([&](auto* reply) {
              for (int i = 0; i < 5; ++i) name(reply, "liar");
              count(reply, 5);
            }),
            0u);
  EXPECT_EQ(holders([&](auto* reply) {
              name(reply, "liar");
              reply->set_holders(0, UINT32_MAX);
              count(reply, 1);
            }),
            0u);
  EXPECT_EQ(holders([&](auto* reply) { reply->set_counts(std::string(1'000'000, '\1')); }), 0u);
}

}  // namespace
}  // namespace cairn
