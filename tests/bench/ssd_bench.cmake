# SPDX-License-Identifier: Apache-2.0
cairn_bench(NAME cairn_ssd_bench SRCS ssd_bench.cc DEPS cairn_service_ssd)
