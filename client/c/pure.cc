// SPDX-License-Identifier: Apache-2.0
// The C ABI: keys and images, which need no daemon.
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "base/status.h"
#include "client/c/cairn.h"
#include "client/c/convert.h"
#include "client/c/guard.h"
#include "client/cpp/trace.h"
#include "client/cpp/transfer.h"
#include "codecs/backend/backends.h"
#include "codecs/image/encode.h"
#include "codecs/image/image.h"
#include "codecs/recipe/recipe.h"
#include "codecs/transform/thin.h"

namespace cairn::c {
namespace {

uint64_t SourceBytesOf(const codecs::ImageSpec& spec) {
  uint64_t bytes = 0;
  CAIRN_CHECK(codecs::SourceBytes(spec.tile, spec.slice, spec.tokens, &bytes) ==
              codecs::Error::kOk);
  return bytes;
}

cairn_image_info InfoOf(const codecs::ImageView& view) {
  const codecs::ImageSpec& spec = view.spec();
  cairn_image_info info{};
  info.version = codecs::kImageVersion;
  std::memcpy(info.fingerprint, spec.space.data(), sizeof(info.fingerprint));
  std::memcpy(info.key.bytes, spec.key.data(), sizeof(info.key.bytes));
  info.slice = {spec.group, spec.slice.layer_first, spec.slice.layer_count, spec.slice.head_first,
                spec.slice.head_count};
  info.tokens = spec.tokens;
  info.dtype = static_cast<int32_t>(spec.tile.dtype);
  info.first_position = spec.first_position;
  info.image_bytes = view.bytes().size();
  info.source_bytes = SourceBytesOf(spec);
  info.tile_count = view.tile_count();
  info.k_dim = spec.tile.k_dim;
  info.v_dim = spec.tile.v_dim;
  CopyText(std::string(codecs::FormatRecipe(spec.recipe)), info.recipe);
  std::memcpy(info.side_object, spec.side_objects[0].data(), sizeof(info.side_object));
  return info;
}

proto::Fingerprint FromFingerprint(const uint8_t* fingerprint) {
  proto::Fingerprint result;
  std::memcpy(result.data(), fingerprint, result.size());
  return result;
}

// Returns views of memory that is given as views, or as a payload of exactly the slice's size.
absl::StatusOr<PlaneViews> ViewsOf(const char* name, const cairn_memory& memory,
                                   const codecs::ImageSpec& spec, ViewUse use) {
  const ViewShape shape{spec.tile, spec.slice.layer_count, spec.slice.head_count, spec.tokens};
  CAIRN_ASSIGN_OR_RETURN(const auto place, FromElements(name, memory, shape));
  if (const auto* views = std::get_if<PlaneViews>(&place)) {
    CAIRN_RETURN_IF_ERROR(Validate(shape, *views, use));
    return *views;
  }
  const std::span<std::byte> bytes = std::get<SourceTarget>(place).bytes;
  if (bytes.size() != SourceBytesOf(spec)) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " has ", bytes.size(), " bytes; the slice has ", SourceBytesOf(spec)));
  }
  return ContiguousViews(shape, bytes.data());
}

absl::Status DecodeInto(const codecs::ImageView& view, const codecs::DecodeInputs& inputs,
                        const cairn_memory* target) {
  CAIRN_RETURN_IF_ERROR(CheckPointer("target", target));
  CAIRN_ASSIGN_OR_RETURN(const PlaneViews views,
                         ViewsOf("target", *target, view.spec(), ViewUse::kTarget));
  std::vector<std::byte> heap;
  const auto room = [&heap](size_t bytes) {
    heap.resize(bytes);
    return std::span(heap);
  };
  return VerifyAndDecode(view, views, room, inputs);
}

