# SPDX-License-Identifier: Apache-2.0
"""One exception per status code. A code says what the caller does next."""

from __future__ import annotations


class Error(Exception):
    """A call failed. `code` is the number of the status, the same as gRPC's. `delivered_tokens`:
    of `Match.get`, how many tokens from 0 on were delivered all the same; their KV is verified."""

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
    """A caller's bug; the text names the field and the limit."""

    code = 3


class DeadlineExceededError(Error, TimeoutError):
    """Not done in time: recompute."""

    code = 4


class NotFoundError(Error, LookupError):
    """No such space. (A block that is not there is a miss, never an exception.)"""

    code = 5


class PermissionDeniedError(Error, PermissionError):
    """Another tenant's."""

    code = 7


class ResourceExhaustedError(Error):
    """A limit is reached: back off."""

    code = 8


class FailedPreconditionError(Error):
    """A wrong state: a closed handle, a forked process, an open breaker."""

    code = 9


class NotDurableError(Error):
    """Stored, but not durable as the put asked to be. `durability` says why: "no_tier" (the daemon
    has no tier that lasts), "read_only", "no_room", "late", "ancestors" (a block before it is not
    there, or not durable itself), "too_large", "gone", "stopping"."""

    code = 10
    durability = ""


class UnimplementedError(Error, NotImplementedError):
    """The daemon, or a group of this kind, does not have it."""

    code = 12


class InternalError(Error):
    """A bug of ours."""

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
    """The exception for a status of the library."""
    cls = _BY_CODE.get(code)
    return cls(message) if cls else Error(message, code)
