# SPDX-License-Identifier: Apache-2.0
"""One exception per status code. The code tells the caller what to do next."""

from __future__ import annotations


class Error(Exception):
    """A call failed. `code` is the number of the status, the same as gRPC's. `delivered_tokens`,
    set by `Match.get`: the number of tokens from 0 on that were delivered; their KV is verified."""

    code = 13
    delivered_tokens = 0

    def __init__(self, message: str, code: int | None = None) -> None:
        super().__init__(message)
        if code is not None:
            self.code = code

    def after(self, delivered_tokens: int) -> Error:
        self.delivered_tokens = delivered_tokens
        return self


class InvalidArgumentError(Error, ValueError):
    """A bug in the caller; the text names the field and the limit."""

    code = 3


class DeadlineExceededError(Error, TimeoutError):
    """The call did not end in time: recompute."""

    code = 4


class NotFoundError(Error, LookupError):
    """The space does not exist. (A missing block is a miss, never an exception.)"""

    code = 5


class PermissionDeniedError(Error, PermissionError):
    """The peer may not use the tenant, or is no operator."""

    code = 7


class ResourceExhaustedError(Error):
    """A limit is reached: back off."""

    code = 8


class FailedPreconditionError(Error):
    """The state is wrong: a closed handle, a forked process, an open breaker."""

    code = 9


class NotDurableError(Error):
    """The block is stored, but not durable as the put requested. `durability` has the reason:
    "no_tier" (the daemon has no persistent tier), "read_only", "no_room", "late", "ancestors" (a
    block before it is missing or not durable), "too_large", "gone", "stopping"."""

    code = 10
    durability = ""


class UnimplementedError(Error, NotImplementedError):
    """The daemon, or this kind of group, does not support it."""

    code = 12


class InternalError(Error):
    """A bug in Cairn."""

    code = 13


class UnavailableError(Error, ConnectionError):
    """The daemon is gone or draining; the client reconnects by itself."""

    code = 14


class DataLossError(Error):
    """The checksums of an image do not match its bytes."""

    code = 15


_BY_CODE: dict[int, type[Error]] = {
    cls.code: cls
    for cls in (
        InvalidArgumentError,
        DeadlineExceededError,
        NotFoundError,
        PermissionDeniedError,
        ResourceExhaustedError,
        FailedPreconditionError,
        NotDurableError,
        UnimplementedError,
        InternalError,
        UnavailableError,
        DataLossError,
    )
}


def from_code(code: int, message: str) -> Error:
    """Returns the exception for a status of the library."""
    cls = _BY_CODE.get(code)
    return cls(message) if cls else Error(message, code)
