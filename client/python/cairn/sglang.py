# SPDX-License-Identifier: Apache-2.0
"""SGLang's third level in Cairn: a backend of HiCache (docs/guides/sglang.md).

    --hicache-storage-backend dynamic --hicache-storage-backend-extra-config '{
      "backend_name": "cairn", "module_path": "cairn.sglang", "class_name": "CairnHiCache",
      "interface_v1": 1, "hicache_storage_pass_prefix_keys": true,
      "control": "127.0.0.1:50151", "weights_revision": "…"}'
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from sglang.srt.mem_cache.hicache_storage import HiCacheStorage

from . import _sglang_server
from ._deadline import time_left
from ._session import Session
from ._settings import StoreSettings, settings_of
from ._sglang_pages import ANCHOR, KnownPages, OpaquePages, engine_names, pages_of
from ._sglang_weights import WEIGHTS
from .errors import Error, InvalidArgumentError
from .space import Space
from .transfer import Get, Put
from .transfer import Names as EngineNames

_OPTION = "--hicache-storage-backend-extra-config"
_SGLANG_S = ("backend_name", "module_path", "class_name", "interface_v1")  # in the same option

_ALL_PAGES, _TRAILING_PAGES = "all_pages", "trailing_pages"  # needs of a prefix
_GROUPS = "block_groups"  # pages in another form, which SGLang also asks for, but never waits for

Names = Callable[[Sequence[str]], list[bytes]]  # converts SGLang's names of pages to keys

log = logging.getLogger("cairn.sglang")


@dataclasses.dataclass(frozen=True)
class Settings(StoreSettings):
    recipe: str | None = None  # used if this engine creates the space; None: the daemon's default


@dataclasses.dataclass(frozen=True)
class _Pool:
    """One of SGLang's pools of host memory, and the space for its pages. weights: the name that
    `weights_are_now` gave to the space's weights; None: they are the setting's."""

    host: Any
    pages: KnownPages | OpaquePages
    session: Session
    weights: str | None = None


def weights_are_now(revision: str) -> None:
    """Names the weights that this process has from now on. Call it in every scheduler process of the
    engine, after the weights have been updated and SGLang's cache was flushed. A trainer that holds
    SGLang's `Engine` calls

        engine.collective_rpc("cairn_weights_are_now", revision=revision)

    Equal weights need equal names, and other weights other names. A server that starts with this name
    as its `weights_revision` has the same pages."""
    WEIGHTS.name(revision)


class CairnHiCache(HiCacheStorage):
    """Every call ends within its timeout and raises nothing: a failure is a miss, or the page is
    not stored. If a call raised, SGLang would disable its third level permanently.

    SGLang keeps other data of a page (states, windows, an indexer, a draft model) in separate
    pools. They have separate spaces here."""

    def __init__(self, storage_config: Any, kwargs: Any = None) -> None:
        _sglang_server.check_page_names()
        given = storage_config.extra_config or {}
        ours = {name: value for name, value in given.items() if name not in _SGLANG_S}
        self._settings = settings_of(Settings, _OPTION, ours)
        server = _sglang_server.Server()
        server.check_splits()
        self._configuration = server.revision()
        self._cache_dtype = server.cache_dtype()
        WEIGHTS.listen()
        self._config = storage_config
        self._pools: dict[str, _Pool] = {}  # by SGLang's name; the anchor comes first
        self._moving = threading.Lock()  # held while the pools get spaces of other weights
        self._said = ""
        self._refused: set[tuple[str, str]] = set()  # pools and policies

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        """SGLang calls it before all other methods."""
        super().register_mem_pool_host(mem_pool_host)
        self.close()
        self._register(mem_pool_host, ANCHOR)

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        super().register_mem_host_pool_v2(host_pool, host_pool_name)
        name = str(getattr(host_pool_name, "value", host_pool_name))
        if name not in self._pools:
            self._register(host_pool, name)

    def _register(self, host: Any, name: str) -> None:
        settings = self._settings
        try:
            pages = self._pages_of(host, name, settings.weights_revision)
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"SGLang's pool {name!r}: {error}") from error
        if pages.reason:
            log.warning("cairn: pool %s: %s: recipes do not apply", name, pages.reason)
            settings = dataclasses.replace(settings, recipe="raw")
        title = f"sglang {self._config.tp_rank}"
        beside = self._session
        self._pools[name] = _Pool(host, pages, Session(settings, pages.spec, title, log, beside))

    def _pages_of(self, host: Any, name: str, weights: str) -> KnownPages | OpaquePages:
        revision = f"{weights}, {self._configuration}"
        return pages_of(host, self._config, revision, name, self._cache_dtype)

    def _follow(self, weights: str | None) -> None:
        """Moves all pools to the spaces of other weights. Until those are open, pages are misses."""
        with self._moving:
            moved = {name: pool for name, pool in self._pools.items() if pool.weights != weights}
            for name, pool in moved.items():
                pages = self._pages_of(pool.host, name, weights or self._settings.weights_revision)
                # A call that still has the old entry sees, after it has read the space, that there is
                # another entry.
                self._pools[name] = dataclasses.replace(pool, pages=pages, weights=weights)
                pool.session.move(pages.spec)
        if moved:
            log.info("cairn: the weights are now %s", weights or self._settings.weights_revision)

    def close(self) -> None:
        while self._pools:  # the anchor last, because the others use its client
            self._pools.popitem()[1].session.close()

    @property
    def _session(self) -> Session | None:
        """Returns the session of the anchor."""
        return self._pools[ANCHOR].session if ANCHOR in self._pools else None

    # ------------------------------------------------------- pages where they lie in the pool

    def batch_get_v1(self, keys: list[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        return self._load(ANCHOR, keys, host_indices, self._deadline())

    def batch_set_v1(self, keys: list[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        before = getattr(extra_info, "prefix_keys", None) or []
        return self._store(ANCHOR, keys, host_indices, before, True, self._deadline())

    def batch_exists_v2(
        self, keys: list[str], pool_transfers: Any = None, extra_info: Any = None
    ) -> Any:
        """Returns the longest prefix for which each pool has the pages that it needs, and the
        length for each pool."""
        from sglang.srt.mem_cache.hicache_storage import PoolTransferResult

        count = self.batch_exists(keys, extra_info)
        found: dict[Any, int] = {ANCHOR: count} if count else {}
        lengths = list(range(1, count + 1))  # lengths of prefixes that can be restored
        for transfer in pool_transfers or ():
            if not self._knows(transfer):
                lengths = lengths if _policy_of(transfer) == _GROUPS else []
                continue
            good = _restorable(self._contains(transfer.name, keys[:count]), transfer)
            if good:
                found[transfer.name] = max(good)
            lengths = [length for length in lengths if length in good]
        return PoolTransferResult(lengths[-1] if lengths else 0, found, lengths)

    def batch_get_v2(self, transfers: Any, extra_info: Any = None) -> dict[Any, list[bool]]:
        deadline = self._deadline()
        return {
            one.name: self._load(one.name, one.keys or [], one.host_indices, deadline)
            if self._knows(one)
            else [False] * len(one.keys or [])
            for one in transfers
        }

    def batch_set_v2(self, transfers: Any, extra_info: Any = None) -> dict[Any, list[bool]]:
        deadline = self._deadline()
        before = getattr(extra_info, "prefix_keys", None) or []
        results = {}
        for one in transfers:
            if not self._knows(one):
                results[one.name] = [False] * len(one.keys or [])
                continue
            # For a window, earlier pages may be missing.
            has_all = _policy_of(one) == _ALL_PAGES
            results[one.name] = self._store(
                one.name, one.keys or [], one.host_indices, before, has_all, deadline
            )
        return results

    def _knows(self, transfer: Any) -> bool:
        """Returns whether Cairn knows which pages of a pool a prefix needs. If not, logs the pool's
        name."""
        policy = _policy_of(transfer)
        if policy in (_ALL_PAGES, _TRAILING_PAGES):
            return True
        refused = (str(getattr(transfer.name, "value", transfer.name)), str(policy))
        if refused not in self._refused:
            self._refused.add(refused)
            log.warning("cairn: pool %s: policy %s is not known: nothing of it is kept", *refused)
        return False

    def _load(self, name: str, keys: list[str], host_indices: Any, deadline: float) -> list[bool]:
        def load(space: Space, pool: _Pool, names: Names) -> list[bool]:
            places = _places(pool, keys, host_indices)
            return pool.pages.load(space, names(keys), places, time_left(deadline))

        return self._run("load", load, [False] * len(keys), name)

    def _store(
        self,
        name: str,
        keys: list[str],
        host_indices: Any,
        before: Sequence[str],
        is_chained: bool,
        deadline: float,
    ) -> list[bool]:
        """before: keys of the pages before them. is_chained: those pages are in the pool, too."""

        def store(space: Space, pool: _Pool, names: Names) -> list[bool]:
            return pool.pages.store(
                space,
                names(keys),
                _places(pool, keys, host_indices),
                time_left(deadline),
                parent=names(before[-1:])[0] if before and is_chained else None,
                names=engine_names(keys, before[-1] if before else ""),
                first_position=len(before) * pool.pages.spec.tokens_per_block,
                is_derived=self._is_derived,
            )

        return self._run("store", store, [False] * len(keys), name)

    def _contains(self, name: str, keys: list[str]) -> list[bool]:
        def look_up(space: Space, pool: _Pool, names: Names) -> list[bool]:
            return list(space.contains(names(keys), timeout=self._settings.timeout))

        return self._run("look-up", look_up, [False] * len(keys), name) if keys else []

    # ------------------------------------------------------------------- pages that lie apart

    def batch_get(
        self, keys: list[str], target_locations: Any = None, target_sizes: Any = None
    ) -> list[Any]:
        def load(space: Space, pool: _Pool, names: Names) -> list[Any]:
            pages = pool.pages
            named = zip(names(keys), target_locations, strict=True)
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
        def store(space: Space, pool: _Pool, names: Names) -> bool:
            pages = pool.pages
            puts = [
                Put(
                    key,
                    part=pages.part,
                    is_derived=self._is_derived,
                    names=EngineNames.of_hex(page_name),
                    **pages.arrays(page),
                )
                for key, page_name, page in zip(names(keys), keys, values, strict=True)
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
        """Returns how many of them, from the first on, this rank can load."""

        def look_up(space: Space, pool: _Pool, names: Names) -> int:
            part, timeout = pool.pages.part, self._settings.timeout
            return space.match(names(keys), part=part, lease=False, timeout=timeout).block_count

        return self._run("look-up", look_up, 0)

    def exists(self, key: str) -> bool:
        return self.batch_exists([key]) == 1

    def clear(self) -> None:
        """Deletes every page of this model, weights and layout, for all engines that share them."""
        for name, pool in self._pools.items():
            if pool.session.space is not None:
                self._call("clear", functools.partial(self._forget, pool.session.space), None)

    def _forget(self, space: Space) -> None:
        space.invalidate(timeout=self._settings.timeout)

    def _deadline(self) -> float:
        """Returns the deadline of a call that begins now."""
        return time.monotonic() + self._settings.timeout

    @property
    def _is_derived(self) -> bool:
        """Returns whether pages may have been computed from KV that was stored lossily. SGLang does
        not say which pages are, so in a space with a lossy recipe all count."""
        open_ones = (p.session for p in self._pools.values() if p.session.space is not None)
        return not all(session.is_lossless for session in open_ones)

    def _run(
        self,
        what: str,
        call: Callable[[Space, _Pool, Names], Any],
        otherwise: Any,
        name: str = ANCHOR,
    ) -> Any:
        """Returns the result of `call`. Returns `otherwise` if there is no daemon, no such pool or
        no version of the weights, or if the call fails."""
        title = str(getattr(name, "value", name))
        if title not in self._pools or self._pools[title].session.space is None:
            return otherwise
        now = WEIGHTS.current()
        if now is None:
            self._say(
                "weights",
                "cairn: the weights were updated and have no weight_version of their own: nothing"
                " is loaded or stored until an update, /update_weight_version or"
                " cairn.sglang.weights_are_now names one",
            )
            return otherwise
        pool = self._pools.get(title)
        if pool is not None and pool.weights != now.revision:
            self._call("change of weights", lambda: self._follow(now.revision), None)
            pool = self._pools.get(title)
        space = None if pool is None else pool.session.space
        if pool is None or space is None or pool.weights != now.revision:
            return otherwise
        if self._pools.get(title) is not pool:  # the space may be of other weights
            return otherwise
        names = functools.partial(_keys, space, now.version)
        return self._call(what, lambda: call(space, pool, names), otherwise)

    def _call(self, what: str, call: Callable[[], Any], otherwise: Any) -> Any:
        try:
            answer = call()
        except Error as error:
            self._say(
                type(error).__name__,
                f"cairn: a {what} failed, SGLang goes on without: {error}",
            )
            return otherwise
        except Exception:  # SGLang's thread must survive any error
            log.exception("cairn: a %s failed, SGLang goes on without", what)
            return otherwise
        self._said = ""
        return answer

    def _say(self, kind: str, text: str) -> None:
        """Logs a text once, and again only after a success: not for each page while the daemon is
        away."""
        if kind != self._said:
            log.warning("%s", text)
        self._said = kind


def _keys(space: Space, version: str, names: Sequence[str]) -> list[bytes]:
    """version: of the weights, if it differs from the space's."""
    before = f"weights {version}, " if version else ""
    return [space.opaque_key((before + name).encode()) for name in names]


def _places(pool: _Pool, keys: Sequence[str], host_indices: Any) -> list[int]:
    """Returns the pages of the pool that contain `host_indices`, which are token indices."""
    count = pool.host.page_size
    given = 0 if host_indices is None else len(host_indices)
    if given != len(keys) * count:
        raise InvalidArgumentError(
            f"there are {given} places of tokens for {len(keys)} pages of {count}"
        )
    return [place // count for place in host_indices[::count].tolist()] if keys else []


def _policy_of(transfer: Any) -> Any:
    return getattr(transfer.hit_policy, "value", transfer.hit_policy)


def _restorable(there: list[bool], transfer: Any) -> set[int]:
    """Returns the lengths of prefixes for which `there` has all pages that a pool needs."""
    is_all = _policy_of(transfer) == _ALL_PAGES
    window = len(there) if is_all else max(1, len(transfer.keys or ()))
    lengths = range(1, len(there) + 1)
    return {length for length in lengths if all(there[max(0, length - window) : length])}
