// SPDX-License-Identifier: Apache-2.0
#pragma once
// Makes the bank of one group from a sample of its source bits. The patterns of each head are the
// k-means centres of its tokens, as docs/recipes/patternkv.md says. Kernels (kernels/mine_plan.h)
// and cairn.bank of the Python package make the same bytes.
//
// Thread-safety: pure functions. They allocate. They are in the library cairn_codecs_mine, so that
// programs that only code need not link them.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "codecs/side/bank_shape.h"
#include "codecs/types/dtype.h"
#include "codecs/types/error.h"

namespace cairn::codecs {

// Mines a bank. Sets *bank on kOk.
//   source  `tokens` tokens of the group, as a payload (codecs/types/shape.h); tokens with a value
//           that cannot be coded are skipped
// If a head has fewer tokens than patterns, its last pattern is repeated. Errors: kInvalidShape
// (the bank's shape; no token, or 2^24 or more; or a dtype without values), kSourceSize,
// kIncomplete (a head without a token).
Error MineBank(const BankShape& shape, DType dtype, uint32_t tokens,
               std::span<const std::byte> source, std::vector<std::byte>* bank);

}  // namespace cairn::codecs