// Reads the inputs of an encoder from `given`. `spec` is the result of converting `given`. `inputs`
// borrow from `given` and from *parent.
absl::Status ReadInputs(const cairn_image_spec& given, const codecs::ImageSpec& spec,
                        codecs::ImageView* parent, codecs::EncodeInputs* inputs) {
  const auto& [layer_first, layer_count, head_first, head_count] = spec.slice;
  const size_t heads = size_t{layer_count} * head_count;
  inputs->chain_tokens = given.chain_tokens;
  if (given.query_magnitudes != nullptr) {
    inputs->query_magnitudes = {given.query_magnitudes, heads * spec.tile.k_dim};
  }
  if (given.token_scores != nullptr) {
    inputs->token_scores = {given.token_scores, heads * spec.tokens};
  }
  if (given.token_states != nullptr) {
    inputs->token_states = {given.token_states, heads * spec.tokens};
  }
  if (given.parent_image == nullptr) {
    return absl::OkStatus();
  }
  const std::span<const std::byte> image(static_cast<const std::byte*>(given.parent_image),
                                         given.parent_image_bytes);
  codecs::Error error = codecs::ParseImage(image, parent);
  if (error == codecs::Error::kOk) {
    error = codecs::VerifyTiles(*parent);
  }
  if (error != codecs::Error::kOk) {
    return absl::InvalidArgumentError(
        absl::StrCat("spec.parent_image: ", ToAbsl(codecs::Name(error))));
  }
  inputs->parents = {parent, 1};
  return absl::OkStatus();
}

absl::Status SetGivenTrace(const char* traceparent) {
  proto::Traceparent trace;
  if (traceparent != nullptr) {
    CAIRN_ASSIGN_OR_RETURN(trace, proto::ParseTraceparent(traceparent));
  }
  SetTrace(trace);
  return absl::OkStatus();
}

}  // namespace
}  // namespace cairn::c

// Outside all namespaces: C functions.
namespace codecs = cairn::codecs;
namespace proto = cairn::proto;
using cairn::BlockKey;
using cairn::FindBackend;
using cairn::FromCodec;

using cairn::PlaneViews;
using cairn::SourceTarget;
using cairn::Validate;
using cairn::VerifyAndDecode;
using cairn::ViewUse;

using cairn::c::Bytes;
using cairn::c::CheckPointer;
using cairn::c::CheckStruct;
using cairn::c::DecodeInto;
using cairn::c::FromElements;
using cairn::c::FromExtras;
using cairn::c::FromFingerprint;
using cairn::c::FromImageSpec;
using cairn::c::FromSideObject;
using cairn::c::FromSpec;
using cairn::c::GivenSideObject;
using cairn::c::Guard;
using cairn::c::InfoOf;
using cairn::c::InputsOf;
using cairn::c::ParseGiven;
using cairn::c::ReadInputs;
using cairn::c::ReadStruct;
using cairn::c::SourceBytesOf;
using cairn::c::Text;
using cairn::c::ViewsOf;
using cairn::c::WriteStruct;

int cairn_fingerprint(const char* tenant, const cairn_space_spec* spec, uint8_t fingerprint[32]) {
  return Guard([&]() -> absl::Status {
    CAIRN_RETURN_IF_ERROR(CheckStruct("spec", spec));
    CAIRN_RETURN_IF_ERROR(CheckPointer("fingerprint", fingerprint));
    CAIRN_ASSIGN_OR_RETURN(const proto::SpaceIdentity identity,
                           FromSpec(Text(tenant, "default").c_str(), ReadStruct(spec)));
    CAIRN_RETURN_IF_ERROR(proto::Validate(identity));
    const proto::Fingerprint result = proto::FingerprintOf(identity);
    std::memcpy(fingerprint, result.data(), result.size());
    return absl::OkStatus();
  });
}

int cairn_derive_key(const uint8_t fingerprint[32], const cairn_key* parent, const uint32_t* tokens,
                     size_t token_count, const cairn_key_extra* extras, size_t extra_count,
                     cairn_key* key) {
  return Guard([&]() -> absl::Status {
    CAIRN_RETURN_IF_ERROR(CheckPointer("fingerprint", fingerprint));
    CAIRN_RETURN_IF_ERROR(CheckPointer("tokens", tokens, token_count));
    CAIRN_RETURN_IF_ERROR(CheckPointer("key", key));
    CAIRN_ASSIGN_OR_RETURN(const auto list, FromExtras(extras, extra_count));
    const BlockKey above = parent != nullptr ? Bytes<BlockKey>(*parent) : BlockKey{};
    *key = Bytes<cairn_key>(proto::DeriveKey(FromFingerprint(fingerprint), above,
                                             std::span(tokens, token_count), list));
    return absl::OkStatus();
  });
}

