# SPDX-License-Identifier: Apache-2.0
"""Ports for processes that cannot bind port 0 and say which they got."""

import random
import socket

# Below those that Linux gives out by itself (32768 and up): nobody else is given one of these
# between its choice and the moment when the process binds it.
PORTS = range(20000, 32000)


def free_port():
    """A port that is free on all addresses."""
    while True:
        with socket.socket() as probe:
            try:
                probe.bind(("", random.choice(PORTS)))
            except OSError:
                continue
            return probe.getsockname()[1]
