# SPDX-License-Identifier: Apache-2.0
# Capacity planning without a daemon; the test of `cairnctl replay` holds it to the real one.
cairn_binary(NAME cairn_replay_simulate SRCS replay_simulate.cc
  DEPS cairn_replay cairn_service_index absl::str_format)
