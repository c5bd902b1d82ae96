# SPDX-License-Identifier: Apache-2.0
"""Kernels with a mistake in them do not pass the tests.

Each mutation is one text of a kernel body replaced by another. The emulated device, and what else of a kernel test has that body, are
compiled with it, and the test has to fail.

usage: mutations.py BUILD_FOLDER [NAME…]       after that folder has built the kernel tests; build/tsan has a list of its own
       mutations.py --texts                    only whether each text stands once where it is to be replaced
"""

import concurrent.futures
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
SECONDS_MAX = 600
PASSED = "the tests pass"
RACES_FILTER = "*StripsOfEvery*:*ManyTilesOfAWarp*"  # what the thread sanitizer runs

LAUNCHES = "tests/kernels/device/emulated.cc"  # where kernel bodies are compiled
HOSTILE = ["tests/kernels/hostile_test.cc"]
DECODE = ["tests/kernels/decode_test.cc", *HOSTILE]
RECORDS = "kernels/records.h"
TASKS = "kernels/body/tasks.h"
AFFINE = "kernels/body/affine_decode.h"
RAW = "kernels/body/raw_decode.h"
STRIPS = "kernels/body/strips.h"
FAST = "kernels/body/strips_fast.h"
CRC = "kernels/body/crc.h"
FP8 = "kernels/body/fp8_decode.h"
STEPS = "kernels/body/step_decode.h"
VALUES = "kernels/body/step_values.h"
HOT = "kernels/body/hot_decode.h"
KEPT = "kernels/body/kept_decode.h"
MIXED = "kernels/body/mixed_decode.h"
PATTERNED = "kernels/body/patterned_decode.h"
ENCODE = ["tests/kernels/encode_test.cc"]
ENCODED_STRIPS = ["tests/kernels/encode_strips_test.cc"]
AFFINE_ENCODE = "kernels/body/affine_encode.h"
ENCODE_TASKS = "kernels/body/encode_tasks.h"
FP8_ENCODE = "kernels/body/fp8_encode.h"
STRIPS_ENCODE = "kernels/body/strips_encode.h"
STRIPS_CHOICE = "kernels/body/strips_choice.h"
IMAGE_ENCODE = "kernels/body/image_encode.h"
ENCODED_STEPS, ENCODED_CHOICES = ["tests/kernels/encode_steps_test.cc"], ["tests/kernels/encode_choices_test.cc"]
CENTRE, HOT_WIDTHS = "kernels/body/centre.h", "kernels/body/hot_widths.h"
STEP_ENCODE, HOT_ENCODE, PATTERNED_ENCODE, MIXED_ENCODE = (f"kernels/body/{name}_encode.h" for name in ("step", "hot", "patterned", "mixed"))
ATTENTION = ["tests/kernels/attention_test.cc"]
ATTEND_TASKS = "kernels/body/attend_tasks.h"
ATTEND_STEPS = "kernels/body/attend_steps.h"
ATTEND_AFFINE = "kernels/body/attend_affine.h"
ATTEND_VALUES = "kernels/body/attend_values.h"
ATTEND_ANY = "kernels/body/attend_any.h"
ATTEND_MERGE = "kernels/body/attend_merge.h"

