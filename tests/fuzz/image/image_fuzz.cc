// SPDX-License-Identifier: Apache-2.0
// Bytes as an image: as they come, and with every CRC made to fit, so that what lies behind the
// checksums is reached. What parses must survive all that is done with images.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

#include "codecs/backend/backends.h"
#include "codecs/checksum/checksum.h"
#include "codecs/format/image_header.h"
#include "codecs/image/decode.h"
#include "codecs/image/encode.h"
#include "codecs/image/settle.h"
#include "codecs/numbers/static_step.h"
#include "codecs/transform/demote.h"
#include "codecs/types/bytes.h"
#include "tests/support/bank_bytes.h"
#include "tests/support/profile_bytes.h"

namespace {

using namespace cairn::codecs;  // NOLINT(google-build-using-namespace): a harness of one file

using Bytes = std::vector<std::byte>;

void Require(bool condition) {
  if (!condition) std::abort();
}

void DemoteAll(const ImageView& view, bool is_verified, bool is_decodable) {
  for (const Recipe& recipe : AllRecipes()) {
    Bytes target(DemoteBytesMax(view, recipe));
    size_t bytes = 0;
    const Error error = Demote(*CpuBackends().front(), view, recipe, target, &bytes);
    Require(error == Error::kOk || error == Error::kNotDemotable ||
            (error == Error::kBadTile && !is_decodable));
    if (error != Error::kOk) continue;
    ImageView demoted;
    Require(ParseImage(std::span(target).first(bytes), &demoted) == Error::kOk);
    const Error verified = VerifyTiles(demoted);
    Require(verified == Error::kOk || !is_verified);
  }
}

// Of the shape that the corpus has.
const Profile& FixedProfile() {
  static const Bytes bytes =
      ProfileBytes({.layers = 3, .heads = 3, .rope = RopeKind::kHalf, .rotary_dims = 8},
                   std::mt19937_64(1))
          .bytes();
  static const Profile profile = [] {
    Profile parsed;
    Require(ParseProfile(bytes, &parsed) == Error::kOk);
    return parsed;
  }();
  return profile;
}

void UseWithProfile(const ImageView& view) {
  uint64_t source_bytes = 0;
  Require(SourceBytes(view.spec().tile, view.spec().slice, view.spec().tokens, &source_bytes) ==
          Error::kOk);
  Bytes decoded(source_bytes);
  const Error error =
      Decode(ReferenceBackend(), view, view.spec().slice, decoded, {.profile = &FixedProfile()});
  Require((error == Error::kNoProfile) == !IsCodableWith(view.spec(), &FixedProfile()));
  uint64_t bytes_max = 0;
  Require(MaxImageBytes(view.spec(), &bytes_max) == Error::kOk);
  Bytes target(bytes_max);
  size_t bytes = 0;
  if (DemoteSteps(view, FixedProfile(), kStepLevelMax, target, &bytes) != Error::kOk) return;
  ImageView demoted;
  Require(ParseImage(std::span(target).first(bytes), &demoted) == Error::kOk);
  Require(Decode(ReferenceBackend(), demoted, view.spec().slice, decoded,
                 {.profile = &FixedProfile()}) == error);
}

// Of the shape that the corpus has.
const Bank& FixedBank() {
  static std::mt19937_64 random(2);
  static const Bytes bytes =
      BankBytes({.layers = 3, .heads = 3, .patterns = 33, .k_dim = 5, .v_dim = 3}, random);
  static const Bank bank = [] {
    Bank parsed;
    Require(ParseBank(bytes, &parsed) == Error::kOk);
    return parsed;
  }();
  return bank;
}

void UseWithBank(const ImageView& view) {
  uint64_t source_bytes = 0;
  Require(SourceBytes(view.spec().tile, view.spec().slice, view.spec().tokens, &source_bytes) ==
          Error::kOk);
  Bytes decoded(source_bytes);
  const Error error =
      Decode(ReferenceBackend(), view, view.spec().slice, decoded, {.bank = &FixedBank()});
  Require(error == (IsCodableWith(view.spec(), &FixedBank()) ? Error::kOk : Error::kNoBank));
}

void Use(const ImageView& view) {
  Require(view.spec().unit == CodingUnit{} && view.spec().symbol_mode == 0);
  if (view.spec().recipe.NeedsBank()) UseWithBank(view);
  if (view.spec().recipe.NeedsProfile()) UseWithProfile(view);
  const bool is_verified = VerifyTiles(view) == Error::kOk;
  uint64_t source_bytes = 0;
  Require(SourceBytes(view.spec().tile, view.spec().slice, view.spec().tokens, &source_bytes) ==
          Error::kOk);
  Bytes decoded(source_bytes);
  const Error error = Decode(ReferenceBackend(), view, view.spec().slice, decoded);
  Require(error == Error::kOk || view.spec().recipe.id == RecipeId::kExact ||
          view.spec().recipe.id == RecipeId::kMixKvq ||
          (view.spec().recipe.NeedsProfile()
               ? error == Error::kNoProfile
               : error == Error::kNoBank && view.spec().recipe.NeedsBank()));
  for (const Backend* backend : CpuBackends()) {
    Bytes other(source_bytes);
    Require(Decode(*backend, view, view.spec().slice, other) == error);
    Require(!is_verified || error != Error::kOk || other == decoded);
  }
  const std::array views = {view};
  Bytes gathered(view.bytes().size());
  size_t bytes = 0;
  Require(Gather(views, view.spec().slice, gathered, &bytes) == Error::kOk);
  Require(std::ranges::equal(gathered, view.bytes()));
  DemoteAll(view, is_verified, error == Error::kOk);
}

// As many tile CRCs as the directory, whatever it says, lets one compute; then the prefix's.
void FixCrcs(Bytes& image) {
  const auto tile_count = Load<uint32_t>(image.data() + header::kTileCount);
  if (tile_count > image.size() / kDirectoryEntryBytes) return;
  if (PrefixBytes(tile_count) > image.size()) return;
  for (uint32_t i = 0; i < tile_count; ++i) {
    std::byte* entry = image.data() + PrefixBytes(i);
    const uint64_t offset =
        uint64_t{Load<uint32_t>(entry + directory::kOffset)} * kSectionAlignment;
    const uint64_t bytes = Load<uint32_t>(entry + directory::kBytes);
    if (offset > image.size() || bytes > image.size() - offset) continue;
    Store(entry + directory::kCrc, Crc32c(std::span(image).subspan(offset, bytes)));
  }
  Store(image.data() + header::kCrc, PrefixCrc(std::span(image).first(PrefixBytes(tile_count))));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto* begin = reinterpret_cast<const std::byte*>(data);
  Bytes image(begin, begin + size);
  ImageView view;
  if (ParseImage(image, &view) == Error::kOk) Use(view);
  uint64_t bytes = 0;
  Require(PeekImageBytes(image, &bytes) != Error::kOk || bytes <= kImageBytesMax);
  if (image.size() < kHeaderBytes) return 0;
  FixCrcs(image);
  if (ParseImage(image, &view) == Error::kOk) Use(view);
  return 0;
}
