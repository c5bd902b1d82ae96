// SPDX-License-Identifier: Apache-2.0
#pragma once
// An image that a get has left in the daemon's memory. Private to client/cpp.
//
// Thread-safety: Thread-compatible.

#include <cstddef>
#include <memory>
#include <vector>

#include "codecs/image/image.h"
#include "transport/transport.h"

namespace cairn {

struct LentImage {
  // Null: the image was copied to the target, and the other fields are unspecified. Whoever reads
  // the bytes of `parts` must afterwards check that the loan is in force, and verify the tiles.
  std::unique_ptr<transport::Loan> loan;
  std::vector<std::byte> prefix;          // a copy of header and directory, which has been checked
  std::vector<codecs::SharedPart> parts;  // all tiles, in the daemon's memory, and their offsets
};

}  // namespace cairn