# name: (tests of which one has to fail, file, text, what stands there instead)
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
    "encode_larger": (ENCODE, AFFINE_ENCODE, "bool is_raw = least >= RawBytes(tile->plane);", "bool is_raw = least == 1;"),
    "encode_constant": (ENCODE, AFFINE_ENCODE, "is_raw |= codecs::IsInexactConstant(of.low, of.high);", ""),
    "encode_row_params": (ENCODE, AFFINE_ENCODE, "if (IsMarked(shared->is_row, pair / groups)) StorePair(tile, pair, {});", ""),
    "encode_row_codes": (ENCODE, AFFINE_ENCODE, "if (IsMarked(shared.is_row, token)) break;", ""),
    "encode_zero_sign": (ENCODE, AFFINE_ENCODE, "    low = codecs::Add(low, 0.0F);", "    low = codecs::Multiply(low, 1.0F);"),
    "encode_no_sync": (ENCODE, AFFINE_ENCODE, "  MarkKept(*tile, shared);\n  SyncBlock();", "  MarkKept(*tile, shared);"),
    "encode_clips": (ENCODE, AFFINE_ENCODE, "codecs::ClipCount(tile.plane.bits, !tile.plane.is_v)", "codecs::ClipCount(tile.plane.bits, tile.plane.is_v)"),
    "encode_clip_last": (ENCODE, AFFINE_ENCODE, "if (i != 0 && error >= best_error) continue;", "if (i != 0 && error < best_error) continue;"),
    "encode_first_row": (ENCODE, AFFINE_ENCODE, "if (ThreadIndex() == 0 && (tile.task.rules & kRuleFirstIsRow) != 0) {", "if (ThreadIndex() == 0 && (tile.task.rules & kRuleFirstIsRow) == 1) {"),
    "encode_scores": (ENCODE, AFFINE_ENCODE, "return codecs::StoredScore(LoadGlobal<float>(tile.task.scores + 4 * token));", "return codecs::FloatToFp16(LoadGlobal<float>(tile.task.scores + 4 * token), codecs::Fp16Rounding::kNearestEven);"),
    "encode_hole": (ENCODE, ENCODE_TASKS, "if (place == nullptr) *fault = Fault::kBadPage;", ""),
    "encode_padding": (ENCODE, ENCODE_TASKS, "Align16(tile.codes_bytes) - tile.codes_bytes, ThreadIndex(),", "0, ThreadIndex(),"),
    "encode_first_stays": (ENCODE, ENCODE_TASKS, "(tile.task.rules & kRuleFirstStays) != 0", "(tile.task.rules & kRuleFirstStays) == 1"),
    "encode_rank": (ENCODE, ENCODE_TASKS, "for (uint32_t word = 0; word < token / 32; ++word) rank", "for (uint32_t word = 0; word + 1 < token / 32; ++word) rank"),
    "encode_ageing": (ENCODE, ENCODE_TASKS, "at < image.ageing_count && !IsMarked(shared->is_row, token);", "at < image.ageing_count;"),
    "encode_ageing_rank": (ENCODE, ENCODE_TASKS, "count + CountBits(more & ((1U << thread) - 1))", "count + CountBits(more & ((2U << thread) - 1))"),
    "encode_list_no_sync": (ENCODE, ENCODE_TASKS, "  if (thread == 0) shared->row_count = count;\n  SyncBlock();", "  if (thread == 0) shared->row_count = count;"),
    "encode_fp8_row": (ENCODE, FP8_ENCODE, "is_row ? uint8_t{0} : codecs::FloatToE4m3(value)", "codecs::FloatToE4m3(value)"),
    "encode_fp8_scale": (ENCODE, FP8_ENCODE, "is_row ? uint16_t{0} : codecs::Fp8Scale", "codecs::Fp8Scale"),
    "encode_fp8_sign": (ENCODE, FP8_ENCODE, "LoadValue(plane.dtype, row, c)) & 0x7FFFFFFF;", "LoadValue(plane.dtype, row, c)) & 0xFFFFFFFF;"),
    "strips_inverse": (ENCODED_STRIPS, RECORDS, "((1U << 24) + frequency - 1) / frequency", "(1U << 24) / frequency"),
    "strips_full": (ENCODED_STRIPS, STRIPS_ENCODE, "const bool is_full = state >= frequency << 8;", "const bool is_full = state > frequency << 8;"),
    "strips_above": (ENCODED_STRIPS, STRIPS_ENCODE, "return ~1U << ThreadIndex()", "return ~0U << ThreadIndex()"),
    "strips_likeliest": (ENCODED_STRIPS, STRIPS_ENCODE, "uint32_t symbol = tables.likeliest[table];", "uint32_t symbol = 3;"),
    "strips_cheapest": (ENCODED_STRIPS, STRIPS_CHOICE, "best = key < best ? key : best;\n  }\n  return best % kTableChoices;", "best = key / kTableChoices <= best / kTableChoices ? key : best;\n  }\n  return best % kTableChoices;"),
    "strips_tops": (ENCODED_STRIPS, STRIPS_CHOICE, "above = codecs::kAboveMin + static_cast<int32_t>(choice % kTopsTried);\n    } else", "above = codecs::kAboveMin;\n    } else"),
    "strips_rel": (ENCODED_STRIPS, STRIPS_CHOICE, "if (rel >= codecs::kDeadRel) {", "if (rel > codecs::kDeadRel) {"),
    "strips_other_table": (ENCODED_STRIPS, STRIPS_CHOICE, "par = table_of(highest - rel) << 4;", "par = table_of(highest) << 4;"),
    "strips_dead": (ENCODED_STRIPS, STRIPS_CHOICE, "if (sample.mean == 0) {", "if (sample.mean > 255) {"),
    "strips_room": (ENCODED_STRIPS, STRIPS_ENCODE, "if (at >= floor) StoreGlobal(", "if (at != nullptr) StoreGlobal("),
    "strips_no_tops": (ENCODED_STRIPS, STRIPS_ENCODE, "if (codecs::kStripHeaderBytes + 2 * shape.dim <= strip.part_bytes) {", "if (shape.dim != 0) {"),
    "strips_again": (ENCODED_STRIPS, STRIPS_ENCODE, "best = is_laned ? WritePlanes(strip, tables, exponents) : planes;", "best = planes;"),
    "strips_short": (ENCODED_STRIPS, STRIPS_ENCODE, "planes.bytes <= best.bytes", "planes.bytes < best.bytes / 2"),
    "strips_half_run": (ENCODED_STRIPS, STRIPS_ENCODE, "codecs::kRunBytes + first % codecs::kRun / 8;", "codecs::kRunBytes;"),
    "strips_pending": (ENCODED_STRIPS, STRIPS_ENCODE, "pending = ReduceOr(is_escape && next == 0 ? nibble : 0);", "pending = ReduceOr(is_escape ? nibble : 0);"),
    "strips_last_nibble": (ENCODED_STRIPS, STRIPS_ENCODE, "if (escapes % 2 != 0 && ThreadIndex()", "if (escapes % 2 > 1 && ThreadIndex()"),
    "strips_no_sync_pars": (ENCODED_STRIPS, STRIPS_ENCODE, "[](uint32_t) { return 0U; });\n  }\n  SyncWarp();", "[](uint32_t) { return 0U; });\n  }"),
    "norms_codable": (ENCODED_STEPS, CENTRE, "is_codable &= !codecs::IsRowValue(value);", ""),
    "norms_lanes": (ENCODED_STEPS, CENTRE, "for (uint32_t lanes = kSums / 2; lanes > 0; lanes /= 2) {", "for (uint32_t lanes = 1; lanes < kSums; lanes *= 2) {"),
    "norms_middle": (ENCODED_STEPS, CENTRE, "if (rank == tokens / 2)", "if (rank == (tokens - 1) / 2)"),
    "norms_equal": (ENCODED_STEPS, CENTRE, "norms[other] == norms[at] && other < at", "norms[other] == norms[at] && other > at"),
    "norms_two": (ENCODED_STEPS, CENTRE, "rank < codecs::kSmallNormsMax", "rank <= codecs::kSmallNormsMax"),
    "norms_no_sync": (ENCODED_STEPS, CENTRE, "  FindNorms(v, source, token_first, tokens, norms, fault);\n  SyncWarp();", "  FindNorms(v, source, token_first, tokens, norms, fault);"),
    "norms_of_k": (ENCODED_STEPS, CENTRE, "plane.is_v ? task : reader.Task(tile + 1)", "plane.is_v ? task : reader.Task(tile)"),
    "centre_first": (ENCODED_STEPS, CENTRE, "token_first == 0 && (task.rules & kRuleFirstIsRow) != 0", "(task.rules & kRuleFirstIsRow) != 0"),
    "centre_position": (ENCODED_STEPS, CENTRE, "plane.first_position + token);", "token);"),
    "centre_uncodable": (ENCODED_STEPS, CENTRE, "is_uncodable |= codecs::IsRowValue(value);", ""),
    "centre_scale": (ENCODED_STEPS, CENTRE, "codecs::BitsFloat(scale)", "codecs::BitsFloat(scale ^ 0x00400000U)"),
    "centre_basis": (ENCODED_STEPS, CENTRE, "* plane.dim * plane.dim + component;", "* plane.dim + component;"),
    "steps_level": (ENCODED_STEPS, STEP_ENCODE, "codecs::Coarsen(codecs::RoundToInt(position), plane.level)", "codecs::Coarsen(codecs::RoundToInt(position), 0U * plane.level)"),
    "steps_uncodable": (ENCODED_STEPS, STEP_ENCODE, "is_codable &= is_code;", ""),
    "steps_no_sync_centre": (ENCODED_STEPS, STEP_ENCODE, "    SyncWarp();\n    const bool is_coded =", "    const bool is_coded ="),
    "steps_no_sync_next": (ENCODED_STEPS, STEP_ENCODE, "    SyncWarp();  // what is centred", "    // what is centred"),
    "steps_no_code": (ENCODED_STEPS, STEP_ENCODE, "uint32_t symbol = kNoCodeSymbol;", "uint32_t symbol = 0;"),
    "steps_no_clamp": (ENCODED_STEPS, STEP_ENCODE, "symbol = codecs::kEscapeSymbol;\n", "symbol = 7;\n"),
    "steps_low_group": (ENCODED_STEPS, STEP_ENCODE, "low + i * plane_bytes + 4 * group", "low + i * plane_bytes"),
    "steps_escape_low": (ENCODED_STEPS, STEP_ENCODE, "is_coded && !is_escape ? codecs::StepLow", "is_coded ? codecs::StepLow"),
    "steps_escape_rank": (ENCODED_STEPS, STEP_ENCODE, "escapes + CountBits(escaping & LanesAbove())", "escapes + CountBits(escaping & ~LanesAbove()) - (is_escape ? 1 : 0)"),
    "steps_escape_meets": (ENCODED_STEPS, STEP_ENCODE, "if (is_escape && to + 1 < lanes.stream)", "if (is_escape)"),
    "steps_no_room": (ENCODED_STEPS, STEP_ENCODE, "if (escapes_at > item.strip.part_bytes) return parts;", ""),
    "steps_larger": (ENCODED_STEPS, STEP_ENCODE, "if (parts.bytes >= codecs::RawStripBytes(shape))", "if (parts.bytes > codecs::RawStripBytes(shape) + 64)"),
    "image_steps_rows": (ENCODED_STEPS, IMAGE_ENCODE, "    rows += parts.rows;", "    rows = parts.rows;"),
    "image_steps_raw": (ENCODED_STEPS, IMAGE_ENCODE, "if (steps.bytes < RawBytes(plane)) return", "if (steps.bytes < RawBytes(plane) + 64) return"),
    "image_steps_row": (ENCODED_STEPS, IMAGE_ENCODE, "if (row % kBlockWarps != WarpOfBlock()) continue;", "if (row != WarpOfBlock()) continue;"),
    "image_steps_escapes": (ENCODED_STEPS, IMAGE_ENCODE, "LoadGlobal<uint16_t>(last - 2 * i)", "LoadGlobal<uint16_t>(last - 2 * (parts.escapes - 1 - i))"),
    "hot_word": (ENCODED_STEPS, HOT_ENCODE, "if (bit % 32 + width > 32) AtomicOr", "if (bit % 32 + width > 33) AtomicOr"),
    "hot_zeros": (ENCODED_STEPS, HOT_ENCODE, "words[i] = 0;", "words[i] = i == 0 ? 0 : words[i];"),
    "hot_row": (ENCODED_STEPS, HOT_ENCODE, "c < tile.plane.dim && !is_row; c", "c < tile.plane.dim && (!is_row || c != 0); c"),
    "hot_no_sync_words": (ENCODED_STEPS, HOT_ENCODE, "  SyncWarp();\n  uint8_t* target", "  uint8_t* target"),
    "hot_uncodable": (ENCODED_STEPS, HOT_ENCODE, "is_uncodable |= !(size >=", "is_uncodable |= is_uncodable && !(size >="),
    "hot_found": (ENCODED_STEPS, HOT_ENCODE, "if (is_row && lane == 0) AtomicOr", "if (is_row && lane == 32) AtomicOr"),
    "hot_power_rows": (ENCODED_STEPS, HOT_ENCODE, "      if (IsMarked(shared->tile.is_row, token)) continue;\n      const auto value", "      const auto value"),
    "hot_power_end": (ENCODED_STEPS, HOT_ENCODE, "const uint32_t end = first + (left < codecs::kStripTokens ? left : codecs::kStripTokens);", "const uint32_t end = first + left;"),
    "hot_power_none": (ENCODED_STEPS, HOT_ENCODE, "if (count != 0) {", "if (count != 1) {"),
    "hot_scale": (ENCODED_STEPS, HOT_ENCODE, "codecs::HotScaleLog(spread, corrections[c])", "codecs::HotScaleLog(spread, 0 * corrections[c])"),
    "hot_strip_of": (ENCODED_STEPS, HOT_ENCODE, "shared->corrections[token / codecs::kStripTokens]", "shared->corrections[0 * token]"),
    "hot_nibble": (ENCODED_STEPS, HOT_ENCODE, "c + 1 < dim ? nibble(strip, c + 1) : 0;", "c + 1 <= dim ? nibble(strip, c + 1) : 0;"),
    "hot_few": (ENCODED_STEPS, HOT_ENCODE, "if (plane.tokens < codecs::kHotTokensMin) return false;", ""),
    "hot_encode_no_sync": (ENCODED_STEPS, HOT_ENCODE, "    FindCorrections(*tile, shared);\n    SyncBlock();", "    FindCorrections(*tile, shared);"),
    "patterns_first": (ENCODED_CHOICES, PATTERNED_ENCODE, "if (first != 0 && !(cost < best_cost)) continue;", "if (first != 0 && cost > best_cost) continue;"),
    "patterns_halves": (ENCODED_CHOICES, PATTERNED_ENCODE, "other_cost < best_cost ||", "other_cost > best_cost ||"),
    "patterns_odd": (ENCODED_CHOICES, PATTERNED_ENCODE, "first + half < plane.patterns ? first + half : first", "first + half"),
    "patterns_nearest": (ENCODED_CHOICES, PATTERNED_ENCODE, "(tile.task.rules & kRuleNearest) != 0", "(tile.task.rules & kRuleNearest) == 1"),
    "patterns_lanes": (ENCODED_CHOICES, PATTERNED_ENCODE, "pattern, 0, plane.dim, kHalf)", "pattern, 0, plane.dim, kWarpLanes)"),
    "patterns_gate": (ENCODED_CHOICES, PATTERNED_ENCODE, "if (plane.is_v && !PassesGate(", "if (!PassesGate("),
    "patterns_groups": (ENCODED_CHOICES, PATTERNED_ENCODE, "first < plane.dim; first += plane.group) {", "first < plane.dim; first += plane.dim) {"),
    "patterns_uncodable": (ENCODED_CHOICES, PATTERNED_ENCODE, "is_uncodable |= codecs::IsRowValue(LeftOf(plane, row, pattern, c));", ""),
    "patterns_found": (ENCODED_CHOICES, PATTERNED_ENCODE, "  AddFound(&shared->tile);\n", "  SyncBlock();\n"),
    "patterns_row": (ENCODED_CHOICES, PATTERNED_ENCODE, "IsMarked(shared.is_predicted, token) &&\n           !IsMarked(shared.tile.is_row, token);", "IsMarked(shared.is_predicted, token);"),
    "patterns_straddle": (ENCODED_CHOICES, PATTERNED_ENCODE, "number << (bit - 8 * i) : number >> (8 * i - bit)", "number << (bit - 8 * i) : 0"),
    "patterns_left": (ENCODED_CHOICES, PATTERNED_ENCODE, "is_predicted ? PatternOf(", "is_predicted || token < 4096 ? PatternOf("),
    "classes_rank": (ENCODED_CHOICES, MIXED_ENCODE, "(other == own && c < channel)", "(other == own && c > channel)"),
    "classes_profile": (ENCODED_CHOICES, MIXED_ENCODE, "codecs::Exp2(-LoadChannel(plane, task.head, channel).step_log)", "codecs::Exp2(LoadChannel(plane, task.head, channel).step_log)"),
    "classes_given": (ENCODED_CHOICES, MIXED_ENCODE, "if (task.scores != nullptr) return", "if (task.scores == task.source) return"),
    "classes_rows": (ENCODED_CHOICES, MIXED_ENCODE, "      if (IsMarked(shared->tile.is_row, token)) continue;\n      of.Add", "      of.Add"),
    "classes_variant": (ENCODED_CHOICES, MIXED_ENCODE, "tile.task.rules >> kRuleVariantShift", "1 + 0 * tile.task.rules"),
    "classes_order": (ENCODED_CHOICES, MIXED_ENCODE, "next + CountBits(all & below)", "next + CountBits(all & (below | below << 1))"),
    "classes_row_codes": (ENCODED_CHOICES, MIXED_ENCODE, "if (IsMarked(shared.tile.is_row, token)) break;", ""),
    "classes_row_source": (ENCODED_CHOICES, MIXED_ENCODE, "if (!IsMarked(shared.tile.is_row, token)) {", "if (tile.task.slot != nullptr) {"),
    "classes_pair": (ENCODED_CHOICES, MIXED_ENCODE, "token / plane.group * columns + column;", "0 * token / plane.group * columns + column;"),
    "classes_constant": (ENCODED_CHOICES, MIXED_ENCODE, "is_raw |= codecs::IsInexactConstant(of.low, of.high);", ""),
    "classes_no_sync": (ENCODED_CHOICES, MIXED_ENCODE, "  OrderByClass(plane, shared);\n  SyncBlock();", "  OrderByClass(plane, shared);"),
    "image_faulty": (ENCODE, IMAGE_ENCODE, "if (is_there && !is_wrong) {", "if (is_there || is_wrong) {"),
    "image_scan": (ENCODE, IMAGE_ENCODE, "if (lane >= lanes) end += before;", "end += before;"),
    "image_raw": (ENCODED_STRIPS, IMAGE_ENCODE, "if (bytes < RawBytes(plane)) return", "if (bytes < RawBytes(plane) + 64) return"),
    "image_escapes": (ENCODED_STRIPS, IMAGE_ENCODE, "source + (bytes - 1 - at)", "source + at"),
    "image_gap": (ENCODED_STRIPS, IMAGE_ENCODE, "static_cast<uint32_t>(parts.plane - parts.coded_end),", "0,"),
    "image_end": (ENCODED_STRIPS, IMAGE_ENCODE, "static_cast<uint32_t>(parts.bytes - parts.end), ThreadIndex(),", "0, ThreadIndex(),"),
    "image_no_sync": (ENCODE, IMAGE_ENCODE, "    if (!SyncBlockOr(fault != Fault::kNone)) {\n      StoreTile(", "    if (fault == Fault::kNone) {\n      StoreTile("),
    "image_no_sync_next": (ENCODE, IMAGE_ENCODE, "    SyncBlock();                             // shared", "    // shared"),
    "crc_lead": (DECODE, CRC, "if (row >= count || place < lead) return 0;", "if (row >= count || place <= lead) return 0;"),
    "crc_start": (DECODE, CRC, "place == lead ? ~word", "at == lead ? ~word"),
    "crc_empty": (DECODE, CRC, "return bytes == 0 ? 0 : ~crc;", "return ~crc;"),
    "crc_join": (DECODE, CRC, "round.count - 1 - lane : 0", "round.count - lane : 0"),
    "crc_rounds": (DECODE, CRC, "for (uint32_t k = 0; k < 5; ++k) {", "for (uint32_t k = 0; k < 4; ++k) {"),
    "fast_no_sync_exponents": (DECODE, FAST, "    SyncWarp();\n    StorePass", "    StorePass"),
    "attend_query": (ATTENTION, ATTEND_TASKS, "of_head / queries.rows_of_token * queries.query_heads", "of_head / queries.rows_of_token * queries.rows_of_token"),
    "attend_factor": (ATTENTION, ATTEND_STEPS, "(excess << 10)", "(excess << 9)"),
    "attend_v_slot": (ATTENTION, ATTEND_STEPS, "v_at ^ (2 * kRowBytes | VSwizzle<kBits>(2))", "v_at ^ (2 * kRowBytes)"),
    "attend_pieces": (ATTENTION, ATTEND_STEPS, "if (before + lane / kPieces < rows) {", "if (before + lane / kPieces < rows + kStepTokens) {"),
    "attend_params_tail": (ATTENTION, ATTEND_STEPS, "if (2 * lane < tokens) {", "if (2 * lane + 1 < tokens) {"),
    "attend_is_first": (ATTENTION, ATTEND_STEPS, "token == 0 ? 1 : 0;", "1;"),
    "attend_no_wait": (ATTENTION, ATTEND_AFFINE, "    CopyWait<kSteps - 1>();\n", ""),
    "attend_k_params": (ATTENTION, ATTEND_AFFINE, "CheckParams(WordOf(step.k_params[lane], i))", "CheckParams(0 * i)"),
    "attend_v_params": (ATTENTION, ATTEND_AFFINE, "Worse(CheckParams(pairs.x), CheckParams(pairs.y))", "CheckParams(pairs.x)"),
    "attend_no_zeros": (ATTENTION, ATTEND_AFFINE, "step->v_params[lane] = {0, 0};", ""),
    "attend_mask": (ATTENTION, ATTEND_AFFINE, "+ i % 2 >= tokens", "+ i % 2 > tokens"),
    "attend_extras": (ATTENTION, ATTEND_AFFINE, "sums->extras[i] = codecs::Multiply(sums->extras[i], shrink[i / 2]);", ""),
    "attend_weights_column": (ATTENTION, ATTEND_AFFINE, "g == 7 ? 0x3C003C00U", "g == 6 ? 0x3C003C00U"),
    "attend_query_exponent": (ATTENTION, ATTEND_AFFINE, "(254 - exponent) << 23", "(253 - exponent) << 23"),
    "attend_join": (ATTENTION, ATTEND_AFFINE, "Exp2Near(codecs::Add(shared.largest[i][row], -largest))", "1.0F"),
    "attend_no_sync_steps": (ATTENTION, ATTEND_AFFINE, "    SyncBlock();  // outputs lie where steps were\n", ""),
    "attend_no_sync_join": (ATTENTION, ATTEND_AFFINE, "    LeaveSums(sums, &shared);\n    SyncBlock();\n", "    LeaveSums(sums, &shared);\n"),
    "attend_rows": (ATTENTION, ATTEND_VALUES, "places->of[at] = const_cast<uint8_t*>(bits);", "places->of[at] = const_cast<uint8_t*>(at > 999 ? bits : nullptr);"),
    "attend_mixed_pair": (ATTENTION, ATTEND_VALUES, "(is_four ? number : four + number)", "number"),
    "attend_hot_mean": (ATTENTION, ATTEND_VALUES, "codecs::Add(level, LoadChannel", "codecs::Add(level, 0 * LoadChannel"),
    "attend_unrounded": (ATTENTION, ATTEND_VALUES, "if (dtype == codecs::DType::kFp32) return value;", "return value;"),
    "attend_causal": (ATTENTION, ATTEND_ANY, "(queries.rows - 1 - row)", "(queries.rows - row)"),
    "attend_hole": (ATTENTION, ATTEND_ANY, "k.is_tail && shared->places.of[at] == nullptr", "!k.is_tail && shared->places.of[at] == nullptr && first > 999"),
    "attend_tail_bound": (ATTENTION, ATTEND_ANY, "if (tokens <= queries.tail_tokens_max) return tokens;", "return tokens;"),
    "attend_shrink": (ATTENTION, ATTEND_ANY, "if (first == 0) sum = codecs::Multiply(sum, shared->shrink[row]);", ""),
    "attend_fault": (ATTENTION, ATTEND_ANY, "return !SyncBlockOr(*fault != Fault::kNone);", "SyncBlock();\n  return true;"),
    "attend_merge_weight": (ATTENTION, ATTEND_MERGE, "codecs::Add(log_sum, -merged.largest)", "codecs::Add(log_sum, -log_sum)"),
    "attend_merge_channel": (ATTENTION, ATTEND_MERGE, "if (channel >= queries.v_dim) continue;\n      StoreGlobal", "StoreGlobal"),
}

