// SPDX-License-Identifier: Apache-2.0
#pragma once
// Image files, for inspect, put and verify.

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status.h"
#include "client/cpp/transfer.h"
#include "codecs/image/image.h"

namespace cairn::cli {

// A file's bytes and the image parsed from them. Not movable: the view borrows the bytes.
struct ImageFile {
  std::string bytes;
  codecs::ImageView view;

  ImageFile() = default;
  ImageFile(const ImageFile&) = delete;
  ImageFile& operator=(const ImageFile&) = delete;

  // Errors: NotFound, ResourceExhausted (the file is larger than any image), DataLoss (it is not an
  // image, or bytes follow the image).
  absl::Status Load(const std::string& path) {
    CAIRN_ASSIGN_OR_RETURN(bytes, ReadFile(path, codecs::kImageBytesMax));
    const auto content = std::as_bytes(std::span(bytes.data(), bytes.size()));
    CAIRN_RETURN_IF_ERROR(
        FromCodec(codecs::ParseImage(content, &view), absl::StrCat(path, ": not an intact image")));
    if (view.bytes().size() != bytes.size()) {
      return absl::DataLossError(
          absl::StrCat(path, ": ", bytes.size() - view.bytes().size(), " bytes follow the image"));
    }
    return absl::OkStatus();
  }
};

}  // namespace cairn::cli
