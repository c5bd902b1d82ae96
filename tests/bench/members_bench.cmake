# SPDX-License-Identifier: Apache-2.0
cairn_bench(NAME cairn_members_bench SRCS members_bench.cc DEPS cairn_service_peer cairn_test_support)