# Only the thread sanitizer sees these: lanes of the executor are in step wherever they meet.
RACES = {
    "race_after_wait": (DECODE, FAST, "    CopyWait<1>();\n    SyncWarp();", "    CopyWait<1>();"),
    "race_after_start": (DECODE, FAST, "    CopyWait<0>();\n    SyncWarp();", "    CopyWait<0>();"),
    "race_next_tables": (DECODE, FAST, "    LoadPars(strip, first, own);\n    SyncWarp();", "    LoadPars(strip, first, own);"),
    "race_encode_exponents": (ENCODED_STRIPS, STRIPS_ENCODE, "    LoadExponents(strip, first, exponents);\n    SyncWarp();\n    uint32_t own", "    LoadExponents(strip, first, exponents);\n    uint32_t own"),
    "race_result": (ENCODED_STRIPS, IMAGE_ENCODE, "    SyncWarp();  // all lanes have the result\n", ""),
    "race_escapes": (ENCODED_STRIPS, STRIPS_ENCODE, "to < writer->stream", "to < strip.part + strip.part_bytes"),
    "race_stream": (ENCODED_STRIPS, STRIPS_ENCODE, "    writer->floor += CountBits(escaping);\n", ""),
    "race_next_strip": (DECODE, TASKS, "    SyncWarp();  // shared memory is of", "    // shared memory is of"),
    "race_attend_wait": (ATTENTION, ATTEND_AFFINE, "    CopyWait<kSteps - 1>();\n    SyncWarp();\n", "    CopyWait<kSteps - 1>();\n"),
    "race_attend_step": (ATTENTION, ATTEND_AFFINE, "    SyncWarp();  // nobody reads the step any more\n", ""),
}


