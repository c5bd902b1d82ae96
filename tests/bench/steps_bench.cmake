# SPDX-License-Identifier: Apache-2.0
if(TARGET cairnd)
  cairn_bench(NAME cairn_steps_bench SRCS steps_bench.cc DEPS cairn_client cairn_test_daemon)
endif()
