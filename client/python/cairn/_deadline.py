# SPDX-License-Identifier: Apache-2.0
"""Deadlines of an adapter's tasks, on the monotonic clock."""

from __future__ import annotations

import time

from .errors import DeadlineExceededError


def time_left(deadline: float) -> float:
    """Returns the seconds until `deadline`. Raises DeadlineExceededError if none are left."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise DeadlineExceededError("the task's time is over")
    return left
