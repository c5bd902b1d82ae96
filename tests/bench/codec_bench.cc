// SPDX-License-Identifier: Apache-2.0
// Encode and decode of every recipe on every backend of this CPU: source bytes per second over
// memcpy bytes per second of the same round, one core, in its CPU time, out of cache.
//
// "steps" is the backend's work alone, tile after tile. "image" is all of it: Encode() with a CRC a
// tile. "decode" is ParseImage() and Decode(). "verified" is what a reader does: DecodeAll() checks
// and decodes tile after tile. "mapped" is the same for an image that another process may change,
// whose tiles are copied first. The second table compares both with "decode" in the same round.
#include <sys/mman.h>

#include "codecs/backend/backend_operation.h"
#include "codecs/backend/backends.h"
#include "codecs/backend/step_scratch.h"
#include "codecs/backend/step_tile.h"
#include "codecs/checksum/checksum.h"
#include "codecs/image/decode.h"
#include "codecs/image/encode.h"
#include "codecs/image/settle.h"
#include "codecs/numbers/math.h"
#include "codecs/pack/dense.h"
#include "codecs/pack/elements.h"
#include "codecs/transform/demote.h"
#include "codecs/types/bytes.h"
#include "tests/bench/bell_profile.h"
#include "tests/bench/bell_source.h"
#include "tests/bench/bench.h"

namespace cairn::codecs {
namespace {

constexpr uint32_t kTokens = 128;
constexpr uint32_t kDim = 128;
constexpr uint64_t kTileSourceBytes = uint64_t{kTokens} * kDim * 2;

void Check(Error error, const char* what) {
  if (error == Error::kOk) return;
  std::fprintf(stderr, "%s: %s\n", what, std::string(Name(error)).c_str());
  std::exit(1);
}

// Zeroed memory on huge pages where the kernel gives them, for ever.
std::span<std::byte> Memory(uint64_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    std::perror("mmap");
    std::exit(1);
  }
  madvise(memory, bytes, MADV_HUGEPAGE);
  std::memset(memory, 0, bytes);
  return {static_cast<std::byte*>(memory), bytes};
}

// Images of 4 layers x 8 heads (2 MiB of source) over the whole working set.
struct WorkingSet {
  ImageSpec spec;
  uint64_t image_source_bytes = 0;
  uint64_t image_bytes_max = 0;
  uint64_t image_count = 0;
  std::span<std::byte> source, images, decoded;
  std::vector<uint64_t> image_bytes;
  bench::BellProfile plain_bytes{4, 8, kDim};
  bench::BellProfile basis_bytes{4, 8, kDim, true};
  Profile plain;
  Profile basis;
  const Profile* profile = &plain;  // of the case that runs
  std::vector<std::byte> prefix, scratch;
  std::vector<std::byte> bank_bytes;
  Bank bank;

  explicit WorkingSet(uint64_t bytes, DType dtype = DType::kBf16) {
    spec.tile = {GroupKind::kKv, dtype, kDim, kDim};
    spec.slice = {0, 4, 0, 8};
    spec.tokens = kTokens;
    spec.first_position = 10 * kTokens;
    spec.recipe = AllRecipes().front();
    Check(SourceBytes(spec.tile, spec.slice, kTokens, &image_source_bytes), "shape");
    Check(MaxImageBytes(spec, &image_bytes_max), "image");
    image_bytes_max = (image_bytes_max + 63) / 64 * 64;
    image_count = std::max<uint64_t>(1, bytes / image_source_bytes);
    source = Memory(image_count * image_source_bytes);
    images = Memory(image_count * image_bytes_max);
    decoded = Memory(image_count * image_source_bytes);
    image_bytes.resize(image_count);
    FillSource(dtype);
    Check(ParseProfile(plain_bytes.bytes(), &plain), "profile");
    Check(ParseProfile(basis_bytes.bytes(), &basis), "profile with a basis");
    if (dtype != DType::kBf16) return;  // no recipe that is timed needs a bank
    bank_bytes = bench::BankOf(source, 4, 8, kDim);
    Check(ParseBank(bank_bytes, &bank), "bank");
  }
  // Bells in bf16; of 8-bit floats, those rounded.
  void FillSource(DType dtype) {
    if (dtype == DType::kBf16) return bench::FillBells(kTokens, kDim, source);
    std::vector<std::byte> wide(2 * source.size());
    bench::FillBells(kTokens, kDim, wide);
    for (uint64_t i = 0; i < source.size(); ++i) {
      StoreElement(dtype, U8(source.data()), i, LoadElement(DType::kBf16, U8(wide.data()), i));
    }
  }
  [[nodiscard]] std::span<std::byte> Source(uint64_t i) const {
    return source.subspan(i * image_source_bytes, image_source_bytes);
  }
  [[nodiscard]] std::span<std::byte> Decoded(uint64_t i) const {
    return decoded.subspan(i * image_source_bytes, image_source_bytes);
  }
  // Images packed one behind the other would be the truth of a store; slots keep them apart.
  [[nodiscard]] std::span<std::byte> Image(uint64_t i) const {
    return images.subspan(i * image_bytes_max, image_bytes_max);
  }

