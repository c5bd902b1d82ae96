# SPDX-License-Identifier: Apache-2.0
cairn_bench(NAME cairn_index_scale_bench SRCS index_scale_bench.cc
  DEPS cairn_service_ssd cairn_service_state)