int cairn_set_trace(const char* traceparent) {
  return Guard([&] { return cairn::c::SetGivenTrace(traceparent); });
}

int cairn_derive_chain(const uint8_t fingerprint[32], const uint32_t* tokens, size_t token_count,
                       uint32_t tokens_per_block, const cairn_key_extra* extras, size_t extra_count,
                       cairn_key* keys, size_t key_capacity, size_t* key_count) {
  return Guard([&]() -> absl::Status {
    CAIRN_RETURN_IF_ERROR(CheckPointer("fingerprint", fingerprint));
    CAIRN_RETURN_IF_ERROR(CheckPointer("tokens", tokens, token_count));
    CAIRN_RETURN_IF_ERROR(CheckPointer("key_count", key_count));
    if (tokens_per_block < codecs::kTokensPerBlockMin ||
        tokens_per_block > codecs::kTokensPerBlockMax) {
      return absl::InvalidArgumentError(absl::StrCat("tokens_per_block is ", tokens_per_block,
                                                     ", expected ", codecs::kTokensPerBlockMin,
                                                     " to ", codecs::kTokensPerBlockMax));
    }
    const size_t needed = token_count / tokens_per_block;
    if (key_capacity < needed) {
      return absl::InvalidArgumentError(
          absl::StrCat("key_capacity is ", key_capacity, "; the sequence has ", needed, " blocks"));
    }
    CAIRN_RETURN_IF_ERROR(CheckPointer("keys", keys, needed));
    CAIRN_ASSIGN_OR_RETURN(const auto list, FromExtras(extras, extra_count));
    const std::vector<BlockKey> chain = proto::DeriveChain(
        FromFingerprint(fingerprint), std::span(tokens, token_count), tokens_per_block, list);
    for (size_t i = 0; i < chain.size(); ++i) {
      keys[i] = Bytes<cairn_key>(chain[i]);
    }
    *key_count = chain.size();
    return absl::OkStatus();
  });
}

int cairn_opaque_key(const uint8_t fingerprint[32], const void* engine_key, size_t engine_key_bytes,
                     cairn_key* key) {
  return Guard([&]() -> absl::Status {
    CAIRN_RETURN_IF_ERROR(CheckPointer("fingerprint", fingerprint));
    CAIRN_RETURN_IF_ERROR(CheckPointer("engine_key", engine_key, engine_key_bytes));
    CAIRN_RETURN_IF_ERROR(CheckPointer("key", key));
    *key = Bytes<cairn_key>(
        proto::OpaqueKey(FromFingerprint(fingerprint),
                         {static_cast<const std::byte*>(engine_key), engine_key_bytes}));
    return absl::OkStatus();
  });
}

int cairn_image_inspect(const void* image, size_t image_bytes, cairn_image_info* info) {
  return Guard([&]() -> absl::Status {
    CAIRN_RETURN_IF_ERROR(CheckStruct("info", info));
    CAIRN_ASSIGN_OR_RETURN(const codecs::ImageView view, ParseGiven(image, image_bytes));
    WriteStruct(InfoOf(view), info);
    return absl::OkStatus();
  });
}

int cairn_image_verify(const void* image, size_t image_bytes, uint64_t* corrupt_tiles) {
  return Guard([&]() -> absl::Status {
    CAIRN_ASSIGN_OR_RETURN(const codecs::ImageView view, ParseGiven(image, image_bytes));
    uint64_t corrupt = 0;
    for (uint32_t tile = 0; tile < view.tile_count(); ++tile) {
      corrupt += codecs::VerifyTile(view, tile) == codecs::Error::kOk ? 0 : 1;
    }
    if (corrupt_tiles != nullptr) {
      *corrupt_tiles = corrupt;
    }
    return corrupt == 0 ? absl::OkStatus()
                        : absl::DataLossError(absl::StrCat(corrupt, " of ", view.tile_count(),
                                                           " tiles fail verification"));
  });
}

int cairn_image_decode(const void* image, size_t image_bytes, const cairn_memory* target) {
  return Guard([&]() -> absl::Status {
    CAIRN_ASSIGN_OR_RETURN(const codecs::ImageView view, ParseGiven(image, image_bytes));
    if (view.spec().side_object_count != 0) {
      return absl::InvalidArgumentError(
          "image: it needs a profile or a bank; use cairn_image_decode_with");
    }
    return DecodeInto(view, {}, target);
  });
}

