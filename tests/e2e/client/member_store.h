// SPDX-License-Identifier: Apache-2.0
#pragma once
// The stores that a suite about blocks passes: one daemon over each data plane, and two members of
// a cluster. Of those, one is put to. The other is got from, and fetches what it lacks from the
// first as its client, over TLS or UCX.

#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "tests/e2e/client/client_fixture.h"
#include "tests/e2e/client/cluster_fixture.h"
#include "tests/e2e/client/member_wire.h"

namespace cairn {

inline bool IsOfMembers(Plane plane) {
  return plane == Plane::kMemberTls || plane == Plane::kMemberUcx;
}

// Planes(), and members over both wires.
inline std::vector<Plane> Stores() {
  std::vector<Plane> stores = Planes();
  stores.push_back(Plane::kMemberTls);
  if (CLIENT_TEST_HAS_UCX != 0) stores.push_back(Plane::kMemberUcx);
  return stores;
}

// A name for INSTANTIATE_TEST_SUITE_P: the number of the value, and the store.
template <typename T>
std::string NameOfStore(const testing::TestParamInfo<std::tuple<T, Plane>>& info) {
  return absl::StrCat(info.index / Stores().size(), PlaneName(std::get<1>(info.param)));
}

// The two members; started by the first test that asks for them.
class MemberPair : Cluster {
 public:
  static const MemberPair& Of(Plane plane) {
    if (plane == Plane::kMemberTls) {
      static const MemberPair over_tls(PeerWire::kTls);
      return over_tls;
    }
    static const MemberPair over_ucx(PeerWire::kUcx);
    return over_ucx;
  }
  const DaemonProcess& writer() const { return *daemons_[0]; }
  const DaemonProcess& reader() const { return *daemons_[1]; }
  // Images that the reader has fetched.
  double Fetched() const { return reader().Metric("cairn_peer_reads_total{outcome=\"stored\""); }

 private:
  explicit MemberPair(PeerWire wire) : wire_(wire, folder_, {"a", "b"}) {
    for (const char* name : {"a", "b"}) {
      std::vector<std::string> flags = wire_.Flags(name);
      flags.emplace_back("--peer-match-ms=5000");
      Start(name, flags);
    }
    for (const auto& daemon : daemons_) CAIRN_CHECK(Await(*daemon, "joined", 2), daemon->ReadLog());
  }

  const MemberWire wire_;
};

// A client that puts, and one that gets. They are the same unless the store is two members.
class StoreClient {
 public:
  // Null, and the test failed, when one cannot connect.
  static std::unique_ptr<StoreClient> Connect(Plane plane, const ConnectOptions& options) {
    auto store = std::make_unique<StoreClient>();
    store->reader_ = ConnectTo(options);
    if (IsOfMembers(plane)) {
      ConnectOptions other = options;
      other.control = MemberPair::Of(plane).writer().endpoint("control");
      store->writer_ = ConnectTo(other);
    }
    return store->reader_ == nullptr || (IsOfMembers(plane) && store->writer_ == nullptr)
               ? nullptr
               : std::move(store);
  }
  bool is_of_members() const { return writer_ != nullptr; }
  Client& reader() { return *reader_; }
  Client& writer() { return is_of_members() ? *writer_ : *reader_; }
  ClientCounters counters() const {
    ClientCounters sum = reader_->counters();
    if (is_of_members()) {
      const ClientCounters more = writer_->counters();
      sum.puts += more.puts;
      sum.duplicates += more.duplicates;
      sum.breaker_opened += more.breaker_opened;
    }
    return sum;
  }

 private:
  static std::unique_ptr<Client> ConnectTo(const ConnectOptions& options) {
    auto client = Client::Connect(options);
    EXPECT_TRUE(client.ok()) << client.status();
    return client.ok() ? *std::move(client) : nullptr;
  }
  std::unique_ptr<Client> reader_, writer_;
};

// A space as a StoreClient has it.
class StoreSpace {
 public:
  StoreSpace(StoreClient& client, std::unique_ptr<Space> reader, std::unique_ptr<Space> writer)
      : client_(client), reader_(std::move(reader)), writer_(std::move(writer)) {}

  const proto::SpaceIdentity& identity() const { return reader_->identity(); }
  std::string recipe() const { return reader_->recipe(); }
  std::vector<BlockKey> DeriveChain(std::span<const uint32_t> tokens) const {
    return reader_->DeriveChain(tokens);
  }
  BlockKey OpaqueKey(std::span<const std::byte> key) const { return reader_->OpaqueKey(key); }
  auto SourceBytes(const GroupSlice& slice) const { return reader_->SourceBytes(slice); }
  auto ImageBytesMax(const GroupSlice& slice) const { return reader_->ImageBytesMax(slice); }

