// SPDX-License-Identifier: Apache-2.0
#include "service/codec/device_batch.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/units.h"
#include "codecs/format/image_header.h"
#include "codecs/format/tile_layout.h"
#include "kernels/encode_jobs.h"
#include "kernels/records.h"

namespace cairn {
namespace {

// Offsets of those parts of a batch that do not depend on its images. They are equal in host and
// device memory. Thread-safety: Immutable.
struct BatchLayout {
  static constexpr uint64_t kAlignment = 256;
  static constexpr uint64_t Rounded(uint64_t bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }
  static constexpr uint64_t kStatus = 0;
  static constexpr uint64_t kResults = kAlignment * 4;
  // A plan has at most as many tiles as tasks.
  static constexpr uint64_t kPlan =
      kResults + uint64_t{kernels::kPlanTasksMax} * sizeof(kernels::TileResult);
  static_assert(kernels::kPlanImagesMax * sizeof(uint32_t) <= kResults && kPlan % kAlignment == 0);
  static uint64_t PlanBytes() {
    return Rounded(std::max(kernels::EncodePlanBytesMax(), kernels::DecodePlanBytesMax()));
  }
  static uint64_t Bytes() { return kPlan + PlanBytes(); }
};

}  // namespace

using kernels::LaunchResult;

void FallBack(CodecFigures& figures, CodecJob& job, CodecFallback reason) {
  if (job.done != nullptr) {
    figures.NoteFallback(job.op, reason);
    std::exchange(job.done, nullptr)(
        {.result = absl::UnavailableError("the device does not encode or decode it")});
  }
}

uint64_t RoomForImages(uint64_t batch_bytes) {
  return batch_bytes - std::min(batch_bytes, BatchLayout::Bytes());
}

DeviceBatch::DeviceBatch(std::shared_ptr<GpuDevice> device, HostTier& host, uint64_t bytes,
                         CodecFigures& figures)
    : device_(std::move(device)),
      runtime_(device_->runtime()),
      host_tier_(host),
      bytes_(bytes),
      figures_(figures),
      side_begin_(bytes) {}

absl::StatusOr<std::unique_ptr<DeviceBatch>> DeviceBatch::Make(std::shared_ptr<GpuDevice> device,
                                                               HostTier& host, uint64_t bytes,
                                                               CodecFigures& figures) {
  std::unique_ptr<DeviceBatch> batch(new DeviceBatch(std::move(device), host, bytes, figures));
  CAIRN_RETURN_IF_ERROR(batch->Prepare());
  return batch;
}

absl::Status DeviceBatch::Prepare() {
  memory_ = runtime_.AllocateDevice(bytes_);
  if (memory_ == nullptr) {
    return device_->Refused(absl::StrCat("has no room for ", FormatBytes(bytes_), " of work"));
  }
  host_ = runtime_.AllocateHost(BatchLayout::Bytes());
  if (host_ == nullptr) {
    return device_->Refused(absl::StrCat("has no room for ", FormatBytes(BatchLayout::Bytes()),
                                         " of the host's memory"));
  }
  stream_ = runtime_.OpenStream();
  return stream_ == nullptr ? device_->Refused("has no stream left") : absl::OkStatus();
}

DeviceBatch::~DeviceBatch() {
  CAIRN_CHECK(is_idle(), "work is on the device");
  if (stream_ != nullptr) {
    runtime_.CloseStream(stream_);
  }
  if (host_ != nullptr) {
    runtime_.FreeHost(host_);
  }
  if (memory_ != nullptr) {
    runtime_.FreeDevice(memory_);
  }
}

std::byte* DeviceBatch::Take(uint64_t bytes) {
  std::byte* const at = memory_ + used_bytes_;
  used_bytes_ += BatchLayout::Rounded(bytes);
  CAIRN_CHECK(used_bytes_ <= side_begin_);
  return at;
}

bool DeviceBatch::IsThere(const SideObject* side) const {
  return side != nullptr &&
         std::ranges::find(sides_, side->id(), &SideObjectThere::id) != sides_.end();
}

bool DeviceBatch::PlaceSide(const SideObject* side, uint64_t below, const std::byte** placed) {
  *placed = nullptr;
  if (side == nullptr) {
    return true;
  }
  const auto known = std::ranges::find(sides_, side->id(), &SideObjectThere::id);
  if (known != sides_.end()) {
    *placed = known->at;
    return true;
  }
  const uint64_t bytes = BatchLayout::Rounded(side->bytes().size());
  CAIRN_CHECK(below + bytes <= side_begin_);
  std::byte* const at = memory_ + side_begin_ - bytes;
  if (!NoteStaged(at, side->bytes(), /*is_side=*/true)) {
    return false;
  }
  side_begin_ -= bytes;
  sides_.push_back({.id = side->id(), .at = at});
  *placed = at;
  return true;
}

bool DeviceBatch::Took(LaunchResult result) {
  if (result == LaunchResult::kOk) {
    return true;
  }
  phase_ = Phase::kLeaving;  // work that is on the stream already continues
  if (result == LaunchResult::kDeviceError) {
    device_->Lose(kernels::LastDeviceError());
  }
  return false;
}

bool DeviceBatch::CopyIn(std::byte* to, const void* from, size_t bytes) {
  return phase_ != Phase::kLeaving &&
         Took(runtime_.CopyIn(to, static_cast<const std::byte*>(from), bytes, stream_));
}

void DeviceBatch::Note(std::byte* to, const void* from, size_t bytes, bool is_side) {
  noted_.push_back({.to = to,
                    .from = static_cast<const std::byte*>(from),
                    .bytes = bytes,
                    .job = jobs_.size() - 1,
                    .is_side = is_side});
}

bool DeviceBatch::NoteStaged(std::byte* to, std::span<const std::byte> from, bool is_side) {
  absl::StatusOr<Extent> staged = host_tier_.AllocateStaging(from.size());
  if (!staged.ok()) {
    return false;
  }
  std::ranges::copy(from, staged->bytes().begin());
  Note(to, staged->bytes().data(), from.size(), is_side);
  staged_.push_back(*std::move(staged));
  return true;
}

void DeviceBatch::Forget(size_t first_job) {
  while (!noted_.empty() && noted_.back().job >= first_job) {
    if (const NextCopy& copy = noted_.back(); copy.is_side) {
      CAIRN_CHECK(copy.to == memory_ + side_begin_ && sides_.back().at == copy.to);
      sides_.pop_back();
      side_begin_ += BatchLayout::Rounded(copy.bytes);
    }
    noted_.pop_back();
  }
  encodes_.resize(std::min(encodes_.size(), first_job));
  decodes_.resize(std::min(decodes_.size(), first_job));
}

void DeviceBatch::CopyNoted() {
  for (const NextCopy& copy : noted_) {
    CopyIn(copy.to, copy.from, copy.bytes);
  }
  noted_.clear();
}

// The source as pages: by layer, head and plane, then token by token.
kernels::PagedView DeviceBatch::ViewOfSource(const codecs::ImageSpec& spec, std::byte* base) {
  std::vector<std::byte*>& layers = layers_.emplace_back();
  const uint32_t planes = codecs::PlaneCount(spec.tile.kind);
  uint64_t head_bytes = 0;
  for (uint32_t plane = 0; plane < planes; ++plane) {
    head_bytes += codecs::GeometryOf(spec, plane).SourceBytes();
  }
  const uint64_t layer_bytes = head_bytes * spec.slice.head_count;
  layers.reserve(size_t{planes} * spec.slice.layer_count);  // keeps pointers into it valid
  kernels::PagedView view;
  view.page_count = 1;
  view.page_tokens = codecs::TileRows(spec.tile.kind, spec.tokens);
  uint64_t before = 0;
  for (uint32_t plane = 0; plane < planes; ++plane) {
    const codecs::TileGeometry geometry = codecs::GeometryOf(spec, plane);
    const size_t first = layers.size();
    for (uint32_t layer = 0; layer < spec.slice.layer_count; ++layer) {
      layers.push_back(base + layer * layer_bytes + before);
    }
    kernels::PagedPlane& placed = plane == 0 ? view.k : view.v;
    placed.layers = std::span(layers).subspan(first, spec.slice.layer_count);
    placed.layer_bytes = layer_bytes - before;
    placed.token_stride = geometry.RowBytes();
    placed.head_stride = head_bytes;
    before += geometry.SourceBytes();
  }
  return view;
}

const uint32_t* DeviceBatch::statuses() const {
  return reinterpret_cast<const uint32_t*>(host_ + BatchLayout::kStatus);
}

void DeviceBatch::PlaceAll(std::deque<CodecJob> jobs) {
  uint64_t below = used_bytes_;  // the end of the memory for jobs
  uint64_t sides = 0;
  for (const CodecJob& job : jobs) {
    below += job.device_bytes;
    sides += IsThere(job.side_object()) ? 0 : SideBytesOf(job.side_object());
  }
  if (below + sides > side_begin_) {
    sides_.clear();
    side_begin_ = bytes_;
  }
  for (CodecJob& waiting : jobs) {
    CodecJob& job = jobs_.emplace_back(std::move(waiting));
    const bool is_placed =
        op_ == CodecOp::kEncode ? PlaceEncode(job, below) : PlaceDecode(job, below);
    if (!is_placed) {
      FallBack(figures_, job, CodecFallback::kUnsupported);
      Forget(jobs_.size() - 1);
      jobs_.pop_back();
    }
  }
}

size_t DeviceBatch::MakePlan(codecs::Error* error) {
  const std::span<std::byte> room(host_ + BatchLayout::kPlan, BatchLayout::PlanBytes());
  const auto make = [&](size_t count) {
    return op_ == CodecOp::kEncode
               ? kernels::MakeEncodePlan(std::span(encodes_).first(count), room, &encode_plan_)
               : kernels::MakeDecodePlan(std::span(decodes_).first(count), kernels::Verify::kYes,
                                         room, &decode_plan_);
  };
  size_t count = jobs_.size();
  *error = codecs::Error::kOk;
  while (count > 0 && (*error = make(count)) != codecs::Error::kOk) {
    count /= 2;
  }
  return count;
}

std::deque<CodecJob> DeviceBatch::Begin(std::deque<CodecJob> jobs) {
  CAIRN_CHECK(is_idle() && !jobs.empty());
  phase_ = Phase::kCoding;
  op_ = jobs.front().op;
  used_bytes_ = BatchLayout::Bytes();
  PlaceAll(std::move(jobs));
  codecs::Error error = codecs::Error::kOk;
  const size_t planned = MakePlan(&error);
  size_t taken = planned;
  if (planned == 0 && !jobs_.empty()) {
    FallBack(
        figures_, jobs_.front(),
        error == codecs::Error::kTooLarge ? CodecFallback::kLarge : CodecFallback::kUnsupported);
    taken = 1;
  }
  std::deque<CodecJob> left;
  std::move(jobs_.begin() + static_cast<std::ptrdiff_t>(taken), jobs_.end(),
            std::back_inserter(left));
  for (CodecJob& job : left) {
    job.made.Reset();  // other jobs may need the memory
  }
  jobs_.resize(taken);
  Forget(planned);
  began_ = MonotonicNow();
  CopyNoted();
  if (planned == 0) {
    End();  // no work is on the stream
    return left;
  }
  figures_.NoteBatch(op_, planned);
  op_ == CodecOp::kEncode ? LaunchEncode() : LaunchDecode();
  waits_since_ = MonotonicNow();
  if (phase_ == Phase::kLeaving) {
    FallBackAll(device_->is_out() ? CodecFallback::kLost : CodecFallback::kUnsupported);
    sides_.clear();  // their copies may have failed
  }
  return left;
}

bool DeviceBatch::Advance() {
  bool is_over = false;
  if (runtime_.Poll(stream_, &is_over) != LaunchResult::kOk) {
    device_->Lose(kernels::LastDeviceError());
    FallBackAll(CodecFallback::kLost);
    End();
    return true;
  }
  if (!is_over) {
    return false;
  }
  if (phase_ == Phase::kCoding && !device_->is_out()) {
    CopyImages();
    return true;
  }
  if (phase_ == Phase::kCopying) {
    Finish();
  }
  FallBackAll(CodecFallback::kLost);
  End();
  return true;
}

void DeviceBatch::Finish() {
  if (op_ == CodecOp::kDecode) {
    CheckDecoded();
  }
  const bool is_encode = op_ == CodecOp::kEncode;
  std::vector<codecs::RecipeId> recipes;
  for (const CodecJob& job : jobs_) {
    recipes.push_back(is_encode ? job.encode.spec.recipe.id : job.decode.view.spec().recipe.id);
  }
  // An owner that was answered finds its job in the figures.
  figures_.NoteSeconds(op_, recipes, MonotonicNow() - began_);
  for (CodecJob& job : jobs_) {
    if (job.done == nullptr) {
      continue;
    }
    const uint64_t made_bytes = job.made.size_bytes();
    figures_.NoteMade(op_, is_encode ? job.encode.source.size() : made_bytes,
                      is_encode ? made_bytes : job.decode.view.image_bytes());
    job.encode.keeps = job.decode.keeps = nullptr;  // freed before the owner answers
    std::exchange(job.done, nullptr)({.result = std::move(job.made)});
  }
}

void DeviceBatch::End() {
  jobs_.clear();
  encodes_.clear();
  decodes_.clear();
  layers_.clear();
  parents_.clear();
  staged_.clear();
  phase_ = Phase::kIdle;
}

void DeviceBatch::FallBackLate(absl::Time now) {
  for (CodecJob& job : jobs_) {
    if (now >= job.give_up) {
      FallBack(figures_, job, CodecFallback::kLate);
    }
  }
}

void DeviceBatch::FallBackAll(CodecFallback reason) {
  for (CodecJob& job : jobs_) {
    FallBack(figures_, job, reason);
  }
}

// --- Encoding ------------------------------------------------------------------------------------
// The operations of an encode on the stream, and its results.

namespace {

// Small inputs of an image, with one float per element.
uint64_t InputBytes(const EncodeWork& work) {
  return BatchLayout::Rounded(work.query_magnitudes.size_bytes()) +
         BatchLayout::Rounded(work.token_scores.size_bytes());
}

}  // namespace

uint64_t DeviceBytesOf(const EncodeWork& work) {
  uint64_t image_bytes = 0;
  CAIRN_CHECK(codecs::MaxImageBytes(work.spec, &image_bytes) == codecs::Error::kOk);
  uint64_t bytes = BatchLayout::Rounded(work.source.size()) +
                   BatchLayout::Rounded(kernels::SlotBytes(work.spec)) +
                   BatchLayout::Rounded(image_bytes) + InputBytes(work);
  for (const codecs::ImageView& parent : work.parents) {
    bytes += BatchLayout::Rounded(parent.image_bytes());
  }
  return bytes;
}

uint64_t SideBytesOf(const SideObject* side) {
  return side == nullptr ? 0 : BatchLayout::Rounded(side->bytes().size());
}

bool DeviceBatch::PlaceEncode(CodecJob& job, uint64_t below) {
  EncodeWork& work = job.encode;
  uint64_t image_bytes = 0;
  CAIRN_CHECK(codecs::MaxImageBytes(work.spec, &image_bytes) == codecs::Error::kOk);
  kernels::EncodeJob made;
  made.spec = &work.spec;
  std::byte* const source = Take(work.source.size());
  made.source = ViewOfSource(work.spec, source);
  made.slots = Take(kernels::SlotBytes(work.spec));
  made.image = Take(image_bytes);
  std::vector<kernels::StoredImage>& parents = parents_.emplace_back();
  for (const codecs::ImageView& parent : work.parents) {
    std::byte* const at = Take(parent.image_bytes());
    parents.push_back({.prefix = &parent, .image = at});
    Note(at, parent.bytes().data(), parent.image_bytes());
  }
  made.parents = parents;
  const auto copy_floats = [this](std::span<const float> values, const float** placed) {
    if (values.empty()) {
      return true;
    }
    std::byte* const at = Take(values.size_bytes());
    *placed = reinterpret_cast<const float*>(at);
    return NoteStaged(at, std::as_bytes(values));
  };
  if (!copy_floats(work.query_magnitudes, &made.query_magnitudes) ||
      !copy_floats(work.token_scores, &made.token_scores) ||
      !PlaceSide(work.side_object, below, &made.side_object)) {
    FallBack(figures_, job, CodecFallback::kNoRoom);
    return false;
  }
  if (work.side_object != nullptr) {
    made.side = work.side_object->content().inputs();
  }
  Note(source, work.source.data(), work.source.size());
  encodes_.push_back(made);
  return kernels::CheckJob(made) == codecs::Error::kOk;
}

void DeviceBatch::LaunchEncode() {
  std::byte* const status = memory_ + BatchLayout::kStatus;
  std::byte* const results = memory_ + BatchLayout::kResults;
  std::byte* const plan = memory_ + BatchLayout::kPlan;
  const uint64_t status_bytes = encodes_.size() * sizeof(uint32_t);
  static_cast<void>(
      phase_ != Phase::kLeaving && Took(runtime_.Clear(status, status_bytes, stream_)) &&
      CopyIn(plan, host_ + BatchLayout::kPlan, encode_plan_.bytes) &&
      Took(runtime_.Encode(encode_plan_, plan, reinterpret_cast<kernels::TileResult*>(results),
                           reinterpret_cast<uint32_t*>(status), stream_)) &&
      Took(runtime_.CopyOut(host_ + BatchLayout::kStatus, status, status_bytes, stream_)) &&
      Took(runtime_.CopyOut(host_ + BatchLayout::kResults, results,
                            encode_plan_.tile_count * sizeof(kernels::TileResult), stream_)));
}

bool DeviceBatch::CopyImage(CodecJob& job, const kernels::EncodeJob& made, uint32_t status,
                            std::span<const kernels::TileResult> tiles) {
  const uint64_t prefix = codecs::PrefixBytes(tiles.size());
  uint64_t bytes = prefix, bytes_max = 0;
  for (const kernels::TileResult& tile : tiles) {
    bytes += tile.bytes;
  }
  CAIRN_CHECK(codecs::MaxImageBytes(job.encode.spec, &bytes_max) == codecs::Error::kOk);
  if (status != 0 || bytes > bytes_max) {
    FallBack(figures_, job, CodecFallback::kRefused);
    return true;
  }
  absl::StatusOr<Extent> image = job.encode.room(bytes);
  if (!image.ok()) {
    FallBack(figures_, job, CodecFallback::kNoRoom);
    return true;
  }
  job.made = *std::move(image);
  uint64_t written = 0;
  const codecs::Error error = kernels::WritePrefix(kernels::RecordedSpec(made), tiles,
                                                   job.made.bytes().first(prefix), &written);
  if (error != codecs::Error::kOk || written != bytes) {
    FallBack(figures_, job, CodecFallback::kRefused);
    return true;
  }
  return Took(runtime_.CopyOut(job.made.bytes().data() + prefix, made.image + prefix,
                               bytes - prefix, stream_));
}

void DeviceBatch::CopyImages() {
  phase_ = Phase::kCopying;
  const auto* results = reinterpret_cast<const kernels::TileResult*>(host_ + BatchLayout::kResults);
  for (size_t i = 0; i < jobs_.size(); ++i) {
    const uint32_t tiles = static_cast<uint32_t>(codecs::TilingOf(jobs_[i].encode.spec).count());
    const std::span<const kernels::TileResult> of_image(results, tiles);
    results += tiles;
    if (jobs_[i].done != nullptr && !CopyImage(jobs_[i], encodes_[i], statuses()[i], of_image)) {
      return FallBackAll(CodecFallback::kLost);
    }
  }
  waits_since_ = MonotonicNow();
}

// --- Decoding ------------------------------------------------------------------------------------
// The operations of a decode on the stream.

namespace {

// The range of an image's bytes that has the tiles of a slice.
struct TileRange {
  uint64_t begin = UINT64_MAX, end = 0;

