# SPDX-License-Identifier: Apache-2.0
"""A second level of LMCache that is a dictionary in LMCache's own process, for `lmcache_l2.py`: it costs
a copy and nothing else.
"""

from __future__ import annotations

import os
from collections.abc import Sequence


class InProcess:
    def __init__(self) -> None:
        self._event = os.eventfd(0, os.EFD_NONBLOCK)
        self._values: dict[str, bytes] = {}
        self._done: list[tuple[int, bool, str, list[bool] | None]] = []
        self._last = 0

    def event_fd(self) -> int:
        return self._event

    def submit_batch_set(self, keys: Sequence[str], views: Sequence[memoryview]) -> int:
        self._values.update((key, bytes(view)) for key, view in zip(keys, views, strict=True))
        return self._end(None)

    def submit_batch_get(self, keys: Sequence[str], views: Sequence[memoryview]) -> int:
        for key, view in zip(keys, views, strict=True):
            if key in self._values:
                view.cast("B")[:] = self._values[key]
        return self._end([key in self._values for key in keys])

    def submit_batch_exists(self, keys: Sequence[str]) -> int:
        return self._end([key in self._values for key in keys])

    def drain_completions(self) -> list[tuple[int, bool, str, list[bool] | None]]:
        os.eventfd_read(self._event)
        done, self._done = self._done, []
        return done

    def close(self) -> None:
        os.close(self._event)

    def _end(self, results: list[bool] | None) -> int:
        self._last += 1
        self._done.append((self._last, True, "", results))
        os.eventfd_write(self._event, 1)
        return self._last