  auto Put(const PutRequest& request) { return writer().Put(request, kPatience); }
  auto PutBatch(std::span<const PutRequest> requests) {
    return writer().PutBatch(requests, kPatience);
  }
  auto Match(const MatchRequest& request) { return reader_->Match(request); }
  auto Contains(std::span<const BlockKey> keys) { return reader_->Contains(keys, kPatience); }
  auto Delete(std::span<const BlockKey> keys) { return reader_->Delete(keys, kPatience); }
  auto Invalidate() { return reader_->Invalidate(kPatience); }
  // Of members, those of the one that is put to.
  auto PutSideObject(uint32_t group, SideObjectKind kind, std::span<const std::byte> bytes) {
    return writer().PutSideObject(group, kind, bytes, kPatience);
  }
  auto GetSideObject(const codecs::Digest& id) { return writer().GetSideObject(id, kPatience); }
  auto ListSideObjects() { return writer().ListSideObjects(kPatience); }
  bool was_created() { return writer().was_created(); }
  // Of members, a get finds what a match has leased, and nothing else.
  absl::StatusOr<GetResult> Get(GetRequest request) {
    if (writer_ != nullptr) request.lease = Lease({&request.key, 1}, {&request.slice, 1});
    auto got = reader_->Get(request, kPatience);
    Release(request.lease);
    return got;
  }
  // Of members, consecutive blocks.
  std::vector<absl::StatusOr<GetResult>> GetBatch(std::vector<GetRequest> requests) {
    LeaseToken lease{};
    if (writer_ != nullptr) {
      std::vector<BlockKey> keys;
      for (const GetRequest& request : requests) keys.push_back(request.key);
      lease = Lease(keys, {});
      for (GetRequest& request : requests) request.lease = lease;
    }
    auto got = reader_->GetBatch(requests, kPatience);
    Release(lease);
    return got;
  }

 private:
  Space& writer() { return writer_ != nullptr ? *writer_ : *reader_; }
  // None if nothing is found, or if the question is wrong: the get will say that.
  LeaseToken Lease(std::span<const BlockKey> keys, std::span<const GroupSlice> slices) {
    const auto match = reader_->Match({.keys = keys, .slices = slices, .timeout = kPatience});
    return match.ok() ? match->lease : LeaseToken{};
  }
  void Release(const LeaseToken& lease) {
    if (lease != LeaseToken{}) {
      EXPECT_TRUE(client_.reader().Release({&lease, 1}, kPatience).ok());
    }
  }

  StoreClient& client_;
  const std::unique_ptr<Space> reader_, writer_;
};

// A suite over stores. Base: PlaneTest or PlaneAndTest<T>.
template <typename Base>
class StoreTest : public Base {
 protected:
  static Plane ThePlane() { return PlaneOf(Base::GetParam()); }
  static ConnectOptions Options() {
    if (!IsOfMembers(ThePlane())) return Base::OptionsOver(ThePlane());
    ConnectOptions options = Base::ClientTest::Options();
    options.control = MemberPair::Of(ThePlane()).reader().endpoint("control");
    return options;
  }
  static std::unique_ptr<StoreClient> Connect(const ConnectOptions& options) {
    return StoreClient::Connect(ThePlane(), options);
  }
  static std::unique_ptr<StoreSpace> Open(const std::unique_ptr<StoreClient>& client,
                                          const proto::SpaceIdentity& identity,
                                          const std::string& recipe = "raw") {
    if (client == nullptr) return nullptr;
    auto reader = OpenAt(client->reader(), identity, recipe);
    auto writer = client->is_of_members() ? OpenAt(client->writer(), identity, recipe) : nullptr;
    if (reader == nullptr || (client->is_of_members() && writer == nullptr)) return nullptr;
    return std::make_unique<StoreSpace>(*client, std::move(reader), std::move(writer));
  }
  // Of members: so many images came from the other one since the test began.
  void ExpectFetched(double images) const {
    if (!IsOfMembers(ThePlane())) return;
    EXPECT_EQ(MemberPair::Of(ThePlane()).Fetched() - fetched_before_, images);
  }
  void SetUp() override {
    Base::SetUp();
    if (IsOfMembers(ThePlane())) fetched_before_ = MemberPair::Of(ThePlane()).Fetched();
  }

 private:
  static Plane PlaneOf(Plane plane) { return plane; }
  template <typename T>
  static Plane PlaneOf(const std::tuple<T, Plane>& both) {
    return std::get<1>(both);
  }
  static std::unique_ptr<Space> OpenAt(Client& client, const proto::SpaceIdentity& identity,
                                       const std::string& recipe) {
    auto space = client.OpenSpace(identity, recipe, kPatience);
    EXPECT_TRUE(space.ok()) << space.status();
    return space.ok() ? *std::move(space) : nullptr;
  }

  double fetched_before_ = 0;
};

}  // namespace cairn
