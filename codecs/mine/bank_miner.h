// SPDX-License-Identifier: Apache-2.0
#pragma once
// Makes the bank of one group from a sample of the group's source elements. The patterns of each
// head are the k-means centres of the tokens of that head, as docs/recipes/patternkv.md says. The
// kernels (kernels/mine_plan.h) and cairn.bank of the Python package make the same bytes.
//
// Thread-safety: pure functions. They allocate. They are in the library cairn_codecs_mine; a
// program that only encodes and decodes need not link it.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "codecs/side/bank_shape.h"
#include "codecs/types/dtype.h"
#include "codecs/types/error.h"

namespace cairn::codecs {

// Mines a bank. Sets *bank on kOk.
//   source  `tokens` tokens of the group, as a payload (codecs/types/shape.h). A token with a value
//           that cannot be coded is skipped
// If a head has fewer tokens than patterns, its last pattern is repeated. Errors: kInvalidShape
// (the bank's shape is invalid; there is no token, or there are 2^24 or more; or the dtype has no
// values), kSourceSize, kIncomplete (a head has no token).
Error MineBank(const BankShape& shape, DType dtype, uint32_t tokens,
               std::span<const std::byte> source, std::vector<std::byte>* bank);

}  // namespace cairn::codecs
