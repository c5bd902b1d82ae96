// SPDX-License-Identifier: Apache-2.0
#include "tests/kernels/gpu_check/workload.h"

#include <algorithm>

#include "base/check.h"
#include "codecs/backend/backends.h"
#include "codecs/image/decode.h"
#include "codecs/image/encode.h"
#include "codecs/image/settle.h"
#include "kernels/device.h"
#include "tests/bench/bell_source.h"

namespace cairn::kernels {
namespace {

using codecs::Error;

constexpr std::string_view kBasis = "/basis";

void Require(Error error) { CAIRN_CHECK(error == Error::kOk, codecs::Name(error)); }

// Memory for a plan, at a multiple of 16.
std::vector<U32x4> PlanBuffer(uint64_t bytes) {
  return std::vector<U32x4>(bytes / sizeof(U32x4) + 1);
}

Room Words(uint64_t bytes) {
  Room room = MakeRoom(std::max<uint64_t>(bytes, 16));
  device::Fill(room.get(), 0, bytes);
  return room;
}

uint32_t* StatusOf(const Room& room) { return reinterpret_cast<uint32_t*>(room.get()); }
TileResult* ResultsOf(const Room& room) { return reinterpret_cast<TileResult*>(room.get()); }

}  // namespace

Material::Material(const Scale& scale) {
  spec_.tile = {codecs::GroupKind::kKv, codecs::DType::kBf16, scale.dim, scale.dim};
  spec_.slice = {0, scale.layers, 0, scale.heads};
  spec_.tokens = scale.tokens;
  spec_.first_position = uint64_t{10} * scale.tokens;
  uint64_t bytes = 0;
  Require(codecs::SourceBytes(spec_.tile, spec_.slice, spec_.tokens, &bytes));
  payload_.resize(bytes);
  bench::FillBells(scale.tokens, scale.dim, payload_);
  profile_bytes_ = bench::BellProfile(scale.layers, scale.heads, scale.dim).bytes();
  basis_bytes_ = bench::BellProfile(scale.layers, scale.heads, scale.dim, true).bytes();
  bank_bytes_ = bench::BankOf(payload_, scale.layers, scale.heads, scale.dim);
  Require(codecs::ParseProfile(profile_bytes_, &profile_));
  Require(codecs::ParseProfile(basis_bytes_, &basis_));
  Require(codecs::ParseBank(bank_bytes_, &bank_));
  profile_room_ = MakeRoom(profile_bytes_);
  basis_room_ = MakeRoom(basis_bytes_);
  bank_room_ = MakeRoom(bank_bytes_);
}

codecs::DecodeInputs Material::SideOf(std::string_view recipe) const {
  if (recipe.starts_with("patternkv")) return {.bank = &bank_};
  if (!recipe.starts_with("cairn")) return {};
  return {.profile = recipe.ends_with(kBasis) ? &basis_ : &profile_};
}

const std::byte* Material::OnDevice(const codecs::DecodeInputs& side) const {
  if (side.bank != nullptr) return bank_room_.get();
  if (side.profile != nullptr) return (side.profile == &basis_ ? basis_room_ : profile_room_).get();
  return nullptr;
}

Workload::Workload(const Scale& scale, const Material& material, std::string_view recipe)
    : scale_(scale),
      spec_(material.spec()),
      side_(material.SideOf(recipe)),
      side_on_device_(material.OnDevice(side_)),
      source_bytes_(material.payload().size()) {
  if (recipe.ends_with(kBasis)) recipe.remove_suffix(kBasis.size());
  Require(codecs::SetRecipe(recipe, side_, {1}, &spec_));
  Require(codecs::MaxImageBytes(spec_, &image_bytes_max_));
  image_.resize(image_bytes_max_);
  size_t bytes = 0;
  codecs::EncodeInputs inputs = codecs::EncodeWith(side_);
  inputs.chain_tokens = ChainTokens();
  Require(codecs::Encode(codecs::ReferenceBackend(), spec_, material.payload(), image_, &bytes,
                         inputs));
  image_.resize(bytes);
  codecs::ImageView view;
  Require(codecs::ParseImage(image_, &view));
  Require(codecs::ParseImagePrefix(image_, &prefix_));
  payload_.resize(source_bytes_);
  Require(codecs::Decode(codecs::ReferenceBackend(), view, spec_.slice, payload_, side_));
  image_bytes_max_ = (image_bytes_max_ + 255) / 256 * 256;
  slot_bytes_ = (SlotBytes(spec_) + 255) / 256 * 256;
  images_ = MakeRoom(scale.images * ImageStride());
  for (uint32_t i = 0; i < scale.images; ++i) {
    device::CopyIn(images_.get() + i * ImageStride(), image_.data(), image_.size());
  }
}

std::vector<AttendImage> Workload::AttendImages() const {
  std::vector<AttendImage> images;
  for (uint32_t i = 0; i < scale_.images; ++i) {
    images.push_back({&prefix_, images_.get() + i * ImageStride(), side_, side_on_device_});
  }
  return images;
}

std::vector<DecodeJob> Workload::JobsOfDecode(uint32_t first, uint32_t batch,
                                              const EngineCache& target) const {
  std::vector<DecodeJob> jobs;
  for (uint32_t i = first; i < std::min(first + batch, scale_.images); ++i) {
    jobs.push_back({&prefix_, images_.get() + i * ImageStride(), spec_.slice, target.ViewOf(i),
                    side_, side_on_device_});
  }
  return jobs;
}

std::vector<EncodeJob> Workload::JobsOfEncode(uint32_t first, uint32_t batch,
                                              const EngineCache& source) const {
  std::vector<EncodeJob> jobs;
  for (uint32_t i = first; i < std::min(first + batch, scale_.images); ++i) {
    jobs.push_back({.spec = &spec_,
                    .source = source.ViewOf(i),
                    .slots = slots_.get() + i * slot_bytes_,
                    .image = encoded_.get() + i * image_bytes_max_,
                    .chain_tokens = ChainTokens(),
                    .side = side_,
                    .side_object = side_on_device_});
  }
  return jobs;
}

Workload::Plans Workload::PlansOfDecode(uint32_t batch, Verify verify,
                                        const EngineCache& target) const {
  std::vector<U32x4> buffer = PlanBuffer(DecodePlanBytesMax());
  const auto room = std::as_writable_bytes(std::span(buffer));
  DecodePlan plan;
  while (MakeDecodePlan(JobsOfDecode(0, batch, target), verify, room, &plan) == Error::kTooLarge) {
    batch /= 2;
  }
  Plans plans{.batch = batch};
  for (uint32_t first = 0; first < scale_.images; first += batch) {
    Require(MakeDecodePlan(JobsOfDecode(first, batch, target), verify, room, &plan));
    plans.decode.push_back(plan);
    plans.bytes.push_back(MakeRoom(std::as_bytes(std::span(buffer)).first(plan.bytes)));
    plans.status.push_back(Words(uint64_t{plan.image_count} * sizeof(uint32_t)));
  }
  return plans;
}

Workload::Plans Workload::PlansOfEncode(uint32_t batch, const EngineCache& source) {
  if (slots_ == nullptr) {
    slots_ = MakeRoom(scale_.images * slot_bytes_);
    encoded_ = MakeRoom(scale_.images * image_bytes_max_);
  }
  std::vector<U32x4> buffer = PlanBuffer(EncodePlanBytesMax());
  const auto room = std::as_writable_bytes(std::span(buffer));
  EncodePlan plan;
  while (MakeEncodePlan(JobsOfEncode(0, batch, source), room, &plan) == Error::kTooLarge) {
    batch /= 2;
  }
  Plans plans{.batch = batch};
  for (uint32_t first = 0; first < scale_.images; first += batch) {
    Require(MakeEncodePlan(JobsOfEncode(first, batch, source), room, &plan));
    plans.encode.push_back(plan);
    plans.bytes.push_back(MakeRoom(std::as_bytes(std::span(buffer)).first(plan.bytes)));
    plans.status.push_back(Words(uint64_t{plan.image_count} * sizeof(uint32_t)));
    plans.results.push_back(Words(uint64_t{plan.tile_count} * sizeof(TileResult)));
  }
  return plans;
}

void Workload::Enqueue(const Plans& plans) {
  for (size_t i = 0; i < plans.decode.size(); ++i) {
    device::Decode(plans.decode[i], plans.bytes[i].get(), StatusOf(plans.status[i]));
  }
  for (size_t i = 0; i < plans.encode.size(); ++i) {
    device::Encode(plans.encode[i], plans.bytes[i].get(), ResultsOf(plans.results[i]),
                   StatusOf(plans.status[i]));
  }
}

std::string Workload::CheckStatuses(const Plans& plans) {
  for (size_t i = 0; i < plans.status.size(); ++i) {
    const uint32_t images =
        plans.decode.empty() ? plans.encode[i].image_count : plans.decode[i].image_count;
    std::vector<uint32_t> words(images);
    device::CopyOut(words.data(), plans.status[i].get(), words.size() * sizeof(uint32_t));
    for (const uint32_t word : words) {
      if (word != 0) return "an image fails: " + std::string(Name(static_cast<Error>(word)));
    }
  }
  return {};
}

std::string Workload::CheckDecoded(const EngineCache& target) const {
  for (const uint32_t image : {0U, scale_.images - 1}) {
    if (target.PayloadOf(image) != payload_) {
      return "image " + std::to_string(image) + " is not decoded as on the CPU";
    }
  }
  return {};
}

std::string Workload::CheckImage(uint32_t index, std::span<const TileResult> results) const {
  std::vector<std::byte> made(image_bytes_max_);
  device::CopyOut(made.data(), encoded_.get() + index * image_bytes_max_, made.size());
  uint64_t bytes = 0;
  // Of blocks in the midst of chains, whose parents nobody has.
  const bool is_whole =
      WritePrefix(RecordedSpec({.spec = &spec_}), results, made, &bytes) == Error::kOk;
  made.resize(bytes);
  if (is_whole && made == image_) return {};
  return "image " + std::to_string(index) + " is not encoded as on the CPU";
}

std::string Workload::CheckEncoded(const Plans& plans) const {
  const auto results_of = [&](size_t plan) {
    std::vector<TileResult> results(plans.encode[plan].tile_count);
    device::CopyOut(results.data(), plans.results[plan].get(), results.size() * sizeof(TileResult));
    return results;
  };
  const size_t tiles = prefix_.tile_count();
  const std::vector<TileResult> first = results_of(0);
  const std::vector<TileResult> last = results_of(plans.encode.size() - 1);
  std::string wrong = CheckImage(0, std::span(first).first(tiles));
  if (wrong.empty()) wrong = CheckImage(scale_.images - 1, std::span(last).last(tiles));
  return wrong;
}

}  // namespace cairn::kernels
