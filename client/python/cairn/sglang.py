# SPDX-License-Identifier: Apache-2.0
"""SGLang's third level in Cairn: a backend of HiCache (docs/engines/sglang.md).

    --hicache-storage-backend dynamic --hicache-storage-backend-extra-config '{
      "backend_name": "cairn", "module_path": "cairn.sglang", "class_name": "CairnHiCache",
      "interface_v1": 1, "hicache_storage_pass_prefix_keys": true,
      "control": "127.0.0.1:7070", "weights_revision": "…"}'
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Sequence
from typing import Any

from sglang.srt.mem_cache.hicache_storage import HiCacheStorage

from ._session import Session
from ._settings import StoreSettings, settings_of
from ._sglang_pages import KnownPages, OpaquePages, pages_of
from .errors import Error, InvalidArgumentError
from .space import Space
from .transfer import Get, Put

_OPTION = "--hicache-storage-backend-extra-config"
_SGLANG_S = ("backend_name", "module_path", "class_name", "interface_v1")  # in the same option
_ANCHOR = "kv"  # SGLang's name of the pool that pages of requests are in

log = logging.getLogger("cairn.sglang")


@dataclasses.dataclass(frozen=True)
class Settings(StoreSettings):
    recipe: str | None = None  # if this engine makes the space; None: the daemon's default


class CairnHiCache(HiCacheStorage):
    """Every call ends within its timeout and raises nothing: what fails is a miss, or is not
    stored. SGLang gives up its third level for good where a call raises."""

    def __init__(self, storage_config: Any, kwargs: Any = None) -> None:
        given = storage_config.extra_config or {}
        ours = {name: value for name, value in given.items() if name not in _SGLANG_S}
        self._settings = settings_of(Settings, _OPTION, ours)
        self._config = storage_config
        self._pages: KnownPages | OpaquePages | None = None
        self._session: Session | None = None
        self._said = ""

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        """Before all that follows."""
        super().register_mem_pool_host(mem_pool_host)
        settings = self._settings
        pages = self._pages = pages_of(mem_pool_host, self._config, settings.weights_revision)
        if pages.reason:
            log.warning("cairn: %s: pages are kept as they are, recipes do not apply", pages.reason)
            settings = dataclasses.replace(settings, recipe="raw")
        name = f"sglang {self._config.tp_rank}"
        self.close()
        self._session = Session(settings, pages.spec, name, log)

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        super().register_mem_host_pool_v2(host_pool, host_pool_name)
        name = getattr(host_pool_name, "value", host_pool_name)
        if name != _ANCHOR:
            raise InvalidArgumentError(
                f"the model keeps pages in a pool {name!r}, too; this backend keeps one pool's"
            )

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None

    # ------------------------------------------------------- pages where they lie in the pool

    def batch_get_v1(self, keys: list[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        def load(space: Space, pages: KnownPages | OpaquePages) -> list[bool]:
            places = self._places(keys, host_indices)
            return pages.load(space, _keys(space, keys), places, self._settings.timeout)

        return self._run("load", load, [False] * len(keys))

    def batch_set_v1(self, keys: list[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        def store(space: Space, pages: KnownPages | OpaquePages) -> list[bool]:
            before = getattr(extra_info, "prefix_keys", None) or []
            return pages.store(
                space,
                _keys(space, keys),
                self._places(keys, host_indices),
                self._settings.timeout,
                parent=_keys(space, before[-1:])[0] if before else None,
                first_position=len(before) * pages.spec.tokens_per_block,
                is_derived=self._is_derived,
            )

        return self._run("store", store, [False] * len(keys))

    def _places(self, keys: Sequence[str], host_indices: Any) -> list[int]:
        """The pages of the pool that `host_indices`, of tokens, name."""
        count = self.mem_pool_host.page_size
        if len(host_indices) != len(keys) * count:
            raise InvalidArgumentError(
                f"there are {len(host_indices)} places of tokens for {len(keys)} pages of {count}"
            )
        return [place // count for place in host_indices[::count].tolist()]

    # ------------------------------------------------------------------- pages that lie apart

    def batch_get(
        self, keys: list[str], target_locations: Any = None, target_sizes: Any = None
    ) -> list[Any]:
        def load(space: Space, pages: KnownPages | OpaquePages) -> list[Any]:
            named = zip(_keys(space, keys), target_locations, strict=True)
            gets = [Get(key, part=pages.part, **pages.arrays(page)) for key, page in named]
            results = space.get_batch(gets, timeout=self._settings.timeout)
            return [
                page if got else None
                for page, got in zip(target_locations, results, strict=True)
            ]

        return self._run("load", load, [None] * len(keys))

    def batch_set(
        self,
        keys: list[str],
        values: Any = None,
        target_locations: Any = None,
        target_sizes: Any = None,
    ) -> bool:
        def store(space: Space, pages: KnownPages | OpaquePages) -> bool:
            puts = [
                Put(key, part=pages.part, is_derived=self._is_derived, **pages.arrays(page))
                for key, page in zip(_keys(space, keys), values, strict=True)
            ]
            results = space.put_batch(puts, timeout=self._settings.timeout)
            return all(result.error is None for result in results)

        return self._run("store", store, False)

    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> Any:
        return self.batch_get([key], [target_location])[0]

    def set(
        self,
        key: str,
        value: Any = None,
        target_location: Any = None,
        target_sizes: Any = None,
    ) -> bool:
        return self.batch_set([key], [value])

    # ------------------------------------------------------------------------------- the rest

    def batch_exists(self, keys: list[str], extra_info: Any = None) -> int:
        """How many of them, from the first on, this rank can load."""

        def look_up(space: Space, pages: KnownPages | OpaquePages) -> int:
            wanted = _keys(space, keys)
            timeout = self._settings.timeout
            return space.match(wanted, part=pages.part, lease=False, timeout=timeout).block_count

        return self._run("look-up", look_up, 0)

    def exists(self, key: str) -> bool:
        return self.batch_exists([key]) == 1

    def clear(self) -> None:
        """Every page of this model, weights and layout, of all engines that share them."""
        self._run("clear", lambda space, _: space.invalidate(timeout=self._settings.timeout), None)

    @property
    def _is_derived(self) -> bool:
        """Whether pages may have been computed on what was loaded with losses. SGLang does not say
        which: of a space with losses all count."""
        return self._session is not None and not self._session.is_lossless

    def _run(
        self, what: str, call: Callable[[Space, KnownPages | OpaquePages], Any], otherwise: Any
    ) -> Any:
        """What `call` answers, or `otherwise` where there is no daemon or it fails."""
        space = None if self._session is None else self._session.space
        if space is None or self._pages is None:
            return otherwise
        try:
            answer = call(space, self._pages)
        except Error as error:
            if type(error).__name__ != self._said:  # not once a page while the daemon is away
                log.warning("cairn: a %s failed, SGLang goes on without: %s", what, error)
            self._said = type(error).__name__
            return otherwise
        except Exception:  # whatever it is, SGLang's thread has to live
            log.exception("cairn: a %s failed, SGLang goes on without", what)
            return otherwise
        self._said = ""
        return answer


def _keys(space: Space, names: Sequence[str]) -> list[bytes]:
    return [space.opaque_key(name.encode()) for name in names]