  uint64_t bytes() const { return end - begin; }
};

TileRange RangeOf(const DecodeWork& work) {
  TileRange range;
  const codecs::Error error = work.view.tiling().ForEach(work.slice, [&](uint32_t index) {
    const codecs::TileEntry tile = work.view.Tile(index);
    range.begin = std::min<uint64_t>(range.begin, tile.offset);
    range.end = std::max<uint64_t>(range.end, tile.offset + tile.bytes);
    return codecs::Error::kOk;
  });
  CAIRN_CHECK(error == codecs::Error::kOk && range.begin < range.end);
  range.begin = range.begin / BatchLayout::kAlignment * BatchLayout::kAlignment;
  return range;
}

}  // namespace

uint64_t DeviceBytesOf(const DecodeWork& work) {
  return BatchLayout::Rounded(RangeOf(work).bytes()) + BatchLayout::Rounded(work.source_bytes);
}

bool DeviceBatch::PlaceDecode(CodecJob& job, uint64_t below) {
  DecodeWork& work = job.decode;
  kernels::DecodeJob made;
  absl::StatusOr<Extent> target = work.room(work.source_bytes);
  if (!target.ok() || !PlaceSide(work.side_object, below, &made.side_object)) {
    FallBack(figures_, job, CodecFallback::kNoRoom);
    return false;
  }
  job.made = *std::move(target);
  const TileRange range = RangeOf(work);
  std::byte* const tiles = Take(range.bytes());
  codecs::ImageSpec spec = work.view.spec();
  spec.slice = work.slice;
  made.prefix = &work.view;
  made.image = tiles - range.begin;  // only the tiles are there; kernels read nothing else
  made.slice = work.slice;
  made.target = ViewOfSource(spec, Take(work.source_bytes));
  if (work.side_object != nullptr) {
    made.side = work.side_object->content().inputs();
  }
  Note(tiles, work.view.bytes().data() + range.begin, range.bytes());
  decodes_.push_back(made);
  return true;
}

void DeviceBatch::LaunchDecode() {
  std::byte* const status = memory_ + BatchLayout::kStatus;
  std::byte* const plan = memory_ + BatchLayout::kPlan;
  const uint64_t status_bytes = decodes_.size() * sizeof(uint32_t);
  bool is_there =
      phase_ != Phase::kLeaving && Took(runtime_.Clear(status, status_bytes, stream_)) &&
      CopyIn(plan, host_ + BatchLayout::kPlan, decode_plan_.bytes) &&
      Took(runtime_.Decode(decode_plan_, plan, reinterpret_cast<uint32_t*>(status), stream_)) &&
      Took(runtime_.CopyOut(host_ + BatchLayout::kStatus, status, status_bytes, stream_));
  for (size_t i = 0; is_there && i < decodes_.size(); ++i) {
    is_there =
        Took(runtime_.CopyOut(jobs_[i].made.bytes().data(), decodes_[i].target.k.layers.front(),
                              jobs_[i].decode.source_bytes, stream_));
  }
  if (is_there) {
    phase_ = Phase::kCopying;
  }
}

void DeviceBatch::CheckDecoded() {
  for (size_t i = 0; i < jobs_.size(); ++i) {
    if (statuses()[i] != 0) {
      FallBack(figures_, jobs_[i], CodecFallback::kRefused);
    }
  }
}

}  // namespace cairn
