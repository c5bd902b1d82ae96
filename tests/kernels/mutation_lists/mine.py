# SPDX-License-Identifier: Apache-2.0
"""Mistakes of kernels that mine. mutations.py has how an entry is read."""

MINED = ["tests/kernels/mine_test.cc"]
MINE_BANK = "kernels/body/mine_bank.h"

MUTATIONS = {
    "mine_uncodable": (MINED, MINE_BANK, "is_left_out |= codecs::IsRowValue(", "is_left_out &= codecs::IsRowValue("),
    "mine_seed": (MINED, MINE_BANK, "codecs::SeedOf(centre, head.count, points)", "codecs::SeedOf(centre, head.plane.patterns, points)"),
    "mine_rank": (MINED, MINE_BANK, "for (; before < point; ++before) marks &= marks - 1;", ""),
    "mine_order": (MINED, MINE_BANK, "sums[i] = codecs::Add(sums[i], codecs::Multiply(left, left));", "sums[i % 8] = codecs::Add(sums[i % 8], codecs::Multiply(left, left));"),
    "mine_fill": (MINED, MINE_BANK, "i < groups * head.channels * kCentresBeside;", "i < groups * head.plane.dim * kCentresBeside;"),
    "mine_ties": (MINED, MINE_BANK, "of < distance || (of == distance && other < best)", "of < distance || (of == distance && other > best)"),
    "mine_last_centres": (MINED, MINE_BANK, "if (first != 0 && !(of < distance)) continue;", "if (first != 0) continue;"),
    "mine_sums": (MINED, MINE_BANK, "for (; marks != 0; marks &= marks - 1) {\n      const", "for (; marks != 0; marks = 0) {\n      const"),
    "mine_channels": (MINED, MINE_BANK, "c += kChannelsOfLane * kWarpLanes) {\n      members", "c += 2 * kChannelsOfLane * kWarpLanes) {\n      members"),
    "mine_farthest": (MINED, MINE_BANK, "<< 32 | ~token);", "<< 32 | token);"),
    "mine_twice": (MINED, MINE_BANK, "if (ThreadIndex() == 0) StoreGlobal(head.left", "if (ThreadIndex() == 32) StoreGlobal(head.left"),
    "mine_rounds": (MINED, MINE_BANK, "if (!SyncBlockOr(MoveCentres(head, shared))) break;", "if (!SyncBlockOr(MoveCentres(head, shared)) || round == 2) break;"),
    "mine_assign_no_sync": (MINED, MINE_BANK, "WarpOfBlock()]);\n    SyncBlock();", "WarpOfBlock()]);"),
    "mine_head_no_sync": (MINED, MINE_BANK, "    SyncBlock();  // shared memory is of the next head", ""),
}

RACES = {
    "race_mine_read": (MINED, MINE_BANK, "    SyncWarp();\n    const uint8_t* source", "    const uint8_t* source"),
    "race_mine_written": (MINED, MINE_BANK, "    SyncWarp();\n    uint32_t best", "    uint32_t best"),
}
