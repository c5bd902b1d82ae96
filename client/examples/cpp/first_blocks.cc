// SPDX-License-Identifier: Apache-2.0
// The program of docs/guides/cpp.md.
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <vector>

#include "client/cpp/client.h"
#include "client/cpp/space.h"

constexpr uint32_t kLayers = 4, kHeads = 2, kDim = 64, kTokens = 128;

cairn::proto::SpaceIdentity TinyMistral() {
  cairn::proto::GroupGeometry group;
  group.layers.resize(kLayers);
  std::iota(group.layers.begin(), group.layers.end(), 0u);
  group.kv_heads = kHeads;
  group.k_dim = kDim;
  group.v_dim = kDim;
  group.rope = {cairn::proto::Rope::Kind::kHalf, kDim, 10000.0, {}};  // as K was turned

  cairn::proto::SpaceIdentity identity;
  identity.model = "tiny-mistral";
  identity.weights_revision = "2026-11-21";
  identity.dtype = cairn::codecs::DType::kBf16;
  identity.tokens_per_block = kTokens;
  identity.groups = {group};
  return identity;
}

// The SDK throws nothing: calls answer with an absl::Status, or with a value or a status.
template <typename T>
T OrDie(absl::StatusOr<T> result) {
  if (!result.ok()) {
    std::fprintf(stderr, "%s\n", result.status().ToString().c_str());
    std::exit(1);
  }
  return *std::move(result);
}

int main(int argc, char** argv) {
  const auto client = OrDie(cairn::Client::Connect(
      {.control = argc > 1 ? argv[1] : "127.0.0.1:50151", .tenant = "tutorial"}));
  const auto space = OrDie(client->OpenSpace(TinyMistral(), "raw"));
  std::printf("recipe %s\n", space->recipe().c_str());

  std::vector<uint32_t> prompt(300);  // token ids; yours come from a tokenizer
  std::iota(prompt.begin(), prompt.end(), 1000u);
  const std::vector<cairn::BlockKey> keys = space->DeriveChain(prompt);
  std::printf("%zu full blocks\n", keys.size());

  constexpr int64_t kRow = kDim * sizeof(uint16_t);
  std::vector<uint16_t> k(kLayers * prompt.size() * kHeads * kDim), v(k.size());
  std::iota(k.begin(), k.end(), uint16_t{0});  // stands for a prefill
  std::iota(v.begin(), v.end(), uint16_t{7});
  const auto view = [&](std::vector<uint16_t>& plane, size_t first_token) {
    return cairn::PlaneView{
        .data = reinterpret_cast<std::byte*>(plane.data()) + first_token * kHeads * kRow,
        .stride_bytes = {static_cast<int64_t>(prompt.size()) * kHeads * kRow, kRow, kHeads * kRow,
                         sizeof(uint16_t)}};
  };
  std::vector<cairn::PutRequest> puts;
  for (size_t i = 0; i < keys.size(); ++i) {
    puts.push_back({.key = keys[i],
                    .parent = i > 0 ? keys[i - 1] : cairn::BlockKey{},
                    .first_position = i * kTokens,
                    .source = cairn::PlaneViews{view(k, i * kTokens), view(v, i * kTokens)}});
  }
  for (auto& result : space->PutBatch(puts)) {
    std::printf("stored %llu bytes\n",
                static_cast<unsigned long long>(OrDie(std::move(result)).image_bytes));
  }

  const cairn::MatchResult match = OrDie(space->Match({.keys = keys}));
  std::printf("%u blocks, %llu tokens need no prefill\n", match.block_count,
              static_cast<unsigned long long>(match.token_count));

  std::vector<uint16_t> k2(k.size()), v2(v.size());
  std::vector<cairn::GetRequest> gets;
  for (uint32_t i = 0; i < match.block_count; ++i) {
    gets.push_back({.key = keys[i],
                    .lease = match.lease,
                    .target = cairn::PlaneViews{view(k2, i * kTokens), view(v2, i * kTokens)}});
  }
  bool is_same = true;
  for (auto& result : space->GetBatch(gets)) {
    if (absl::IsNotFound(result.status())) continue;  // a miss: recompute that block
    OrDie(std::move(result));
  }
  const size_t cached = match.token_count * kHeads * kDim;  // of each layer
  for (size_t layer = 0; layer < kLayers; ++layer) {
    const size_t at = layer * prompt.size() * kHeads * kDim;
    is_same = is_same && std::equal(&k[at], &k[at] + cached, &k2[at]) &&
              std::equal(&v[at], &v[at] + cached, &v2[at]);
  }
  std::printf("bit-identical: %s\n", is_same ? "yes" : "no");

  const cairn::GroupSlice layer_two{.layer_first = 2, .layer_count = 1};
  std::vector<std::byte> part(OrDie(space->SourceBytes(layer_two)));
  OrDie(space->Get({.key = keys[0], .slice = layer_two, .target = cairn::SourceTarget{part}}));
  std::printf("layer 2 alone: %zu bytes\n", part.size());

  client->breaker().OnRecomputed(/*tokens=*/4096, absl::Seconds(1));
  std::printf("fetch: %s\n", client->breaker().Advise(match.token_count, 525440) ? "yes" : "no");
  const auto released = client->Release({&match.lease, 1});
  return is_same && released.ok() ? 0 : 1;
}
