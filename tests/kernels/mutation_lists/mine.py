# SPDX-License-Identifier: Apache-2.0
"""Mistakes of kernels that mine. mutations.py has how an entry is read."""

MINED = ["tests/kernels/mine_test.cc"]
MINE_BANK = "kernels/body/mine_bank.h"
PASSED_OVER = ["tests/kernels/mine_pass_test.cc"]
MINE_PASS, MINE_MOMENTS, MINE_CODES = (f"kernels/body/mine_{part}.h" for part in ("pass", "moments", "codes"))

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
    "mine_head_no_sync": (MINED, MINE_BANK, "    SyncBlock();  // shared memory is reused for the next head", ""),
    "pass_skipped": (PASSED_OVER, MINE_PASS, "position < codecs::kTokensSkipped ||", "position + 1 < codecs::kTokensSkipped ||"),
    "pass_stride_marks": (PASSED_OVER, MINE_PASS, "position % codecs::kFindStride != 0", "token % codecs::kFindStride != 0"),
    "pass_uncodable": (PASSED_OVER, MINE_PASS, "is_left_out |= codecs::IsRowValue(", "is_left_out &= codecs::IsRowValue("),
    "pass_hole": (PASSED_OVER, MINE_PASS, "bool is_left_out = row == nullptr;", "bool is_left_out = false;"),
    "pass_bad_page": (PASSED_OVER, MINE_PASS, "if (SyncBlockOr(fault != Fault::kNone)) return fault;", "SyncBlock();\n    if (false) return fault;"),
    "pass_odd_channel": (PASSED_OVER, MINE_PASS, "at.has_second = 2 * index + 1 < plane.dim;", "at.has_second = true;"),
    "pass_pairs": (PASSED_OVER, MINE_PASS, "at.is_pair = index < plane.pairs.count;", "at.is_pair = index + 1 < plane.pairs.count;"),
    "pass_position": (PASSED_OVER, MINE_PASS, "codecs::RotationAt(at.turns, shared.strip.first_position + token)", "codecs::RotationAt(at.turns, token)"),
    "pass_token_first": (PASSED_OVER, MINE_PASS, "PlaceOf(plane, task.source, strip.token_first + token, fault)", "PlaceOf(plane, task.source, token, fault)"),
    "pass_part": (PASSED_OVER, MINE_MOMENTS, "(channel * codecs::kSampleParts + shared.strip.part)", "(channel * codecs::kSampleParts)"),
    "pass_head": (PASSED_OVER, MINE_MOMENTS, "const uint64_t channel_first = static_cast<uint64_t>(shared.task.number) * shared.plane.dim;", "const uint64_t channel_first = 0;"),
    "pass_strips": (PASSED_OVER, MINE_MOMENTS, "  ++sums.strips;\n", ""),
    "pass_hole_norm": (PASSED_OVER, MINE_MOMENTS, "shared->norms[token] = codecs::BitsFloat(codecs::kInfinityBits);", ""),
    "pass_norms_skipped": (PASSED_OVER, MINE_MOMENTS, "CountBits(shared->is_small[0] >> skipped)", "CountBits(shared->is_small[0])"),
    "pass_unseen": (PASSED_OVER, MINE_CODES, "sizeof(float) * shared.strip.part);", "sizeof(float) * (shared.strip.part ^ 1));"),
    "pass_seen": (PASSED_OVER, MINE_CODES, "column.is_unseen ? channel.unseen_mean : channel.profile.mean", "channel.profile.mean"),
    "pass_low_bits": (PASSED_OVER, MINE_CODES, "shape.low_bits * CountBits(kept)", "shape.low_bits * kWarpLanes"),
    "pass_symbol_bits": (PASSED_OVER, MINE_CODES, "bit < 4; ++bit", "bit < 3; ++bit"),
    "pass_second_table": (PASSED_OVER, MINE_CODES, "const codecs::StepShape shape = is_first ? first.shape : second.shape;", "const codecs::StepShape shape = first.shape;"),
    "pass_shrink_low": (PASSED_OVER, MINE_CODES, "if (coded.shape.low_bits != 0) return;", ""),
    "pass_shrink_second": (PASSED_OVER, MINE_CODES, "AddShrink(shared, of_second, is_kept && at.has_second);", ""),
    "pass_shrink_kept": (PASSED_OVER, MINE_CODES, "const bool is_shrunk = is_kept && size == magnitude;", "const bool is_shrunk = size == magnitude && (is_kept || true);"),
    "pass_lead": (PASSED_OVER, MINE_CODES, "const uint32_t token = lead + stride * (group + lane);", "const uint32_t token = lead * 0 + stride * (group + lane);"),
    "pass_range_first": (PASSED_OVER, MINE_CODES, "args.plan + header.columns_at + shared.range.first * sizeof(codecs::CodeColumn);", "args.plan + header.columns_at;"),
    "pass_clear": (PASSED_OVER, MINE_CODES, "i < kColumnsOfRangeMax * kCountedSymbols; i += kBlockThreads) {\n    shared->symbols", "i < kColumnsOfRangeMax; i += kBlockThreads) {\n    shared->symbols"),
    "pass_sum_of_warp": (PASSED_OVER, MINE_PASS, "for (uint32_t lanes = kWarpLanes / 2; lanes > 0; lanes /= 2) {\n    auto words", "for (uint32_t lanes = kWarpLanes / 4; lanes > 0; lanes /= 2) {\n    auto words"),
    "pass_strip_no_sync": (PASSED_OVER, MINE_PASS, "    SyncBlock();  // strip and marks are reused for the next", ""),
    "pass_task_no_sync": (PASSED_OVER, MINE_CODES, "    ClearCounts(&shared);\n    SyncBlock();", "    ClearCounts(&shared);"),
}

RACES = {
    "race_mine_read": (MINED, MINE_BANK, "    SyncWarp();\n    const uint8_t* source", "    const uint8_t* source"),
    "race_pass_norms": (PASSED_OVER, MINE_MOMENTS, "shared->norms, &hole);\n  SyncWarp();", "shared->norms, &hole);"),
    "race_pass_head": (PASSED_OVER, MINE_CODES, "    SyncBlock();  // shared memory is reused for the next task", ""),
    "race_pass_marks": (PASSED_OVER, MINE_PASS, "    MarkKept(shared, is_strided, &fault);\n    if (SyncBlockOr(fault != Fault::kNone)) return fault;", "    MarkKept(shared, is_strided, &fault);"),
    "race_mine_written": (MINED, MINE_BANK, "    SyncWarp();\n    uint32_t best", "    uint32_t best"),
}