  void Set(const Recipe& recipe, bool has_basis) {
    profile = has_basis ? &basis : &plain;
    Check(SetRecipe(recipe, {.profile = profile, .bank = &bank}, {}, &spec), "recipe");
  }
  void EncodeImage(const Backend& backend, uint64_t i) {
    size_t bytes = 0;
    Check(Encode(backend, spec, Source(i), Image(i), &bytes, {.profile = profile, .bank = &bank}),
          "encode");
    image_bytes[i] = bytes;
  }
  void DecodeImage(const Backend& backend, uint64_t i) const {
    ImageView view;
    Check(ParseImage(Image(i).first(image_bytes[i]), &view), "parse");
    Check(Decode(backend, view, view.spec().slice, Decoded(i), {profile, &bank}), "decode");
  }
  void DecodeVerified(const Backend& backend, bool is_mapped, uint64_t i) {
    const std::span<const std::byte> image = Image(i).first(image_bytes[i]);
    ImageView view;
    if (is_mapped) {
      uint64_t bytes = 0;
      Check(PeekPrefixBytes(image, &bytes), "prefix");
      prefix.assign(image.begin(), image.begin() + static_cast<ptrdiff_t>(bytes));
      Check(ParseSharedImage(prefix, image, &view), "parse");
    } else {
      Check(ParseImage(image, &view), "parse");
    }
    const Slice& slice = view.spec().slice;
    const ViewShape shape{spec.tile, slice.layer_count, slice.head_count, kTokens};
    const DecodeJob job{&view, slice, DenseView(shape, Decoded(i).data()), {profile, &bank}};
    scratch.resize(ScratchBytes({&job, 1}));
    Check(DecodeAll(backend, {&job, 1}, scratch), "decode all");
  }

