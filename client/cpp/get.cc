// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <bit>
#include <cstring>
#include <string>
#include <variant>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status.h"
#include "client/cpp/lent_image.h"
#include "client/cpp/transfer.h"
#include "codecs/backend/backends.h"
#include "codecs/checksum/checksum.h"
#include "codecs/image/decode.h"
#include "codecs/image/image.h"
#include "codecs/image/settle.h"

namespace cairn {
namespace {

// Enough bytes of a key to find it in a log, too few to reveal it.
constexpr size_t kKeyBytesLogged = 6;

bool IsSame(const std::array<std::byte, 32>& bytes, const codecs::Digest& digest) {
  return std::bit_cast<codecs::Digest>(bytes) == digest;
}

absl::Status TargetTooSmall(uint64_t has, uint64_t needs) {
  return absl::InvalidArgumentError(
      absl::StrCat("target has ", has, " bytes; the slice has ", needs));
}

}  // namespace

absl::Status FromCodec(codecs::Error error, std::string_view what) {
  if (error == codecs::Error::kOk) {
    return absl::OkStatus();
  }
  const std::string text = absl::StrCat(ToAbsl(what), ": ", ToAbsl(codecs::Name(error)));
  // Errors for bytes that are not an image come last in the enumeration.
  return error >= codecs::Error::kTruncated ? absl::DataLossError(text)
                                            : absl::InvalidArgumentError(text);
}

absl::StatusOr<const codecs::Backend*> FindBackend() {
  const codecs::Backend* backend = nullptr;
  if (codecs::ActiveBackend(&backend) != codecs::Error::kOk || !codecs::IsCrc32cChoiceKept()) {
    return absl::InvalidArgumentError(codecs::RefusedChoice());
  }
  return backend;
}

absl::Status VerifyAndDecode(const codecs::ImageView& view, const PlaneViews& target,
                             absl::FunctionRef<std::span<std::byte>(size_t bytes)> room,
                             const codecs::DecodeInputs& inputs) {
  CAIRN_ASSIGN_OR_RETURN(const codecs::Backend* backend, FindBackend());
  const codecs::DecodeJob job{&view, view.spec().slice, target, inputs};
  const uint64_t bytes = codecs::ScratchBytes({&job, 1});
  const std::span<std::byte> scratch = bytes == 0 ? std::span<std::byte>() : room(bytes);
  return FromCodec(codecs::DecodeAll(*backend, {&job, 1}, scratch), "image");
}

const void* GetExchange::place() const {
  if (const auto* image = std::get_if<ImageTarget>(&request_.target)) {
    return image->bytes.data();
  }
  const auto* source = std::get_if<SourceTarget>(&request_.target);
  return source != nullptr && request_.decode == Side::kDaemon ? source->bytes.data() : nullptr;
}

LentImage* GetExchange::lent() const {
  const auto* image = std::get_if<ImageTarget>(&request_.target);
  return image == nullptr ? nullptr : image->lent;
}

bool GetExchange::WantsImage() const {
  return std::holds_alternative<ImageTarget>(request_.target) || request_.decode == Side::kClient;
}

uint64_t GetExchange::reply_bytes_max() const {
  return WantsImage() ? std::min(ImageBytesMaxOf(slice_), context_.payload_bytes_max)
                      : SourceBytesOf(slice_);
}

absl::Status GetExchange::Prepare(Scratch& scratch, proto::Frame& request, transport::Call& call) {
  scratch_ = &scratch;
  const uint64_t source_bytes = SourceBytesOf(slice_);
  const auto* source = std::get_if<SourceTarget>(&request_.target);
  const auto* image = std::get_if<ImageTarget>(&request_.target);
  const bool is_image = WantsImage();
  if (source != nullptr && source->bytes.size() != source_bytes) {
    return TargetTooSmall(source->bytes.size(), source_bytes);
  }
  if (image != nullptr && image->bytes.size() < codecs::kHeaderBytes) {
    return TargetTooSmall(image->bytes.size(), codecs::kHeaderBytes);
  }
  if (const auto* views = std::get_if<PlaneViews>(&request_.target)) {
    CAIRN_RETURN_IF_ERROR(Validate(slice_.view_shape(), *views, ViewUse::kTarget));
  }
  if (image != nullptr) {
    call.target =
        image->bytes.first(std::min<size_t>(image->bytes.size(), context_.payload_bytes_max));
  } else if (is_image) {
    call.target = scratch.Region(std::min(ImageBytesMaxOf(slice_), context_.payload_bytes_max));
  } else if (source != nullptr) {
    call.target = source->bytes;
  } else {
    call.target = scratch.Region(source_bytes);
  }
  // An image that this client decodes, here or on a device, is read in place.
  call.takes_loan = is_image && (image == nullptr || image->lent != nullptr) && !wants_copy_;
  request.body = proto::Get{.space_id = context_.space_id,
                            .key = request_.key,
                            .lease = request_.lease,
                            .group = slice_.group,
                            .slice = slice_.range(),
                            .form = is_image ? proto::Form::kImage : proto::Form::kSource,
                            .target_bytes = call.target.size()};
  return absl::OkStatus();
}

absl::StatusOr<codecs::ImageView> GetExchange::Parse(std::span<const std::byte> payload) {
  codecs::ImageView view;
  CAIRN_RETURN_IF_ERROR(FromCodec(codecs::ParseImage(payload, &view), "image"));
  return view;
}

absl::StatusOr<codecs::ImageView> GetExchange::ParseLent() {
  // The bytes that begin with header and directory: nothing but them if the tiles lie elsewhere.
  const bool is_apart = loan->bytes().empty();
  const std::span<const std::byte> start = is_apart ? loan->head() : loan->bytes();
  std::array<std::byte, codecs::kHeaderBytes> header;
  if (start.size() < header.size()) {
    return absl::DataLossError("the image is shorter than a header");
  }
  std::memcpy(header.data(), start.data(), header.size());
  uint64_t bytes = 0;
  CAIRN_RETURN_IF_ERROR(FromCodec(codecs::PeekPrefixBytes(header, &bytes), "image"));
  if (start.size() < bytes) {
    return absl::DataLossError("the image is shorter than its directory");
  }
  std::span<std::byte> prefix;
  if (lent() == nullptr) {
    prefix = scratch_->Prefix(bytes);
  } else {
    lent()->prefix.resize(bytes);
    prefix = lent()->prefix;
  }
  std::memcpy(prefix.data(), start.data(), bytes);
  codecs::ImageView view;
  parts_.clear();
  if (!is_apart) {
    parts_.push_back({.offset = 0, .bytes = start});
    CAIRN_RETURN_IF_ERROR(FromCodec(codecs::ParseSharedImage(prefix, start, &view), "image"));
    return view;
  }
  if (start.size() != bytes) {
    return absl::DataLossError("the image has bytes between its directory and its tiles");
  }
  for (const std::span<const std::byte> place : loan->places()) {
    parts_.push_back({.offset = bytes, .bytes = place});
    bytes += place.size();
  }
  CAIRN_RETURN_IF_ERROR(FromCodec(codecs::ParseSharedImage(prefix, parts_, &view), "image"));
  return view;
}

absl::Status GetExchange::TakeImage(std::span<const std::byte> payload, uint64_t* bytes) {
  CAIRN_ASSIGN_OR_RETURN(const codecs::ImageView view,
                         loan != nullptr ? ParseLent() : Parse(payload));
  const uint64_t payload_bytes = loan != nullptr ? loan->payload_bytes() : payload.size();
  const codecs::ImageSpec& spec = view.spec();
  const bool is_asked_for = IsSame(context_.fingerprint, spec.space) &&
                            IsSame(request_.key, spec.key) && spec.group == slice_.group &&
                            spec.slice == slice_.slice && spec.tile == slice_.tile &&
                            spec.tokens == slice_.tokens && view.image_bytes() == payload_bytes;
  if (!is_asked_for) {
    return absl::DataLossError("the image is another one than requested");
  }
  if (std::holds_alternative<ImageTarget>(request_.target)) {
    *bytes = payload_bytes;
    if (loan != nullptr) {
      return absl::OkStatus();  // who reads the tiles verifies them
    }
    return FromCodec(codecs::VerifyTiles(view), "image");
  }
  SideObjectHandle side_object;  // kept until the image is decoded
  if (spec.recipe.NeedsSideObject() && spec.side_object_count > 0) {
    CAIRN_ASSIGN_OR_RETURN(side_object, context_.side_object(spec.side_objects[0]));
  }
  const codecs::DecodeInputs inputs = InputsOf(side_object);
  if (codecs::CheckCodableWith(spec, inputs) != codecs::Error::kOk) {
    return absl::DataLossError("the image does not match the side object that it names");
  }
  *bytes = SourceBytesOf(slice_);
  const auto* source = std::get_if<SourceTarget>(&request_.target);
  return VerifyAndDecode(
      view,
      source != nullptr ? ContiguousViews(slice_.view_shape(), source->bytes.data())
                        : std::get<PlaneViews>(request_.target),
      [this](size_t room) { return scratch_->Heap(room); }, inputs);
}

absl::Status GetExchange::TakeSource(const proto::Frame& reply, std::span<const std::byte> payload,
                                     uint64_t* bytes) {
  *bytes = SourceBytesOf(slice_);
  if (payload.size() != *bytes) {
    return absl::DataLossError(
        absl::StrCat("the payload has ", payload.size(), " bytes; the slice has ", *bytes));
  }
  if (codecs::Crc32c(payload) != reply.payload_crc32c) {
    return absl::DataLossError("the payload's checksum does not match");
  }
  if (const auto* views = std::get_if<PlaneViews>(&request_.target)) {
    Scatter(slice_.view_shape(), *views, payload);
  }
  return absl::OkStatus();
}

void GetExchange::Finish(const proto::Frame& reply, std::span<const std::byte> payload) {
  const auto* get = std::get_if<proto::GetReply>(&reply.body);
  if (get == nullptr) {
    return Fail(absl::InternalError("the daemon answered a get with another kind of frame"));
  }
  const bool wants_image = WantsImage();
  uint64_t bytes = 0;
  absl::Status status;
  if ((get->form == proto::Form::kImage) != wants_image) {
    status = absl::DataLossError("the reply has another form than requested");
  } else {
    status = wants_image ? TakeImage(payload, &bytes) : TakeSource(reply, payload, &bytes);
  }
  wants_copy_ = false;
  if (loan != nullptr && !loan->IsInForce()) {
    // The loan has ended, so the daemon may have changed the bytes before they were read.
    return Fail(absl::NotFoundError("the loan was over before the block was decoded"));
  }
  if (may_be_unverified && absl::IsDataLoss(status)) {
    wants_copy_ = true;
    result_ = status;
    return;
  }
  if (!status.ok()) {
    return Fail(status);
  }
  result_ = GetResult{.tier = static_cast<Tier>(get->tier),
                      .bytes = bytes,
                      .wire_bytes = reply.payload_bytes,
                      .first_position = get->first_position};
}

void GetExchange::KeepLoan(std::unique_ptr<transport::Loan> loan) {
  if (lent() != nullptr && result_.ok()) {
    lent()->loan = std::move(loan);
    lent()->parts = std::move(parts_);
  }
}

void GetExchange::Fail(const absl::Status& status) {
  if (!absl::IsDataLoss(status)) {
    result_ = status;
    return;
  }
  is_corrupt_ = true;
  LogWarn("client", "block failed verification: treated as a miss",
          {{"key", proto::Hex(std::span(request_.key).first(kKeyBytesLogged))},
           {"group", slice_.group},
           {"reason", ToStd(status.message())}});
  result_ = absl::NotFoundError(
      absl::StrCat("failed verification, treated as a miss: ", status.message()));
}

}  // namespace cairn