int cairn_image_decode_with(const void* image, size_t image_bytes, const void* profile,
                            size_t profile_bytes, const cairn_memory* target) {
  return Guard([&]() -> absl::Status {
    CAIRN_ASSIGN_OR_RETURN(const codecs::ImageView view, ParseGiven(image, image_bytes));
    CAIRN_ASSIGN_OR_RETURN(const GivenSideObject side, FromSideObject(profile, profile_bytes));
    const codecs::ImageSpec& spec = view.spec();
    if (spec.side_object_count == 0 || spec.side_objects[0] != side.id) {
      return absl::InvalidArgumentError("profile: the image names another one");
    }
    return DecodeInto(view, side.content.inputs(), target);
  });
}

const char* cairn_image_recipes(void) {
  static const auto* const kNames = new std::string(
      absl::StrJoin(codecs::AllRecipes(), ",", [](std::string* text, const codecs::Recipe& recipe) {
        text->append(codecs::FormatRecipe(recipe));
      }));
  return kNames->c_str();
}

int cairn_image_bytes_max(const cairn_image_spec* spec, uint64_t* bytes) {
  return Guard([&]() -> absl::Status {
    CAIRN_RETURN_IF_ERROR(CheckStruct("spec", spec));
    CAIRN_RETURN_IF_ERROR(CheckPointer("bytes", bytes));
    std::optional<GivenSideObject> side;
    CAIRN_ASSIGN_OR_RETURN(const codecs::ImageSpec given, FromImageSpec(ReadStruct(spec), &side));
    return FromCodec(codecs::MaxImageBytes(given, bytes), "spec");
  });
}

int cairn_image_encode(const cairn_image_spec* spec, const cairn_memory* source, void* image,
                       size_t image_capacity, size_t* image_bytes) {
  return Guard([&]() -> absl::Status {
    CAIRN_RETURN_IF_ERROR(CheckStruct("spec", spec));
    CAIRN_RETURN_IF_ERROR(CheckPointer("source", source));
    CAIRN_RETURN_IF_ERROR(CheckPointer("image", image));
    CAIRN_RETURN_IF_ERROR(CheckPointer("image_bytes", image_bytes));
    std::optional<GivenSideObject> side;
    const cairn_image_spec read = ReadStruct(spec);
    CAIRN_ASSIGN_OR_RETURN(const codecs::ImageSpec given, FromImageSpec(read, &side));
    codecs::ImageView parent;
    codecs::EncodeInputs inputs = codecs::EncodeWith(InputsOf(side));
    CAIRN_RETURN_IF_ERROR(ReadInputs(read, given, &parent, &inputs));
    CAIRN_ASSIGN_OR_RETURN(const PlaneViews views,
                           ViewsOf("source", *source, given, ViewUse::kSource));
    std::vector<std::byte> gathered(codecs::ScratchBytes(given, views));
    CAIRN_ASSIGN_OR_RETURN(const codecs::Backend* backend, FindBackend());
    const std::span<std::byte> target(static_cast<std::byte*>(image), image_capacity);
    return FromCodec(codecs::Encode(*backend, given, views, gathered, target, image_bytes, inputs),
                     "image");
  });
}

int cairn_image_thin(const void* image, size_t image_bytes, uint64_t chain_tokens, void* thinned,
                     size_t capacity, size_t* thinned_bytes) {
  return Guard([&]() -> absl::Status {
    CAIRN_ASSIGN_OR_RETURN(const codecs::ImageView view, ParseGiven(image, image_bytes));
    CAIRN_RETURN_IF_ERROR(CheckPointer("thinned", thinned));
    CAIRN_RETURN_IF_ERROR(CheckPointer("thinned_bytes", thinned_bytes));
    CAIRN_RETURN_IF_ERROR(FromCodec(codecs::VerifyTiles(view), "image"));
    CAIRN_ASSIGN_OR_RETURN(const codecs::Backend* backend, FindBackend());
    const std::span<std::byte> target(static_cast<std::byte*>(thinned), capacity);
    return FromCodec(codecs::Thin(*backend, view, chain_tokens, target, thinned_bytes), "image");
  });
}
