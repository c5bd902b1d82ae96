// SPDX-License-Identifier: Apache-2.0
// Image puts and gets end to end: the SDK, the local transport, a cairnd of its own; one client
// connection, eight requests at once, the blocks leased while they are read. Payloads lie in
// buffers of the connection, so each byte is copied once: between the shared region and the
// daemon's arena, its CRC taken in that copy.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "client/cpp/client.h"
#include "client/cpp/space.h"
#include "tests/bench/bench.h"
#include "tests/bench/sdk.h"
#include "tests/e2e/daemon/daemon_process.h"

namespace cairn {
namespace {

using bench::Must;

constexpr uint32_t kLayers = 32, kHeads = 8, kDim = 128, kTokens = 128;
constexpr absl::Duration kTimeout = absl::Seconds(30);

// Images of one size, in buffers, with as many buffers to read into.
class Load {
 public:
  Load(Client& client, Space& space, const GroupSlice& slice, uint64_t total_bytes)
      : client_(client), space_(space), slice_(slice) {
    const uint64_t source_bytes = Must(space.SourceBytes(slice));
    const uint64_t image_bytes_max = Must(space.ImageBytesMax(slice));
    const std::vector<std::byte> source = bench::FiniteSource(source_bytes);
    for (uint64_t i = 0; i < std::max<uint64_t>(1, total_bytes / source_bytes); ++i) {
      const std::string name = absl::StrCat(source_bytes, "/", i);
      keys_.push_back(space.OpaqueKey(std::as_bytes(std::span(name))));
      images_.push_back(Must(client.AllocateBuffer(image_bytes_max, kTimeout)));
      targets_.push_back(Must(client.AllocateBuffer(image_bytes_max, kTimeout)));
      image_bytes_ = bench::EncodeRaw(space, slice, keys_.back(), source, images_.back().bytes());
    }
  }

  double bytes() const { return static_cast<double>(image_bytes_ * keys_.size()); }
  uint64_t image_bytes() const { return image_bytes_; }

  void Clear() {
    Release();
    (void)Must(space_.Delete(keys_, kTimeout));
  }
  void Put() {
    std::vector<PutRequest> puts;
    for (size_t i = 0; i < keys_.size(); ++i) {
      puts.push_back({.key = keys_[i],
                      .slice = slice_,
                      .source = ImageBytes{images_[i].bytes().first(image_bytes_)}});
    }
    for (auto& result : space_.PutBatch(puts, kTimeout)) {
      CAIRN_CHECK(!Must(std::move(result)).is_duplicate);
    }
  }
  void Lease() {
    if (lease_ != LeaseToken{}) return;
    const MatchResult match =
        Must(space_.Match({.keys = keys_, .slices = {&slice_, 1}, .timeout = kTimeout}));
    CAIRN_CHECK(match.block_count == keys_.size(), "the load does not fit the tier");
    lease_ = match.lease;
  }
  void Get() {
    std::vector<GetRequest> gets;
    for (size_t i = 0; i < keys_.size(); ++i) {
      gets.push_back({.key = keys_[i],
                      .lease = lease_,
                      .slice = slice_,
                      .target = ImageTarget{targets_[i].bytes()}});
    }
    for (auto& result : space_.GetBatch(gets, kTimeout)) (void)Must(std::move(result));
  }

 private:
  void Release() {
    CAIRN_CHECK_OK(client_.Release({&lease_, 1}, kTimeout));
    lease_ = {};
  }

  Client& client_;
  Space& space_;
  const GroupSlice slice_;
  uint64_t image_bytes_ = 0;
  LeaseToken lease_{};
  std::vector<BlockKey> keys_;
  std::vector<Buffer> images_, targets_;
};

int Main(int argc, char** argv) {
  const bench::Options options = bench::ParseOptions(argc, argv);
  const uint64_t total_bytes = options.quick ? uint64_t{4} << 20 : uint64_t{96} << 20;
  const auto daemon = Must(DaemonProcess::Start({"--host-bytes=2GiB", "--region-bytes=4GiB"}));
  ConnectOptions connect;
  connect.control = daemon->endpoint("control");
  connect.connections = 1;
  connect.region_bytes = kRegionBytesMax;
  const auto client = Must(Client::Connect(connect));
  const auto space = Must(client->OpenSpace(
      bench::Identity("bench", {kLayers, kHeads, kDim, kTokens}), "raw", kTimeout));

  std::vector<std::byte> source(total_bytes, std::byte{1}), target(total_bytes, std::byte{2});
  std::vector<bench::Case> cases;
  cases.push_back({"memcpy",
                   [&](uint64_t) { std::memcpy(target.data(), source.data(), total_bytes); },
                   static_cast<double>(total_bytes)});
  const GroupSlice slices[] = {{.layer_count = 1, .head_count = 1},
                               {.layer_count = 2},
                               {.layer_count = 8},
                               {.layer_count = 32}};
  std::vector<std::unique_ptr<Load>> loads;
  for (const GroupSlice& slice : slices) {
    Load& load = *loads.emplace_back(std::make_unique<Load>(*client, *space, slice, total_bytes));
    const std::string size = absl::StrCat(load.image_bytes() >> 10, " KiB image");
    cases.push_back({.name = size + " put",
                     .run = [&load](uint64_t) { load.Put(); },
                     .bytes = load.bytes(),
                     .prepare = [&load] { load.Clear(); }});
    cases.push_back({.name = size + " get, verified",
                     .run = [&load](uint64_t) { load.Get(); },
                     .bytes = load.bytes(),
                     .prepare = [&load] { load.Lease(); }});
  }
  bench::RunRounds(cases, options);
  bench::Print(cases, options, "client: images over the local transport, 8 at once");
  return 0;
}

}  // namespace
}  // namespace cairn

int main(int argc, char** argv) { return cairn::Main(argc, argv); }
