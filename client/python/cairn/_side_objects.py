# SPDX-License-Identifier: Apache-2.0
"""The calls of a space for side objects: profiles and banks."""

from __future__ import annotations

import ctypes

from . import _abi, _ffi, keys
from ._handle import Handle
from .transfer import check_key


class SideObjects:
    """Part of `Space`."""

    _handle: Handle

    def install_profile(
        self, group: int, profile: bytes, *, timeout: float | None = None
    ) -> bytes:
        """Installs `profile`, made by `cairn.profile`, as the group's current profile. Later puts
        into the group are encoded with it if the recipe is a cairn:… one; blocks that are already
        stored keep their profile. Returns its id, the SHA-256 of its bytes. Raises
        InvalidArgumentError if it is not a profile, has another geometry than the group, or lacks
        the rate of the space's recipe."""
        return self._install(group, _abi.SIDE_OBJECT_PROFILE, profile, timeout)

    def install_bank(self, group: int, bank: bytes, *, timeout: float | None = None) -> bytes:
        """Like `install_profile`, for a bank made by `cairn.bank.mine` and the patternkv:…
        recipes."""
        return self._install(group, _abi.SIDE_OBJECT_BANK, bank, timeout)

    def current_profile(self, group: int, *, timeout: float | None = None) -> bytes | None:
        """Returns the id of the profile with which puts into the group are encoded now."""
        return self._current(group, _abi.SIDE_OBJECT_PROFILE, timeout)

    def current_bank(self, group: int, *, timeout: float | None = None) -> bytes | None:
        """Returns the id of the bank with which puts into the group are encoded now."""
        return self._current(group, _abi.SIDE_OBJECT_BANK, timeout)

    def _install(self, group: int, kind: int, data: bytes, timeout: float | None) -> bytes:
        side_object_id = (ctypes.c_uint8 * keys.KEY_BYTES)()
        limit = _ffi.milliseconds(timeout)
        call = _ffi.library().cairn_side_object_put
        with self._handle.use() as space:
            _ffi.check(call(space, group, kind, data, len(data), limit, side_object_id))
        return bytes(side_object_id)

    def _current(self, group: int, kind: int, timeout: float | None) -> bytes | None:
        side_object_id = (ctypes.c_uint8 * keys.KEY_BYTES)()
        limit = _ffi.milliseconds(timeout)
        with self._handle.use() as space:
            code = _ffi.library().cairn_side_object_current(
                space, group, kind, limit, side_object_id
            )
            if code == _abi.NOT_FOUND:
                return None
            _ffi.check(code)
        return bytes(side_object_id)

    def side_object(self, side_object_id: bytes, *, timeout: float | None = None) -> bytes | None:
        """Returns the bytes of a side object, checked against their id; None if the space does not
        have it, or no longer has it. An image's `side_object` is the id of its own."""
        wanted = check_key("side_object_id", side_object_id)
        count, limit = ctypes.c_size_t(), _ffi.milliseconds(timeout)
        call = _ffi.library().cairn_side_object_get
        with self._handle.use() as space:
            code = call(space, wanted, limit, None, 0, ctypes.byref(count))
            if code == _abi.NOT_FOUND:
                return None
            _ffi.check(code)
            target = ctypes.create_string_buffer(count.value)
            _ffi.check(call(space, wanted, limit, target, len(target), ctypes.byref(count)))
        return target.raw
