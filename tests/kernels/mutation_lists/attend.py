# SPDX-License-Identifier: Apache-2.0
"""Mistakes of kernels that attend. mutations.py has how an entry is read."""

ATTENTION = ["tests/kernels/attention_test.cc", "tests/kernels/attention_hostile_test.cc"]
ATTEND_TASKS = "kernels/body/attend_tasks.h"
ATTEND_STEPS = "kernels/body/attend_steps.h"
ATTEND_AFFINE = "kernels/body/attend_affine.h"
ATTEND_FP8 = "kernels/body/attend_fp8.h"
ATTEND_SUMS = "kernels/body/attend_sums.h"
ATTEND_PLAIN = "kernels/body/attend_plain.h"
ATTEND_VALUES = "kernels/body/attend_values.h"
ATTEND_ANY = "kernels/body/attend_any.h"
ATTEND_MERGE = "kernels/body/attend_merge.h"

MUTATIONS = {
    "attend_query": (ATTENTION, ATTEND_TASKS, "of_head / queries.rows_of_token * queries.query_heads", "of_head / queries.rows_of_token * queries.rows_of_token"),
    "attend_factor": (ATTENTION, ATTEND_STEPS, "(excess << 10)", "(excess << 9)"),
    "attend_v_slot": (ATTENTION, ATTEND_STEPS, "v_at ^ (2 * kRowBytes | VSwizzle<kRowBytes>(2))", "v_at ^ (2 * kRowBytes)"),
    "attend_pieces": (ATTENTION, ATTEND_STEPS, "if (before + lane / kPieces < rows) {", "if (before + lane / kPieces < rows + kStepTokens) {"),
    "attend_params_tail": (ATTENTION, ATTEND_STEPS, "if (2 * lane < tokens) {", "if (2 * lane + 1 < tokens) {"),
    "attend_is_first": (ATTENTION, ATTEND_STEPS, "token == 0 ? 1 : 0;", "1;"),
    "attend_no_wait": (ATTENTION, ATTEND_STEPS, "    CopyWait<kSteps - 1>();\n", ""),
    "attend_k_params": (ATTENTION, ATTEND_AFFINE, "CheckParams(WordOf(step.k_params[lane], i))", "CheckParams(0 * i)"),
    "attend_v_params": (ATTENTION, ATTEND_AFFINE, "Worse(CheckParams(pairs.x), CheckParams(pairs.y))", "CheckParams(pairs.x)"),
    "attend_no_zeros": (ATTENTION, ATTEND_AFFINE, "step->v_params[lane] = {0, 0};", ""),
    "attend_mask": (ATTENTION, ATTEND_SUMS, "+ i % 2 >= tokens", "+ i % 2 > tokens"),
    "attend_extras": (ATTENTION, ATTEND_SUMS, "sums->extras[i] = codecs::Multiply(sums->extras[i], shrink[i / 2]);", ""),
    "attend_weights_column": (ATTENTION, ATTEND_AFFINE, "g == 7 ? 0x3C003C00U", "g == 6 ? 0x3C003C00U"),
    "attend_query_exponent": (ATTENTION, ATTEND_STEPS, "(254 - exponent) << 23", "(253 - exponent) << 23"),
    "attend_join": (ATTENTION, ATTEND_SUMS, "Exp2Near(codecs::Add(shared.largest[i][row], -largest))", "1.0F"),
    "attend_no_sync_steps": (ATTENTION, ATTEND_AFFINE, "    SyncBlock();  // outputs are stored where steps were\n", ""),
    "attend_no_sync_join": (ATTENTION, ATTEND_AFFINE, "        &shared);\n    SyncBlock();\n", "        &shared);\n"),
    "attend_rows": (ATTENTION, ATTEND_VALUES, "places->of[at] = const_cast<uint8_t*>(bits);", "places->of[at] = const_cast<uint8_t*>(at > 999 ? bits : nullptr);"),
    "attend_mixed_pair": (ATTENTION, ATTEND_VALUES, "(is_four ? number : four + number)", "number"),
    "attend_hot_mean": (ATTENTION, ATTEND_VALUES, "codecs::Add(level, LoadChannel", "codecs::Add(level, 0 * LoadChannel"),
    "attend_unrounded": (ATTENTION, ATTEND_VALUES, "if (dtype == codecs::DType::kFp32) return value;", "return value;"),
    "attend_causal": (ATTENTION, ATTEND_ANY, "(queries.rows - 1 - row)", "(queries.rows - row)"),
    "attend_hole": (ATTENTION, ATTEND_ANY, "k.is_tail && shared->places.of[at] == nullptr", "!k.is_tail && shared->places.of[at] == nullptr && first > 999"),
    "attend_tail_bound": (ATTENTION, ATTEND_ANY, "if (tokens <= queries.tail_tokens_max) return tokens;", "return tokens;"),
    "attend_shrink": (ATTENTION, ATTEND_ANY, "if (first == 0) sum = codecs::Multiply(sum, shared->shrink[row]);", ""),
    "attend_fault": (ATTENTION, ATTEND_ANY, "return !SyncBlockOr(*fault != Fault::kNone);", "SyncBlock();\n  return true;"),
    "attend_merge_weight": (ATTENTION, ATTEND_MERGE, "codecs::Add(log_sum, -largest)", "codecs::Add(log_sum, -log_sum)"),
    "attend_merge_channel": (ATTENTION, ATTEND_MERGE, "if (channel >= queries.v_dim) continue;\n      StoreGlobal", "StoreGlobal"),
    "fp8_params": (ATTENTION, ATTEND_FP8, "lane < 4 ? part.k_params : part.v_params", "lane < 4 ? part.v_params : part.k_params"),
    "fp8_params_tail": (ATTENTION, ATTEND_FP8, "first >= tokens) return;", "first + 8 > tokens) return;"),
    "fp8_keys": (ATTENTION, ATTEND_STEPS, "kRowBytes / 64 * p + i", "kRowBytes / 64 * p + 0 * i"),
    "fp8_swizzle": (ATTENTION, ATTEND_STEPS, "^ VSwizzle<kRowBytes>(p);", "^ VSwizzle<16 * kBits>(p);"),
    "fp8_queries": (ATTENTION, ATTEND_STEPS, "const uint32_t n = kPairs * (part % 2) + i;", "const uint32_t n = 8 * (part % 2) + i;"),
    "fp8_pair": (ATTENTION, ATTEND_FP8, "word >> 1 & 0x3F803F80U", "word >> 1 & 0x3F003F80U"),
    "fp8_sign": (ATTENTION, ATTEND_FP8, "word << 8 & 0x80008000U", "word << 8 & 0x00008000U"),
    "fp8_nan_keys": (ATTENTION, ATTEND_FP8, "    nans->Look(words.of[i]);\n", "    nans->Look(words.of[i] & 0x7E7E7E7EU);\n"),
    "fp8_nan_values": (ATTENTION, ATTEND_FP8, "      nans->Look(b.of[i]);\n", ""),
    "fp8_nan_sign": (ATTENTION, ATTEND_FP8, "(word & 0x7F7F7F7FU) + 0x01010101U", "(word & 0x7F7F7F7FU) + 0x01010001U"),
    "fp8_scales": (ATTENTION, ATTEND_FP8, "step->k_scales[lane] < 0x7C00 && ", ""),
    "fp8_zeros": (ATTENTION, ATTEND_FP8, "piece < kDim; piece += 16", "piece < 16; piece += 16"),
    "fp8_zeros_slot": (ATTENTION, ATTEND_FP8, "step->v_codes + VSlotOf(lane)", "step->v_codes + lane"),
    "fp8_zeros_scale": (ATTENTION, ATTEND_FP8, "    step->v_scales[lane] = 0;\n", ""),
    "fp8_score": (ATTENTION, ATTEND_FP8, "scales & 0xFFFF : scales >> 16", "scales & 0xFFFF : scales & 0xFFFF"),
    "fp8_weights": (ATTENTION, ATTEND_FP8, "MmaHalves(sums->extras, pairs,", "MmaHalves(sums->extras, scaled,"),
    "fp8_unit": (ATTENTION, ATTEND_FP8, "return kE4m3Unit;", "return kE4m3Unit / 2;"),
    "plain_hole": (ATTENTION, ATTEND_PLAIN, "(step.there >> token & 1) != 0 && static_cast<int32_t>(token)", "static_cast<int32_t>(token)"),
    "plain_end": (ATTENTION, ATTEND_PLAIN, "static_cast<int32_t>(token) < ends[i % 4 / 2];", "static_cast<int32_t>(token) <= ends[i % 4 / 2];"),
    "plain_behind": (ATTENTION, ATTEND_PLAIN, "behind[0] : 0),\n                           step.end - (step.is_tail != 0 ? behind[1] : 0)};", "behind[0] : 0),\n                           step.end - (step.is_tail != 0 ? behind[0] : 0)};"),
    "plain_tile_is_no_tail": (ATTENTION, ATTEND_PLAIN, "step.end - (step.is_tail != 0 ? behind[0] : 0),", "step.end - behind[0],"),
    "plain_zeros": (ATTENTION, ATTEND_PLAIN, "*reinterpret_cast<U32x4*>(step->v + PlainVAt<kDim>(row, piece)) = {0, 0, 0, 0};", ""),
    "plain_v_place": (ATTENTION, ATTEND_PLAIN, "v = PlainPlace<kDim>(reader, part, part.v, token + lane, &fault);", "v = PlainPlace<kDim>(reader, part, part.v, lane, &fault);"),
    "plain_ones": (ATTENTION, ATTEND_PLAIN, "g == 7 ? kOnes : 0", "g == 6 ? kOnes : 0"),
    "plain_rows": (ATTENTION, ATTEND_PLAIN, "kRows * i + lane / kPieces", "(kRows < 4 ? kRows : 2) * i + lane / kPieces"),
    "plain_join": (ATTENTION, ATTEND_SUMS, "  if (kDim < kAttendThreads && ThreadIndex() >= kDim) return;\n", ""),
    "plain_pairs": (ATTENTION, ATTEND_PLAIN, "j % 2 == 0 ? 0x5410 : 0x7632", "j % 2 == 0 ? 0x5410 : 0x5432"),
    "plain_no_wait": (ATTENTION, ATTEND_PLAIN, "    CopyWait<kSteps - 1>();\n    SyncWarp();\n", "    SyncWarp();\n"),
    "plain_no_sync_steps": (ATTENTION, ATTEND_PLAIN, "    SyncBlock();  // outputs are stored where steps were\n", ""),
    "plain_fault": (ATTENTION, ATTEND_PLAIN, "  if (fault != Fault::kNone) AtomicMax(args.status + part.status,", "  if (fault != Fault::kNone && !part.is_tail) AtomicMax(args.status + part.status,"),
}

# Only the thread sanitizer sees these: lanes of the executor are in step wherever they meet.
RACES = {
    "race_attend_wait": (ATTENTION, ATTEND_STEPS, "    CopyWait<kSteps - 1>();\n    SyncWarp();\n", "    CopyWait<kSteps - 1>();\n"),
    "race_attend_step": (ATTENTION, ATTEND_STEPS, "    SyncWarp();  // no lane reads the step any more\n", ""),
    "race_plain_places": (ATTENTION, ATTEND_PLAIN, "  SyncWarp();\n  CAIRN_UNROLL\n  for (uint32_t i = 0; i < kPieces; ++i) {", "  CAIRN_UNROLL\n  for (uint32_t i = 0; i < kPieces; ++i) {"),
}