def words_of(build, test, source):
    """How `source` is compiled and the test's program linked, without outputs and without what is only for the build."""
    target = f"bin/kernels_{pathlib.Path(test).stem}"
    lines = subprocess.run(["ninja", "-C", build, "-t", "commands", target], check=True, text=True, capture_output=True).stdout.splitlines()
    name = f"/{pathlib.Path(source).name}.o -c "
    compiled = next(shlex.split(line) for line in lines if name in line)
    start = next(i for i, word in enumerate(compiled) if re.fullmatch(r".*/(c\+\+|g\+\+|clang\+\+)(-\d+)?", word))
    output = compiled.index("-o")
    made = compiled[output + 1]
    # The program is linked by the last of them: ": && c++ ... && :".
    link = shlex.split(lines[-1].split("&&")[1])
    pairs = {"-MT", "-MF", "-o", "-include"}
    kept = []
    words = iter(compiled[start:])
    for word in words:
        if word in pairs:
            next(words)
        elif word not in ("-MD", "-Winvalid-pch"):
            kept.append(word)
    out = link.index("-o")
    return kept, [word for i, word in enumerate(link) if i not in (out, out + 1)], made


def includes(build, made, file):
    """Whether the build compiled `made` with the file."""
    listed = subprocess.run(["ninja", "-C", build, "-t", "deps", made], check=True, text=True, capture_output=True).stdout
    return any(line.strip().endswith(f"/{file}") for line in listed.splitlines())


