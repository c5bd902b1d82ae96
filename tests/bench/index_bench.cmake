# SPDX-License-Identifier: Apache-2.0
cairn_bench(NAME cairn_index_bench SRCS index_bench.cc DEPS cairn_service_index)
