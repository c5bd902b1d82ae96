// SPDX-License-Identifier: Apache-2.0
#pragma once
// Makes a bank of one group out of a sample of its source bits: the patterns of each head are the
// centres of its tokens by k-means, as docs/recipes/patternkv.md says. Kernels make the same bytes
// (kernels/mine_plan.h), and so does cairn.bank of the Python package.
//
// Thread-safety: pure functions. Allocate; in the library cairn_codecs_mine, which nothing that
// only codes has to link.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "codecs/side/bank_shape.h"
#include "codecs/types/dtype.h"
#include "codecs/types/error.h"

namespace cairn::codecs {

// *bank is set on kOk.
//   source  of so many tokens of the group, as codecs/types/shape.h lays a payload out; tokens with
//           a value that has no code are left out
// A head of fewer tokens than patterns has the last of its patterns again. kInvalidShape: the
// bank's shape, no token, 2^24 or more, or a dtype without values. kSourceSize. kIncomplete: a head
// without a token.
Error MineBank(const BankShape& shape, DType dtype, uint32_t tokens,
               std::span<const std::byte> source, std::vector<std::byte>* bank);

}  // namespace cairn::codecs