def run(build, name):
    """None where the mutation was caught; else what happened."""
    tests, file, old, new = (MUTATIONS | RACES)[name]
    text = (ROOT / file).read_text()
    if text.count(old) != 1:
        return f"its text stands {text.count(old)} times in {file}"
    for test in tests:
        if (result := run_test(build, name, test, file, text.replace(old, new))) != PASSED:
            return result
    return PASSED


def run_test(build, name, test, file, mutated_text):
    """PASSED, None where the test fails, or what happened else."""
    with tempfile.TemporaryDirectory() as folder:
        mutated = pathlib.Path(folder) / file
        mutated.parent.mkdir(parents=True)
        mutated.write_text(mutated_text)
        program, objects = pathlib.Path(folder) / "test", []
        for source in (LAUNCHES, test):
            compile_words, link_words, made = words_of(build, test, source)
            if not includes(build, made, file):
                objects.append(made)
                continue
            objects.append(f"{folder}/{pathlib.Path(source).stem}.o")
            # The folder stands before the tree among those that are searched.
            line = [compile_words[0], f"-I{folder}", *compile_words[1:], "-o", objects[-1]]
            if subprocess.run(line, cwd=build, capture_output=True).returncode != 0:
                return "it does not compile"
        # In the place of the test's, and so before the library that has the other, which is then left out.
        at = link_words.index(made)
        subprocess.run([*link_words[:at], *objects, *link_words[at + 1:], "-o", program], cwd=build, check=True)
        chosen = [f"--gtest_filter={RACES_FILTER}"] if name in RACES else []
        tsan = {"TSAN_OPTIONS": "ignore_noninstrumented_modules=1:halt_on_error=1"}
        try:
            done = subprocess.run([program, "--gtest_fail_fast", "--gtest_brief", *chosen], capture_output=True, timeout=SECONDS_MAX,
                                  env=os.environ | tsan)
        except subprocess.TimeoutExpired:
            return f"the tests take more than {SECONDS_MAX} s"
        return PASSED if done.returncode == 0 else None


def check_texts():
    wrong = [f"{name}: its text stands {count} times in {file}" for name, (_, file, old, _) in (MUTATIONS | RACES).items()
             if (count := (ROOT / file).read_text().count(old)) != 1]
    print("\n".join([*wrong, f"{len(MUTATIONS)} mutations and {len(RACES)} races, {len(wrong)} findings"]))
    return 1 if wrong else 0


def main():
    if sys.argv[1] == "--texts":
        return check_texts()
    build = pathlib.Path(sys.argv[1]).resolve()
    names = sys.argv[2:] or list(RACES if build.name == "tsan" else MUTATIONS)
    missed = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for name, result in zip(names, pool.map(lambda n: run(build, n), names)):
            print(f"{name:24} {'caught' if result is None else 'MISSED: ' + result}", flush=True)
            missed += result is not None
    print(f"{len(names) - missed} of {len(names)} caught")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
