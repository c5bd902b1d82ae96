// SPDX-License-Identifier: Apache-2.0
#include "service/front/side_object_upload.h"

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "base/status.h"

namespace cairn {
namespace {

constexpr RequestBound kPartBound = {
    .bulk_field = v1::PutSideObjectRequest::kContentFieldNumber,
    .bulk_count_max = 1,
    .rest_bytes_max = 4096,
};

class Upload final : public ControlCall {
 public:
  Upload(const CallPlace& place, const UploadParts& parts)
      : ControlCall(place), parts_(parts), deadline_(deadline()) {
    ReadNext();
  }

  void OnReadDone(bool ok) override {
    TakeOver(this);
    if (!ok) return End(Install());
    v1::PutSideObjectRequest part;
    absl::Status status = TakeRequest(kPartBound, &part);
    if (status.ok() && !has_first_) status = Begin(&part);
    if (status.ok()) status = Add(part.content());
    if (!status.ok()) return End(status);
    ReadNext();
  }

 private:
  void ReadNext() {
    if (!ReadHeld(content_.capacity())) {
      End(absl::ResourceExhaustedError("too many calls at once"));
    }
  }

  absl::Status Begin(v1::PutSideObjectRequest* first) {
    total_bytes_ = first->total_bytes() == 0 ? first->content().size() : first->total_bytes();
    if (total_bytes_ > limits::kSideObjectBytesMax) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the side object has ", total_bytes_, " bytes: at most ", limits::kSideObjectBytesMax));
    }
    CAIRN_ASSIGN_OR_RETURN(const std::string tenant, parts_.check(*first));
    CAIRN_ASSIGN_OR_RETURN(share_, parts_.budget.Take(tenant, total_bytes_));
    first_ = *first;
    first_.clear_content();
    has_first_ = true;
    content_.reserve(total_bytes_);
    return absl::OkStatus();
  }

  absl::Status Add(std::string_view content) {
    if (content.size() > limits::kSideObjectPartBytesMax) {
      return absl::InvalidArgumentError(
          absl::StrCat("content: a part has at most ", limits::kSideObjectPartBytesMax, " bytes"));
    }
    if (content.size() > total_bytes_ - content_.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("content: the parts have more than total_bytes, ", total_bytes_));
    }
    if (MonotonicNow() > deadline_) return absl::DeadlineExceededError("the parts took too long");
    content_.append(content);
    return absl::OkStatus();
  }

  absl::StatusOr<v1::PutSideObjectReply> Install() {
    if (is_cancelled()) return absl::CancelledError("cancelled");
    if (!has_first_) return absl::InvalidArgumentError("the call has no request");
    if (content_.size() != total_bytes_) {
      return absl::InvalidArgumentError(absl::StrCat("the parts have ", content_.size(),
                                                     " bytes; total_bytes is ", total_bytes_));
    }
    HoldNothing();
    return parts_.install(first_, content_);
  }

  void End(const absl::StatusOr<v1::PutSideObjectReply>& reply) {
    content_ = std::string();
    share_.Reset();
    parts_.calls.Count(Call::kPutSideObject, reply.status());
    if (!reply.ok()) return FinishAs(reply.status());
    ReplyAndFinish(*reply);
  }

  const UploadParts& parts_;
  const absl::Time deadline_;
  bool has_first_ = false;
  v1::PutSideObjectRequest first_;  // its content is removed
  uint64_t total_bytes_ = 0;
  UploadBudget::Share share_;
  std::string content_;
};

}  // namespace

void UploadBudget::GiveBack(TenantBytes share) {
  const MutexLock lock(mutex_);
  bytes_ -= share.bytes;
  const auto tenant = by_tenant_.find(share.tenant);
  tenant->second -= share.bytes;
  if (tenant->second == 0) by_tenant_.erase(tenant);
}

absl::StatusOr<UploadBudget::Share> UploadBudget::Take(std::string_view tenant, uint64_t bytes) {
  const std::string name(tenant);
  if (bytes == 0) return Share();
  const MutexLock lock(mutex_);
  const auto found = by_tenant_.find(name);
  const uint64_t of_tenant = found == by_tenant_.end() ? 0 : found->second;
  if (bytes_ + bytes > limits::kUploadBytesMax ||
      of_tenant + bytes > limits::kUploadBytesPerTenantMax) {
    return absl::ResourceExhaustedError(
        absl::StrCat("uploads of side objects: at most ", limits::kUploadBytesPerTenantMax,
                     " bytes per tenant, ", limits::kUploadBytesMax, " in all"));
  }
  bytes_ += bytes;
  by_tenant_[name] = of_tenant + bytes;
  return Share(*this, {.tenant = name, .bytes = bytes});
}

ControlCall* StartUpload(const CallPlace& place, const UploadParts& parts) {
  return new Upload(place, parts);
}

}  // namespace cairn
