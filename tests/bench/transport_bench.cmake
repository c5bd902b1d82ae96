# SPDX-License-Identifier: Apache-2.0
# Without UCX it measures the local transport alone.
cairn_bench(NAME cairn_transport_bench SRCS transport_bench.cc transport_perftest.cc
  DEPS cairn_transport cairn_codecs cairn_base cairn_test_tls)
if(TARGET cairn_transport_ucx)
  target_link_libraries(cairn_transport_bench PRIVATE cairn_transport_ucx)
  target_compile_definitions(cairn_transport_bench PRIVATE CAIRN_HAS_UCX)
endif()
