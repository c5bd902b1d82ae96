# SPDX-License-Identifier: Apache-2.0
if(TARGET cairnd)
  cairn_bench(NAME cairn_arrays_bench SRCS arrays_bench.cc DEPS cairn_client cairn_test_daemon)
endif()