  // Of the tiles of image `i`, as if they were raw: source and room of the same size.
  [[nodiscard]] uint64_t TilesOfImage() const { return image_source_bytes / kTileSourceBytes; }
  [[nodiscard]] const uint8_t* TileSourceOf(uint64_t i, uint64_t tile) const {
    return U8(Source(i).data()) + tile * kTileSourceBytes;
  }
  [[nodiscard]] std::span<uint8_t> TileRoom(uint64_t i, uint64_t tile) const {
    const uint64_t bytes = image_bytes_max / TilesOfImage() / 64 * 64;
    return {U8(Image(i).data()) + tile * bytes, bytes};
  }
};

// Of which head a tile is: 4 layers of 8 heads, K and V.
ProfileHead TileHead(uint64_t tile) {
  return {static_cast<uint32_t>(tile / 16), static_cast<uint32_t>(tile / 2 % 8)};
}

// The steps of an encode without the image around them. Of kivi: select, quantize, pack; of
// patternkv the choice of patterns between.
void EncodeAffineSteps(const Backend& backend, const Recipe& recipe, const WorkingSet& set,
                       uint64_t image) {
  for (uint64_t i = 0; i < set.TilesOfImage(); ++i) {
    const bool is_k = i % 2 == 0;
    AffineTile tile{
        kTokens,      kDim,        is_k ? recipe.k_group_tokens : recipe.v_group_channels,
        DType::kBf16, recipe.bits, recipe.is_clipped};
    const uint8_t* source = set.TileSourceOf(image, i);
    uint8_t* codes = set.TileRoom(image, i).data();
    uint8_t* params = codes + uint64_t{kTokens} * CodeRowBytes(kDim, recipe.bits);
    uint64_t rows[kRowWords] = {};
    backend.select_rows(tile, source, rows);
    uint8_t numbers[kTokens] = {};
    uint64_t is_predicted[kRowWords] = {};
    const uint8_t* patterns = set.bank.PatternsOf(is_k ? 0 : 1, TileHead(i));
    Span spans[2 * kTokens];
    Span* v_spans = is_k ? nullptr : spans;
    const Prediction prediction{patterns, numbers, is_predicted, v_spans};
    if (recipe.NeedsBank()) {
      OperationOf<&Backend::choose_patterns>(backend)(
          {kTokens, kDim, is_k ? 0 : tile.group, DType::kBf16, recipe.is_nearest, patterns,
           set.bank.patterns(), v_spans},
          source, rows, numbers, is_predicted);
      tile.prediction = &prediction;
    }
    if (is_k) {
      backend.encode_per_channel(tile, source, rows, codes, params);
    } else {
      backend.encode_per_token(tile, source, rows, codes, params);
    }
  }
}

void EncodeStripSteps(const Backend& backend, const Recipe& recipe, const WorkingSet& set,
                      uint64_t image) {
  const StripShape shape{kTokens, kDim, DType::kBf16, recipe.is_fast};
  for (uint64_t i = 0; i < set.TilesOfImage(); ++i) {
    const std::span<uint8_t> room = set.TileRoom(image, i);
    OperationOf<&Backend::encode_strip>(backend)(shape, set.TileSourceOf(image, i), room.data(),
                                                 room.size());
  }
}

void EncodeStaticSteps(const Backend& backend, const Recipe& recipe, const WorkingSet& set,
                       uint64_t image) {
  const StepRate rate{*set.profile->MultiplierOf(recipe.bits), 0};
  StepScratch scratch;
  StepTile tile;
  for (uint64_t i = 0; i < set.TilesOfImage(); ++i) {
    MakeStepTile(*set.profile, TileHead(i), i % 2, rate, DType::kBf16, &tile);
    const std::span<uint8_t> room = set.TileRoom(image, i);
    const uint8_t* v = set.TileSourceOf(image, i | 1);
    uint32_t rows = 0;
    OperationOf<&Backend::encode_step_strip>(backend)(
        tile, {kTokens, set.spec.first_position, set.TileSourceOf(image, i), v, &scratch},
        room.data(), room.size(), &rows);
  }
}

void EncodeSteps(const Backend& backend, const Recipe& recipe, const WorkingSet& set,
                 uint64_t image) {
  switch (recipe.id) {
    case RecipeId::kExact:
      return EncodeStripSteps(backend, recipe, set, image);
    case RecipeId::kCairn:
      return EncodeStaticSteps(backend, recipe, set, image);
    default:
      return EncodeAffineSteps(backend, recipe, set, image);
  }
}

constexpr char kDecode[] = " decode";
constexpr char kVerified[] = " decode verified";
constexpr char kMapped[] = " decode mapped";

bool HasTimedSteps(const Recipe& recipe) {
  return recipe.id == RecipeId::kKivi || recipe.id == RecipeId::kExact ||
         recipe.id == RecipeId::kCairn || recipe.id == RecipeId::kPatternkv;
}

// has_basis: with a profile that has one, as `recipe/basis`.
void AddRecipe(WorkingSet& set, const Backend& backend, const Recipe& recipe, bool has_basis,
               std::vector<bench::Case>& cases) {
  // The plain loops are a hundred times slower than memory: a part of the set tells as much of
  // them.
  const uint64_t count = &backend == &ReferenceBackend()
                             ? std::max<uint64_t>(1, set.image_count / 32)
                             : set.image_count;
  const auto bytes = static_cast<double>(count * set.image_source_bytes);
  const char* dtype = set.spec.tile.dtype == DType::kBf16 ? "" : "of fp8_e4m3 ";
  const std::string name =
      std::string(FormatRecipe(recipe)) + (has_basis ? "/basis " : " ") + dtype + backend.name;
  const auto add = [&](const char* what, std::function<void(uint64_t)> run) {
    cases.push_back(
        {name + what, std::move(run), bytes, count, [=, &set] { set.Set(recipe, has_basis); }});
  };
  if (HasTimedSteps(recipe) && set.spec.tile.dtype == DType::kBf16) {
    add(" encode steps", [=, &set, &backend](uint64_t i) { EncodeSteps(backend, recipe, set, i); });
  }
  add(" encode image", [&set, &backend](uint64_t i) { set.EncodeImage(backend, i); });
  // What the line above has left in the images.
  add(kDecode, [&set, &backend](uint64_t i) { set.DecodeImage(backend, i); });
  add(kVerified, [&set, &backend](uint64_t i) { set.DecodeVerified(backend, false, i); });
  add(kMapped, [&set, &backend](uint64_t i) { set.DecodeVerified(backend, true, i); });
}

// Prints the medians of the rounds' ratios of verified decoding to decoding alone.
void PrintVerified(const std::vector<bench::Case>& cases) {
  std::printf("%-44s %10s %10s\n", "over decode, same round", "verified", "mapped");
  for (size_t i = 0; i + 2 < cases.size(); ++i) {
    if (!cases[i].name.ends_with(kDecode) || !cases[i + 2].name.ends_with(kMapped)) continue;
    double ratios[2];
    for (const size_t k : {0, 1}) {
      std::vector<double> of_rounds;
      for (size_t round = 0; round < cases[i].rates.size(); ++round) {
        of_rounds.push_back(cases[i + 1 + k].rates[round] / cases[i].rates[round]);
      }
      ratios[k] = bench::Median(of_rounds);
    }
    std::printf("%-44s %10.3f %10.3f\n", cases[i].name.c_str(), ratios[0], ratios[1]);
  }
}

int Main(int argc, char** argv) {
  bench::Options options = bench::ParseOptions(argc, argv);
  options.counts_cpu_time = true;
  // Four times the last-level cache and more; the reference is timed on the same.
  const uint64_t bytes = options.quick ? uint64_t{4} << 20 : uint64_t{192} << 20;
  WorkingSet set(bytes);
  std::vector<bench::Case> cases;
  // In one piece, so large that memcpy() writes past the caches; of less it is slower.
  cases.push_back(
      {"memcpy",
       [&](uint64_t) { std::memcpy(set.decoded.data(), set.source.data(), set.source.size()); },
       static_cast<double>(set.source.size())});
  for (const Crc32cForm& form : Crc32cForms()) {
    if (!form.is_supported()) continue;
    const auto crc = [&form, &set](std::byte* target) {
      volatile uint32_t sink = form.extend(0, set.source.data(), set.source.size(), target);
      (void)sink;
    };
    const auto size = static_cast<double>(set.source.size());
    cases.push_back({std::string("crc32c ") + form.name, [crc](uint64_t) { crc(nullptr); }, size});
    cases.push_back({std::string("copy + crc32c ") + form.name,
                     [crc, &set](uint64_t) { crc(set.decoded.data()); }, size});
  }
  std::vector<Recipe> recipes(AllRecipes().begin(), AllRecipes().end());
  recipes.push_back({.id = RecipeId::kCairn, .bits = 23});
  recipes.push_back({.id = RecipeId::kCairnHot, .bits = 24});
  for (const std::string_view name : {"patternkv:2", "patternkv:2:l2"}) {
    Check(ParsePatternkvRecipe(name, &recipes.emplace_back()), "recipe");
    recipes.back().patterns = static_cast<uint16_t>(set.bank.patterns());
  }
  for (const Recipe& recipe : recipes) {
    for (const Backend* backend : CpuBackends()) {
      const bool is_reference = backend == &ReferenceBackend();
      if (recipe.id == RecipeId::kRaw && is_reference && CpuBackends().size() > 1)
        continue;  // no step runs
      AddRecipe(set, *backend, recipe, false, cases);
      if (recipe.NeedsProfile()) AddRecipe(set, *backend, recipe, true, cases);
    }
  }
  WorkingSet eight(bytes / 2, DType::kFp8E4m3);
  for (const Recipe& recipe : recipes) {
    const std::string name(FormatRecipe(recipe));
    if (name != "exact" && name != "exact:fast" && name != "kivi:4" && !recipe.NeedsProfile()) {
      continue;
    }
    for (const Backend* backend : CpuBackends()) AddRecipe(eight, *backend, recipe, false, cases);
  }
  std::string backends;
  for (const Backend* backend : CpuBackends()) backends += std::string(" ") + backend->name;
  std::printf("backends of this CPU:%s; CRC32C in use: %s; working set %.0f MiB of source\n",
              backends.c_str(), ActiveCrc32cForm().name,
              static_cast<double>(set.source.size()) / (1 << 20));
  bench::RunRounds(cases, options);
  bench::Print(cases, options, "codecs: 128 tokens x 128 channels, bf16, one core");
  PrintVerified(cases);
  return 0;
}

}  // namespace
}  // namespace cairn::codecs

int main(int argc, char** argv) { return cairn::codecs::Main(argc, argv); }
