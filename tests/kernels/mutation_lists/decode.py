# SPDX-License-Identifier: Apache-2.0
"""Mistakes of kernels that decode, and of the CRCs of tiles. mutations.py has how an entry is read."""

HOSTILE = ["tests/kernels/hostile_test.cc"]
DECODE = ["tests/kernels/decode_test.cc", *HOSTILE]
DECODE_FAST = ["tests/kernels/decode_fast_test.cc"]
TASKS = "kernels/body/tasks.h"
AFFINE = "kernels/body/affine_decode.h"
RAW = "kernels/body/raw_decode.h"
STRIPS = "kernels/body/strips.h"
FAST = "kernels/body/strips_fast.h"
JOIN = "kernels/body/strips_join.h"
PLANES = "kernels/body/strips_planes.h"
CRC = "kernels/body/crc.h"
FP8 = "kernels/body/fp8_decode.h"
STEPS = "kernels/body/step_decode.h"
VALUES = "kernels/body/step_values.h"
HOT = "kernels/body/hot_decode.h"
KEPT = "kernels/body/kept_decode.h"
MIXED = "kernels/body/mixed_decode.h"
PATTERNED = "kernels/body/patterned_decode.h"
HOT_WIDTHS = "kernels/body/hot_widths.h"

MUTATIONS = {
    "page_bound": (DECODE, TASKS, "static_cast<uint32_t>(page) >= plane.page_count", "static_cast<uint32_t>(page) > plane.page_count"),
    "hole_is_page": (DECODE, TASKS, "if (page < 0) return nullptr;", ""),
    "first_slot": (DECODE, TASKS, "plane.first_slot + token", "token"),
    "no_table": (DECODE, TASKS, "plane.pages == nullptr ?", "plane.pages != nullptr ?"),
    "row_past_tile": (DECODE, TASKS, "if (token >= plane.tokens) *fault", "if (token > plane.tokens + 4096) *fault"),
    "row_twice": (DECODE, TASKS, "if ((before & bit) != 0) *fault", "if ((before & bit) == ~0U) *fault"),
    "row_flag": (DECODE, TASKS, " & plane.token_bits;", " & (plane.token_bits | 0x8000U);"),
    "row_before_first": (DECODE, TASKS, "if (at >= task.token_count) continue;  // also", "if (token >= task.token_count) continue;  // also"),
    "rows_not_cleared": (DECODE, TASKS, "if (thread < kTaskTokensMax / 32) places->is_row[thread] = 0;", ""),
    "row_unit": (DECODE, TASKS, "1U << LowestBit(plane.unit | (task.row_bits_at & 15))", "plane.unit"),
    "fault_unsaid": (DECODE, TASKS, "if (fault != Fault::kNone) AtomicMax", "if (fault == Fault::kBadTile) AtomicMax"),
    "tasks_no_wait": (DECODE, TASKS, "    CopyWait<0>();\n    if (!SyncBlockOr", "    if (!SyncBlockOr"),
    "tasks_no_sync": (DECODE, TASKS, "    if (!SyncBlockOr(fault != Fault::kNone)) {", "    {"),
    "tasks_no_sync_marks": (DECODE, TASKS, "      SyncBlock();\n      MarkRows", "      MarkRows"),
    "tasks_no_sync_next": (DECODE, TASKS, "    SyncBlock();  // shared memory", "    // shared memory"),
    "raw_tail": (DECODE, RAW, "at < task.token_count; at += step", "at <= task.token_count; at += step"),
    "step_inexact": (DECODE, AFFINE, "return FusedMultiplyAdd(FusedMultiplyAdd(-kLevels, near, range), kInverse, near);", "return near;"),
    "fused_value": (DECODE, AFFINE, "codecs::Add(codecs::Multiply(codes.At(i), params.step), params.min)", "FusedMultiplyAdd(codes.At(i), params.step, params.min)"),
    "params_unchecked": (DECODE, AFFINE, "const bool is_negative = pair >> 31 != 0;", "const bool is_negative = pair >> 31 > 1;"),
    "codes_short": (DECODE, AFFINE, "at < bytes; at += 16 * kBlockThreads", "at + 16 <= bytes; at += 16 * kBlockThreads"),
    "group_of_task": (DECODE, AFFINE, "params += 4 * (task.token_first / plane.group * plane.dim + 8 * part);", "params += 4 * (8 * part);"),
    "v_token": (DECODE, AFFINE, "const uint32_t pair = (task.token_first + at) * groups + own;", "const uint32_t pair = at * groups + own;"),
    "rows_decoded": (DECODE, AFFINE, "(has_rows && IsRowAt(shared.places, at))) continue;", "(has_rows && at > 999 && IsRowAt(shared.places, at))) continue;"),
    "any_group": (DECODE, TASKS, "token / plane.group * plane.dim + channel;", "channel;"),
    "strip_walk": (DECODE, STRIPS, "at += static_cast<uint32_t>(bytes);", "at += 16;"),
    "strip_room": (DECODE, STRIPS, "if (parts->bytes > room) return false;", ""),
    "strip_par": (DECODE, STRIPS, "is_wrong |= !codecs::IsValidPar(", "is_wrong |= is_wrong && !codecs::IsValidPar("),
    "planes_raws": (DECODE, STRIPS, "raws += CountBits(raw);", "raws += raw != 0 ? 1 : 0;"),
    "planes_tail": (DECODE, STRIPS, "const bool is_there = index < elements;", "const bool is_there = index <= elements;"),
    "lanes_escape_tail": (DECODE, STRIPS, "(entry >> 24 & kEscapeFlag) != 0 && token < strip.shape.tokens;", "(entry >> 24 & kEscapeFlag) != 0;"),
    "lanes_end": (DECODE, STRIPS, "state != codecs::kCoderStateMin || cursor", "cursor"),
    "fast_no_sync_tables": (DECODE, FAST, "  FillTables(&shared.tables);\n  SyncBlock();", "  FillTables(&shared.tables);"),
    "fast_no_sync_slot": (DECODE, FAST, "    SyncWarp();  // nobody reads", "    // nobody reads"),
    "fast_no_wait": (DECODE, FAST, "    CopyWait<1>();\n", ""),
    "fast_limit": (DECODE, FAST, "const bool lacks = coder->state <", "const bool lacks = coder->state <="),
    "fast_rank": (DECODE, FAST, "LoadNear8(stream->next + CountBits(lacking & below))", "LoadNear8(stream->next + CountBits(lacking & (below * 2 + 1)))"),
    "fast_mask": (DECODE, FAST, "Ballot(lacks)", "Ballot(lacks, 0x7FFFFFFFU)"),
    "fast_diverges": (DECODE, FAST, "const uint32_t lacking = Ballot(lacks);", "const uint32_t lacking = lacks ? Ballot(lacks) : 0;"),
    "fast_mirror": (DECODE, FAST, "if (to == 0 && 16 * lane", "if (to == 1 && 16 * lane"),
    "fast_reads_past": (DECODE, FAST, "if (at + 16 <= readable)", "if (at <= readable)"),
    "fast_ring": (DECODE, FAST, "kRingBytes + kRingMirror];", "kRingBytes];"),
    "fast_slot": (DECODE, FAST, "slot == kRingSlots - 1 ? 0", "slot == kRingSlots ? 0"),
    "fast_escape_order": (DECODE, FAST, "& 0x01010101U) << g;", "& 0x01010101U) << (kGroups - 1 - g);"),
    "fast_escape_tail": (DECODE, FAST, "(mine >> bit & 1) != 0 && token < strip.shape.tokens;", "(mine >> bit & 1) != 0;"),
    "fast_tail": (DECODE, FAST, "if (token >= strip.shape.tokens) continue;", "if (token > strip.shape.tokens) continue;"),
    "fast_top": (DECODE, FAST, "^ (~tops & 0x80808080U)", "^ 0x80808080U"),
    "fast_end": (DECODE, FAST, "is_wrong |= coder.state != 0x10000U + codecs::kCoderStateMin ||", "is_wrong |="),
    "join_borrow": (DECODE_FAST, JOIN, "((a | kHighBits) - (b & ~kHighBits)) ^ ((a ^ ~b) & kHighBits)", "a - b"),
    "join_bits": (DECODE_FAST, JOIN, "PermuteBytes(bits, 0, 0x4442) * 0x00810204U", "PermuteBytes(bits, 0, 0x4442) * 0x00408102U"),
    "join_garbage": (DECODE_FAST, JOIN, "Choose(0x02020202U, middle, lowest)) & 0x07070707U", "Choose(0x02020202U, middle, lowest))"),
    "join_exponent": (DECODE_FAST, JOIN, "Choose(0x7C7C7C7CU, exponents << 2,", "Choose(0xFCFCFCFCU, exponents << 2,"),
    "planes_padding": (DECODE_FAST, PLANES, "if (left < codecs::kRun) escapes.y = 0;", "if (left < 1) escapes.y = 0;"),
    "planes_before": (DECODE_FAST, PLANES, "escapes & ((1U << kUnit * i) - 1)", "escapes & ((2U << kUnit * i) - 1)"),
    "planes_scan": (DECODE_FAST, PLANES, "if (lane >= lanes) end += before;", "end += before;"),
    "planes_starts": (DECODE_FAST, PLANES, "own->starts[lane] = end - escapes;", "own->starts[lane] = end;"),
    "planes_next_runs": (DECODE_FAST, PLANES, "  read->escapes += count;", "  read->escapes += count == 32 ? 31 : count;"),
    "planes_nibble": (DECODE_FAST, PLANES, ">> from % 2 * 4 & 15;", ">> at % 2 * 4 & 15;"),
    "planes_raw_rank": (DECODE_FAST, PLANES, "const uint32_t raw_from = read->raws + ", "const uint32_t raw_from = "),
    "planes_tail_units": (DECODE_FAST, PLANES, "if (first + unit >= units) continue;", "if (first + unit > units) continue;"),
    "planes_part": (DECODE_FAST, PLANES, "    part -= parts;\n    ++token;", "    part -= parts;"),
    "planes_end": (DECODE_FAST, PLANES, "return read.escapes == strip.parts.escapes && read.raws == strip.parts.raws;", "return read.escapes == strip.parts.escapes;"),
    "fp8_scale": (DECODE, FP8, "LoadScale(task, task.token_first + at, fault)", "LoadScale(task, at, fault)"),
    "fp8_nan": (DECODE, FP8, "if (HasE4m3Nan(of[0]) || HasE4m3Nan(of[1])) *fault", "if (HasE4m3Nan(of[0])) *fault"),
    "pattern_number": (HOSTILE, PATTERNED, "if (number >= plane.patterns) *fault", "if (number > 255) *fault"),
    "pattern_gate": (DECODE, PATTERNED, "task.gate_at == 0 || LoadBits(", "task.gate_at != 1 || LoadBits("),
    "pattern_token": (DECODE, PATTERNED, "token * bits, bits)", "at * bits, bits)"),
    "pattern_straddles": (DECODE, TASKS, "if (bit % 8 + bits > 8)", "if (bit % 8 + bits > 16)"),
    "pattern_rounded": (DECODE, AFFINE, "value = codecs::Add(value, HalfToFloat(LoadGlobal", "value = codecs::Add(codecs::Fp16ToFloat(codecs::FloatToFp16(value, codecs::Fp16Rounding::kNearestEven)), HalfToFloat(LoadGlobal"),
    "mixed_budget": (HOSTILE, MIXED, "(is_budget || !plane.has_budget) &&", "(is_budget || plane.dim != 0) &&"),
    "mixed_bytes": (HOSTILE, MIXED, "Align16(task->positions_at + 2 * task->rows) == task->bytes", "task->positions_at <= task->bytes"),
    "mixed_no_sync": (DECODE, MIXED, "        FindClasses(task, plane, &shared);\n        SyncBlock();", "        FindClasses(task, plane, &shared);"),
    "mixed_pair": (DECODE, MIXED, "(is_four ? number : four + number)", "(is_four ? number : number)"),
    "mixed_source_token": (DECODE, MIXED, "token * source + number", "at * source + number"),
    "mixed_tail": (DECODE, MIXED, "                            : 4;", "                            : 0;"),
    "kept_count": (HOSTILE, KEPT, "all != task.coded_tokens", "all > task.coded_tokens + 9999"),
    "kept_row_twice": (DECODE, KEPT, "if (!is_kept || (AtomicOr", "if (!is_kept && (AtomicOr"),
    "kept_not": (DECODE, KEPT, "return (kept & bit) == 0 ? kNoCodes", "return kept == 0 ? kNoCodes"),
    "kept_rows_count": (DECODE, KEPT, "CountBits(kept & ~shared.rows[token / 32] & (bit - 1))", "CountBits(kept & (bit - 1))"),
    "kept_no_sync": (DECODE, KEPT, "    shared->rows[thread] = 0;\n  }\n  SyncBlock();", "    shared->rows[thread] = 0;\n  }"),
    "steps_order": (DECODE, VALUES, "index / 2 * pairs.step", "index / 2"),
    "steps_other": (DECODE, VALUES, "return other < pairs.first ? other : index;", "return other + 1 < pairs.first ? other : index;"),
    "steps_position": (DECODE, VALUES, "plane.first_position + token);", "token);"),
    "steps_basis": (DECODE, VALUES, "value = codecs::Multiply(value, codecs::BitsFloat(inverse));", ""),
    "steps_mean": (DECODE, VALUES, "codecs::Add(value, LoadChannel(plane, head, channel).mean)", "codecs::Add(value, LoadChannel(plane, 0, channel).mean)"),
    "steps_no_sync": (DECODE, STEPS, "    CentreToken(plane, strip, own->places[token], &own->centred);\n    SyncWarp();", "    CentreToken(plane, strip, own->places[token], &own->centred);"),
    "steps_low_plane": (DECODE, STEPS, "LoadLowBits(low + first / 8,", "LoadLowBits(low,"),
    "steps_offsets": (DECODE, STEPS, "channel.shape.low_bits == 0 ? channel.shape.table : codecs::kProfileTables", "channel.shape.table"),
    "steps_end": (HOSTILE, STEPS, "return coder.HasEnded() && planes", "return planes"),
    "steps_row_past": (HOSTILE, STEPS, "token >= strip.shape.tokens ||", "token >= 128 ||"),
    "hot_fill": (DECODE, HOT_WIDTHS, "for (; bits % 8 != 0 && bits <", "for (; bits % 8 > 8 && bits <"),
    "hot_first": (DECODE, HOT_WIDTHS, "const bool is_first = gain == best_gain && channel < best;", "const bool is_first = gain == best_gain && channel > best;"),
    "hot_correction": (DECODE, HOT, "if (!plane.is_v) {", "if (plane.dim == 0) {"),
    "hot_strip": (DECODE, HOT, "task.source + task.map_at + strip *", "task.source + task.map_at + 0 * strip *"),
    "hot_bits": (DECODE, HOT_WIDTHS, "for (uint32_t i = 0; i < 3; ++i) {", "for (uint32_t i = 0; i < 2; ++i) {"),
    "hot_no_sync": (DECODE, HOT, "        FindWidths(plane, task.head, &shared.widths);\n        SyncBlock();", "        FindWidths(plane, task.head, &shared.widths);"),
    "hot_no_sync_token": (DECODE, HOT, "    SyncWarp();\n    StoreTurned", "    StoreTurned"),
    "hot_row_bytes": (HOSTILE, HOT, "if (shared.widths.row_bytes != task.code_row_bytes) *fault", "if (shared.widths.row_bytes > task.code_row_bytes) *fault"),
    "crc_lead": (DECODE, CRC, "if (row >= count || place < lead) return 0;", "if (row >= count || place <= lead) return 0;"),
    "crc_start": (DECODE, CRC, "place == lead ? ~word", "at == lead ? ~word"),
    "crc_empty": (DECODE, CRC, "return bytes == 0 ? 0 : ~crc;", "return ~crc;"),
    "crc_join": (DECODE, CRC, "round.count - 1 - lane : 0", "round.count - lane : 0"),
    "crc_rounds": (DECODE, CRC, "for (uint32_t k = 0; k < 5; ++k) {", "for (uint32_t k = 0; k < 4; ++k) {"),
    "fast_no_sync_exponents": (DECODE, FAST, "    SyncWarp();\n    StorePass", "    StorePass"),
}

# Only the thread sanitizer sees these: lanes of the executor are in step wherever they meet.
RACES = {
    "race_after_wait": (DECODE, FAST, "    CopyWait<1>();\n    SyncWarp();", "    CopyWait<1>();"),
    "race_after_start": (DECODE, FAST, "    CopyWait<0>();\n    SyncWarp();", "    CopyWait<0>();"),
    "race_next_tables": (DECODE, FAST, "    LoadPars(strip, first, own);\n    SyncWarp();", "    LoadPars(strip, first, own);"),
    "race_planes": (DECODE_FAST, PLANES, "&read, own->toggles);\n    SyncWarp();", "&read, own->toggles);"),
    "race_next_runs": (DECODE_FAST, PLANES, "*own, &at);\n    SyncWarp();", "*own, &at);"),
    "race_next_strip": (DECODE, TASKS, "    SyncWarp();  // shared memory is of", "    // shared memory is of"),
}
