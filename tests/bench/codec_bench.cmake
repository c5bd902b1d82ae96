# SPDX-License-Identifier: Apache-2.0
cairn_bench(NAME cairn_codec_bench SRCS codec_bench.cc DEPS cairn_codecs cairn_base)
