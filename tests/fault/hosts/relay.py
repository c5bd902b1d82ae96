# SPDX-License-Identifier: Apache-2.0
"""Passes Ethernet frames between two interfaces, late, and loses some of them.

    relay.py pass ONE OTHER SECONDS LOSS    prints "ready" when it passes frames; ends at SIGTERM
    relay.py whole INTERFACE                what is sent there has its checksums and is not too long

It takes the place of netem, which many kernels lack.
"""

import collections
import ctypes
import fcntl
import random
import select
import socket
import struct
import sys
import time

FRAME_BYTES_MAX = 65_536
QUEUED_MAX = 4_096  # frames of one direction; more are lost, as in a switch
ETH_P_ALL = 3
SIOCETHTOOL = 0x8946
OFFLOADS = (0x17, 0x1F, 0x24)  # ETHTOOL_STXCSUM, ETHTOOL_STSO, ETHTOOL_SGSO


def stop_offloads(name):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for command in OFFLOADS:
            value = ctypes.create_string_buffer(struct.pack("II", command, 0), 8)
            request = struct.pack("16sP16x", name.encode(), ctypes.addressof(value))
            fcntl.ioctl(control, SIOCETHTOOL, request)


def open_interface(name):
    interface = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    interface.bind((name, 0))
    interface.setblocking(False)
    return interface


def receive(interface):
    """The next frame that came in; None if there is none. Frames that went out are seen, too."""
    while True:
        try:
            frame, address = interface.recvfrom(FRAME_BYTES_MAX)
        except BlockingIOError:
            return None
        if address[2] != socket.PACKET_OUTGOING:
            return frame


def pass_frames(one, other, seconds, loss):
    target = {one: other, other: one}
    queues = {one: collections.deque(), other: collections.deque()}  # by the source
    chance = random.Random(1)
    while True:
        due = min((queue[0][0] for queue in queues.values() if queue), default=None)
        wait = None if due is None else max(due - time.monotonic(), 0)
        for source in select.select(list(queues), [], [], wait)[0]:
            while (frame := receive(source)) is not None:
                if chance.random() >= loss and len(queues[source]) < QUEUED_MAX:
                    queues[source].append((time.monotonic() + seconds, frame))
        now = time.monotonic()
        for source, queue in queues.items():
            while queue and queue[0][0] <= now:
                try:
                    target[source].send(queue.popleft()[1])
                except OSError:  # the buffer is full: lost
                    pass


def main():
    if sys.argv[1] == "whole":
        stop_offloads(sys.argv[2])
        return
    one, other = map(open_interface, sys.argv[2:4])
    print("ready", flush=True)
    pass_frames(one, other, *map(float, sys.argv[4:6]))


if __name__ == "__main__":
    main()
