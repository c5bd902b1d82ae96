# SPDX-License-Identifier: Apache-2.0
"""Conversations that go on after pauses, each turn at a random host: so much is asked a second,
whatever the store does. load.py says what a turn does.

    steady.py FILE COUNT SECONDS NAME=CONTROL,DATA…    the conversations, and their mean pause

First, each conversation gets a part of its turns without pauses, so that their ages differ as they
do later. Then it prints "ready". A line of standard input names the hosts that are used from then
on.
"""

import heapq
import json
import queue
import random
import signal
import sys
import threading
import time

from load import Conversations, Jitter, Worker

SEED = 1
TURNS = 9  # of a conversation, about
WORKERS_PER_HOST = 2
LOOK_SECONDS = 0.1


class Router:
    """Gives turns to the workers of random hosts."""

    def __init__(self, names, count, seconds):
        self._random = random.Random(SEED)
        self._conversations = Conversations(SEED, count)
        self._seconds = seconds
        self._lock = threading.Lock()
        self._names = list(names)
        self._due = []  # when each conversation that pauses goes on
        self.turns = {name: queue.SimpleQueue() for name in names}

    def use(self, names):
        with self._lock:
            self._names = [name for name in names if name in self.turns]

    def ages(self):
        """The number of turns that each conversation has had."""
        return [self._random.randrange(TURNS) for _ in range(len(self._conversations))]

    def send(self, i):
        with self._lock:
            name = self._random.choice(self._names)
        self.turns[name].put((i, self._conversations.next_prompt(i)))

    def pause(self, i):
        with self._lock:
            wait = self._random.expovariate(1 / self._seconds)
            heapq.heappush(self._due, (time.monotonic() + wait, i))

    def send_due(self):
        while True:
            with self._lock:
                if not self._due or self._due[0][0] > time.monotonic():
                    return
                i = heapq.heappop(self._due)[1]
            self.send(i)


class Load:
    def __init__(self, router, hosts, write):
        self._router, self._is_over = router, threading.Event()
        self._ended = queue.SimpleQueue()
        jitter = Jitter()
        self._threads = []
        for name, ends in hosts.items():
            for _ in range(WORKERS_PER_HOST):
                worker = Worker(name, *ends.split(","), jitter, write)
                self._threads.append(threading.Thread(target=self._work, args=(name, worker)))

    def _work(self, name, worker):
        while not self._is_over.is_set():
            try:
                i, prompt = self._router.turns[name].get(timeout=LOOK_SECONDS)
            except queue.Empty:
                continue
            worker.request(prompt)
            self._ended.put(i)

    def fill(self):
        """The turns before the first pause."""
        ages = self._router.ages()
        for turn in range(TURNS):
            sent = [i for i, age in enumerate(ages) if age >= TURNS - turn]
            for i in sent:
                self._router.send(i)
            for _ in sent:
                self._ended.get()
        for i in range(len(ages)):
            self._router.pause(i)

    def run(self):
        for thread in self._threads:
            thread.start()
        self.fill()
        print("ready", flush=True)
        while not self._is_over.wait(0.002):
            self._router.send_due()
            while not self._ended.empty():
                self._router.pause(self._ended.get())
        for thread in self._threads:
            thread.join()

    def stop(self, *_):
        self._is_over.set()


def main():
    path, count, seconds, *words = sys.argv[1:]
    target = open(path, "w", encoding="utf-8", buffering=1)
    lock = threading.Lock()

    def write(line):
        with lock:
            target.write(json.dumps(line) + "\n")

    hosts = dict(word.split("=") for word in words)
    router = Router(hosts, int(count), float(seconds))

    def listen():
        for line in sys.stdin:
            router.use(line.split())

    load = Load(router, hosts, write)
    signal.signal(signal.SIGTERM, load.stop)
    threading.Thread(target=listen, daemon=True).start()
    load.run()


if __name__ == "__main__":
    main()
