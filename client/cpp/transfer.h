// SPDX-License-Identifier: Apache-2.0
#pragma once
// Puts and gets as exchanges of the data plane. Private to client/cpp.

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/cpp/block_io.h"
#include "client/cpp/data.h"
#include "client/cpp/side_objects.h"
#include "codecs/backend/backend.h"
#include "codecs/image/inputs.h"
#include "codecs/recipe/recipe.h"
#include "codecs/types/shape.h"
#include "proto/frame.h"

namespace cairn {

// Data that all exchanges of a space borrow.
struct TransferContext {
  Fingerprint fingerprint{};
  uint64_t space_id = 0;
  uint64_t payload_bytes_max = 0;
  bool takes_engine_hashes = false;
  bool takes_tokens = false;
  codecs::Recipe recipe;  // without the parameters of its side object
  // Returns the side object with that id. May ask the daemon for it. Errors: NotFound if the daemon
  // no longer has it.
  absl::FunctionRef<absl::StatusOr<SideObjectHandle>(const Digest& id)> side_object;
  // Returns a group's current side object of a kind; null if there is none. May ask the daemon for
  // it.
  absl::FunctionRef<absl::StatusOr<SideObjectHandle>(const SideObjectCache::Slot& slot)> current;
};

class PutExchange final : public Exchange {
 public:
  // `context` and `request` must outlive the exchange. `slice` is the result of PlaceSlice() for
  // the request's slice.
  PutExchange(const TransferContext& context, const PutRequest& request, const PlacedSlice& slice)
      : context_(context), request_(request), slice_(slice) {}

  absl::Status Prepare(Scratch& scratch, proto::Frame& request, transport::Call& call) override;
  void Finish(const proto::Frame& reply, std::span<const std::byte> payload) override;
  void Fail(const absl::Status& status) override { result_ = status; }
  const void* place() const override;

  const absl::StatusOr<PutResult>& result() const { return result_; }
  // Returns the result if it is known that the daemon stored the block, durably or not. Returns
  // nullopt if that is not known.
  const std::optional<PutResult>& stored() const { return stored_; }
  uint64_t wire_bytes() const { return wire_bytes_; }

 private:
  struct Payload {
    std::span<const std::byte> bytes;
    uint32_t crc = 0;
    proto::Form form = proto::Form::kSource;
    std::span<std::byte> rest{};  // memory after `bytes`, used for statistics
  };
  // Returns whether the client encodes the block: the request asks for it, and it is possible. With
  // the recipe ott, a client can encode only the first block of a chain, because only the daemon
  // has the previous block.
  bool IsEncodedHere() const;
  // Checks the statistics of the request and selects those to send.
  absl::Status SetStatistics();
  // Checks the names in the request (the engine's hashes and the token ids). Sets those in `put`
  // that the daemon takes.
  absl::Status SetNames(proto::Put* put);
  Payload PlacePayload(Scratch& scratch, std::span<const std::byte> bytes, proto::Form form) const;
  absl::StatusOr<Payload> MakeSource(Scratch& scratch) const;
  absl::StatusOr<SideObjectHandle> SetRecipe(codecs::ImageSpec* spec) const;
  absl::StatusOr<Payload> MakeImage(Scratch& scratch) const;
  absl::StatusOr<Payload> MakePayload(Scratch& scratch) const;

  const TransferContext& context_;
  const PutRequest& request_;
  const PlacedSlice slice_;
  // The statistics to send, in the order in which they follow the payload.
  std::array<std::span<const float>, proto::kStatisticCount> sent_;
  std::span<const uint32_t> sent_tokens_;
  uint64_t sent_bytes_ = 0;  // size of payload and statistics
  uint64_t wire_bytes_ = 0;
  absl::StatusOr<PutResult> result_ = absl::InternalError("the put never ended");
  std::optional<PutResult> stored_;
};

class GetExchange final : public Exchange {
 public:
  GetExchange(const TransferContext& context, const GetRequest& request, const PlacedSlice& slice)
      : context_(context), request_(request), slice_(slice) {}

  absl::Status Prepare(Scratch& scratch, proto::Frame& request, transport::Call& call) override;
  void Finish(const proto::Frame& reply, std::span<const std::byte> payload) override;
  void KeepLoan(std::unique_ptr<transport::Loan> loan) override;
  void Fail(const absl::Status& status) override;
  const void* place() const override;
  uint64_t reply_bytes_max() const override;

  const absl::StatusOr<GetResult>& result() const { return result_; }
  // Returns whether a checksum did not match or the reply did not fit the request. result() is then
  // NotFound.
  bool is_corrupt() const { return is_corrupt_; }
  // Returns true if a payload that the daemon may not have verified is damaged. The exchange should
  // then run again without a loan: the daemon verifies the block before it copies it, finds the
  // damage, and may read the block from another tier.
  bool wants_copy() const override { return wants_copy_; }

 private:
  bool WantsImage() const;
  LentImage* lent() const;  // null: the request takes no lent image
  absl::Status TakeImage(std::span<const std::byte> payload, uint64_t* bytes);
  absl::StatusOr<codecs::ImageView> Parse(std::span<const std::byte> payload);
  // Copies the part of the lent image before its tiles, and parses the copy. Sets parts_.
  absl::StatusOr<codecs::ImageView> ParseLent();
  absl::Status TakeSource(const proto::Frame& reply, std::span<const std::byte> payload,
                          uint64_t* bytes);

  const TransferContext& context_;
  const GetRequest& request_;
  const PlacedSlice slice_;
  Scratch* scratch_ = nullptr;             // from Prepare() until the exchange ends
  std::vector<codecs::SharedPart> parts_;  // of a lent image: where its bytes lie
  bool is_corrupt_ = false;
  bool wants_copy_ = false;
  absl::StatusOr<GetResult> result_ = absl::InternalError("the get never ended");
};

// Verifies and decodes every tile of `view`, one after another, so that each is decoded while its
// bytes are in the CPU's cache. `room(bytes)` returns memory; it is called only for tiles whose
// tokens are scattered in the target. `inputs` are the side objects that the image names. Errors:
// DataLoss if a checksum does not match; then the content of `target` is unspecified. REQUIRES:
// Validate(target) is OK.
absl::Status VerifyAndDecode(const codecs::ImageView& view, const PlaneViews& target,
                             absl::FunctionRef<std::span<std::byte>(size_t bytes)> room,
                             const codecs::DecodeInputs& inputs = {});

// Returns the codec backend. Errors: InvalidArgument if the environment names a backend that does
// not exist.
absl::StatusOr<const codecs::Backend*> FindBackend();

// Converts an error of a codec to a status. Returns DataLoss for bytes that are not an image, or
// that have changed since they were written, and InvalidArgument for other errors.
absl::Status FromCodec(codecs::Error error, std::string_view what);

}  // namespace cairn
