# SPDX-License-Identifier: Apache-2.0
"""Decides which blocks a request loads, and which of its blocks are saved.

Knows nothing of vLLM except the attributes of its requests that `_Chain` and `Scheduler` read:
request_id, all_token_ids, num_tokens, num_computed_tokens, lora_request, cache_salt, mm_features,
prompt_embeds, resumable, block_hashes, kv_transfer_params, kv_hints.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from .. import keys
from ..paged import SKIPPED
from ..transfer import Names
from .adapters import Adapter, Adapters
from .hints import Hint, hint_of
from .lookup import Lookup, Lookups
from .media import is_named_by_content
from .plan import Geometry, Load, Plan, Save, States, Tables

log = logging.getLogger("vllm.cairn")

IDLE_SECONDS = 0.002  # time for a lookup in a step without work


class _Chain:
    """A request's keys, derived once, and the decisions for it.

    A session (`resumable`) is one request that gets more tokens and media over time. Its last token
    may be withdrawn. `refresh` forgets the keys of blocks that have changed.
    """

    def __init__(
        self, request: Any, store_tokens: int, adapter: Adapter | None, fixed: list[keys.KeyExtra]
    ) -> None:
        self.request, self.adapter = request, adapter
        # Whether tokens name its blocks.
        self.is_named = getattr(request, "prompt_embeds", None) is None
        self.is_ended = False
        self.hint: Hint | None = None
        self._store_tokens = store_tokens
        self._fixed = fixed  # extras that all of its KV depends on
        self._media: dict[int, list[keys.KeyExtra]] = {}  # by the block in which they begin
        self._media_count = 0  # number of media in _media
        self._keys: list[bytes] = []
        self._named: list[int] = []  # session: the tokens that have keys
        self.lookup: Lookup | None = None
        self.lease: bytes | None = None  # lease on the blocks being loaded
        self.loading: tuple[int, Tables] | None = None  # first store block, the engine's blocks
        self.usable_blocks: int | None = None  # blocks before the first that failed to load
        self.saved_blocks = 0  # store blocks, from the start of the chain
        self.computed_from: int | None = None  # this request has not computed the tokens before it

    def keys(self, count: int, space: bytes) -> list[bytes]:
        """Returns the keys of the first `count` blocks. REQUIRES: all of their tokens are known."""
        tokens, size = self.request.all_token_ids, self._store_tokens
        while len(self._keys) < count:
            block = len(self._keys)
            extras = (self._fixed if block == 0 else []) + self._media.get(block, [])
            parent = self._keys[-1] if self._keys else None
            own = list(tokens[block * size : (block + 1) * size])
            self._keys.append(keys.derive_key(space, parent, own, extras))
            if _is_session(self.request):
                self._named += own
        return self._keys[:count]

    def names(self, first: int, count: int, hash_tokens: int) -> list[Names]:
        """Returns vLLM's own names of `count` blocks from `first` on, for events. vLLM has a hash
        for each hash_tokens, which includes all earlier tokens. The name of a store block is the
        hash at its end. Empty: vLLM has no hashes, because prefix caching is off."""
        tokens, size = self.request.all_token_ids, self._store_tokens
        hashes = getattr(self.request, "block_hashes", None) or ()
        ratio, end = size // hash_tokens, first + count
        if size % hash_tokens or len(hashes) < end * ratio:
            return []
        ends = [bytes(hashes[i * ratio - 1]) if i else b"" for i in range(first, end + 1)]
        made = [
            Names.of(own, parent, list(tokens[i * size : (i + 1) * size]))
            for i, own, parent in zip(range(first, end), ends[1:], ends, strict=False)
        ]
        return [one for one in made if one is not None] if all(made) else []

    def refresh(self, is_media_named: bool) -> bool:
        """Returns False if some blocks have changed. Their keys are then forgotten."""
        count, first = len(self._keys), len(self._keys)
        features = getattr(self.request, "mm_features", None) or ()
        if len(features) < self._media_count:
            self._media, self._media_count, first = {}, 0, 0
        for feature in features[self._media_count :]:
            if not is_media_named or not is_named_by_content(feature.identifier):
                self.is_named = False
            block, offset = divmod(feature.mm_position.offset, self._store_tokens)
            extra = keys.KeyExtra("media", feature.identifier.encode(), offset)
            self._media.setdefault(block, []).append(extra)
            first = min(first, block)
        self._media_count = len(features)
        if self._named:
            now = list(self.request.all_token_ids[: len(self._named)])
            if now != self._named:
                same = (a == b for a, b in zip(now, self._named, strict=False))
                at = next((i for i, is_same in enumerate(same) if not is_same), len(now))
                first = min(first, at // self._store_tokens)
        del self._keys[first:], self._named[first * self._store_tokens :]
        self.saved_blocks = min(self.saved_blocks, first) if first < count else self.saved_blocks
        return first == count


def _blocks_in(tables: Tables) -> set[int]:
    return {block for table in tables for block in table} - {SKIPPED}


def _is_session(request: Any) -> bool:
    return bool(getattr(request, "resumable", False))


class Scheduler:
    """`is_loading` and `is_saving`: the operations that the engine's role allows. recorded: for
    this number of requests, all blocks are put, even if they are already stored, because a tap
    needs whole sequences.

    Layer-wise loads run while their step computes. If such a load fails, everything that any
    request computes on its blocks is wrong, and the engine computes it again. Therefore, nothing is
    saved of requests with blocks of a load that has not ended.

    hash_tokens: tokens of vLLM's own hashes; None: those of its blocks. is_media_named: whether
    vLLM names media by their content. weights_stay: called when requests arrive after a `reset`;
    returns whether the engine's weights are known to be those of the space.
    """

    def __init__(
        self,
        lookups: Lookups,
        fingerprint: bytes,
        geometry: Geometry,
        *,
        is_loading: bool = True,
        is_saving: bool = True,
        recorded: int = 0,
        hash_tokens: int | None = None,
        is_media_named: bool = True,
        weights_stay: Callable[[], bool] = lambda: False,
    ) -> None:
        self._lookups, self._fingerprint, self._geometry = lookups, fingerprint, geometry
        self._is_loading, self._is_saving, self._recorded = is_loading, is_saving, recorded
        self._chains: dict[str, _Chain] = {}
        self._planned: list[Load] = []
        self._adapters = Adapters()
        self._hash_tokens = hash_tokens
        self._is_media_named, self._weights_stay = is_media_named, weights_stay
        self._is_media_told = self._is_hint_told = False
        # The weights are unknown: nothing has a name any more.
        self._is_in_doubt = self._is_off = False
        self._on_their_way: dict[str, set[int]] = {}  # by request: the engine's blocks of its load

    # ---------------------------------------------------------------------------- of a request

    def begin(self, request: Any) -> None:
        """Starts the lookup of a new request's blocks at once."""
        chain = self._chain(request)
        self._ask(chain)
        if chain.hint is not None and chain.hint.retain is not None:
            # Before its blocks are put, so that they are retained from the start.
            self._send_hint(chain)

    def answer(self, request: Any, computed_tokens: int) -> int | None:
        """Returns how many tokens after the computed ones can be loaded. None: not known yet."""
        chain = self._chain(request)
        if not self._is_loading or not self._refresh(chain):
            return 0
        if chain.lookup is None:
            self._ask(chain)
        assert chain.lookup is not None
        found = self._lookups.poll(chain.lookup)
        if found is None:
            return None
        usable = self._usable(chain, found.block_count)
        step = self._geometry.engine_tokens
        end = self._end(chain, usable)
        return max(0, end - computed_tokens) // step * step

    def allocated(
        self, request: Any, blocks: Sequence[Sequence[int]], external_tokens: int
    ) -> None:
        """Called when the engine has given blocks of each group to a request. external_tokens are
        to be loaded, or 0."""
        chain = self._chain(request)
        lookup, chain.lookup = chain.lookup, None
        if lookup is None:
            return
        chain.computed_from = None  # it is admitted again, with other blocks
        found = lookup.found
        if found is None or external_tokens == 0:
            if found is not None:
                self._mark_saved(chain, self._usable(chain, found.block_count))
            return self._lookups.drop(lookup)
        self._plan_load(chain, blocks, external_tokens, lookup)

    def _plan_load(
        self, chain: _Chain, blocks: Sequence[Sequence[int]], external_tokens: int, lookup: Lookup
    ) -> None:
        found = lookup.found
        assert found is not None
        geometry = self._geometry
        usable = self._usable(chain, found.block_count)
        end = self._end(chain, usable)
        begin = end - external_tokens
        first = begin // geometry.store_tokens
        count = -(-end // geometry.store_tokens) - first
        # The engine already has the rest of the first and the last store block. It stays unchanged.
        states = geometry.last_states(blocks, end)
        tables = geometry.tables(blocks, first, count, range(begin, end), states)
        self._mark_saved(chain, usable)
        chain.loading = (first, tables)
        chain.lease = found.lease
        self._on_their_way[chain.request.request_id] = _blocks_in(tables)
        keys_wanted = lookup.keys[first : first + count]
        request_id = chain.request.request_id
        is_placed = SKIPPED not in states.values()
        self._planned.append(
            Load(request_id, keys_wanted, tables, found.lease, chain.adapter, is_placed)
        )

    def _end(self, chain: _Chain, usable: int) -> int:
        """Returns the end of the prefix that is loaded, in whole engine blocks. At least one token
        is left to compute. A state exists only at the end of the last block."""
        step = self._geometry.engine_tokens
        limit = (chain.request.num_tokens - 1) // step * step
        end = max(0, usable * self._geometry.store_tokens - self._geometry.lag)
        if end > limit and self._geometry.has_states:
            return 0
        return min(end, limit)

    def end(self, request_id: str) -> None:
        """The request has finished. A running load ends by itself."""
        chain = self._chains.get(request_id)
        if chain is None:
            return
        if chain.lookup is not None:
            self._lookups.drop(chain.lookup)
            chain.lookup = None
        if chain.hint is not None:
            self._send_hint(chain)  # also on generated tokens
        if chain.loading is None:
            del self._chains[request_id]
        else:
            chain.lookup, chain.is_named, chain.is_ended = None, False, True

    # ------------------------------------------------------------------------------- of a step

    def plan(
        self,
        scheduled: dict[str, int],
        blocks_of: Callable[[str], Sequence[Sequence[int]] | None],
        states: Mapping[str, States] | None = None,
    ) -> Plan:
        """scheduled: number of tokens that this step computes, by request. blocks_of: returns a
        request's blocks of each group. states: by request, the blocks that have states after the
        step."""
        plan = Plan(loads=self._planned, is_idle=not any(scheduled.values()))
        self._planned = []
        if self._is_saving and self._lookups.is_open:
            for request_id, tokens in scheduled.items():
                chain = self._chains.get(request_id)
                blocks = blocks_of(request_id)
                if chain is not None and blocks is not None and self._refresh(chain):
                    save = self._save(chain, tokens, blocks, (states or {}).get(request_id, {}))
                    if save is not None:
                        plan.saves.append(save)
        if plan.is_idle:
            self._lookups.yield_to(IDLE_SECONDS)
        return plan

    def _save(
        self, chain: _Chain, tokens: int, blocks: Sequence[Sequence[int]], states: States
    ) -> Save | None:
        request, geometry = chain.request, self._geometry
        computed = request.num_computed_tokens
        if chain.computed_from is None:
            chain.computed_from = computed
        # num_tokens does not include speculative tokens.
        full = geometry.full_blocks(blocks, min(computed + tokens, request.num_tokens))
        first = chain.saved_blocks
        if not self._lookups.is_lossless:
            # A block that was partly loaded or hit may have losses, so it is not put again.
            first = max(first, -(-chain.computed_from // geometry.store_tokens))
        if full <= first:
            return None
        if any(
            not loads.isdisjoint(table) for loads in self._on_their_way.values() for table in blocks
        ):
            return None  # saved in a later step
        chain.saved_blocks = full
        wanted = chain.keys(full, self._fingerprint)
        is_derived = not self._lookups.is_lossless and chain.computed_from > 0
        return Save(
            wanted[first:],
            geometry.tables(
                blocks, first, full - first, range(full * geometry.store_tokens), states
            ),
            wanted[first - 1] if first else None,
            first * geometry.store_tokens,
            is_derived,
            chain.adapter,
            chain.names(first, full - first, self._hash_tokens or geometry.engine_tokens),
        )

    def loaded(
        self,
        finished: Iterable[str],
        failed_blocks: Iterable[int],
        failed_requests: Iterable[str] = (),
    ) -> None:
        """Workers have ended the loads of `finished`. failed_blocks: the engine's blocks that
        failed, of any load. failed_requests: requests whose loads failed; the engine computes them
        from the start (`Model.is_all_or_nothing`)."""
        failed = set(failed_blocks)
        for request_id in failed_requests:
            if request_id in self._chains:
                self._chains[request_id].usable_blocks = 0
                self._chains[request_id].saved_blocks = 0
        if failed:
            for chain in self._chains.values():
                self._mark_failed(chain, failed)
        for request_id in finished:
            self._on_their_way.pop(request_id, None)
            chain = self._chains.get(request_id)
            if chain is None or chain.loading is None:
                continue
            chain.loading = None
            lease, chain.lease = chain.lease, None
            self._lookups.release(lease)
            if chain.is_ended:
                self._chains.pop(request_id, None)

    def _mark_failed(self, chain: _Chain, failed: set[int]) -> None:
        """Remembers the failed blocks, because otherwise the scheduler would look them up forever.
        They are computed now and may then be saved."""
        if chain.loading is None:
            return
        first, (table, *_) = chain.loading  # there is one group (`Model.is_all_or_nothing`)
        places = [i for i, block in enumerate(table) if block != SKIPPED and block in failed]
        if places:
            block = first + places[0] // self._geometry.ratio
            chain.usable_blocks = self._usable(chain, block)
            chain.computed_from = None
            chain.saved_blocks = min(chain.saved_blocks, chain.usable_blocks)

    def adapters_loaded(self, loaded: dict[int, str | None]) -> None:
        """Records the adapters that workers have loaded, by number."""
        self._adapters.take(loaded)

    def stop(self) -> None:
        """The engine has other weights than those of the space."""
        self._is_off = True
        self._end_all()

    @property
    def is_off(self) -> bool:
        """Returns whether the weights are not known to be those of the space."""
        return self._is_off or self._is_in_doubt

    def go_on(self) -> None:
        """The engine's weights are known again. `move` then gives the space of their blocks."""
        self._is_off = self._is_in_doubt = False

    def reset(self) -> None:
        """The engine drops its cache and may get other weights. Unless the weights are known to
        stay, nothing is looked up or saved any more."""
        self._is_in_doubt = True
        self._end_all()

    def move(self, fingerprint: bytes, geometry: Geometry) -> None:
        """Changes to another space. Existing requests have keys of the old space, so nothing of
        them is saved."""
        self._fingerprint, self._geometry = fingerprint, geometry
        self._end_all()

    def close(self) -> None:
        self._lookups.close()

    # -------------------------------------------------------------------------------- the rest

    def _end_all(self) -> None:
        for chain in list(self._chains.values()):
            chain.hint = None  # its keys may belong to another space
            self.end(chain.request.request_id)

    def _chain(self, request: Any) -> _Chain:
        chain = self._chains.get(request.request_id)
        if chain is None:
            chain = self._chains[request.request_id] = self._new_chain(request)
        return chain

    def _new_chain(self, request: Any) -> _Chain:
        if self._is_in_doubt:
            self._is_in_doubt = False
            self._is_off = self._is_off or not self._weights_stay()
        fixed, adapter, is_named = [], None, not self._is_off
        lora = getattr(request, "lora_request", None)
        if lora is not None and is_named:
            adapter = self._adapters.find(lora)
            is_named = adapter is not None
            if adapter is not None:
                fixed.append(keys.KeyExtra("lora", self._adapters.value_of(lora, adapter)))
        if getattr(request, "cache_salt", None):
            fixed.append(keys.KeyExtra("salt", request.cache_salt.encode()))
        chain = _Chain(request, self._geometry.store_tokens, adapter, fixed)
        chain.is_named = chain.is_named and is_named
        try:
            chain.hint = hint_of(request)
        except ValueError as error:
            if not self._is_hint_told:
                self._is_hint_told = True
                log.warning("cairn: the hint of a request is ignored: %s", error)
        return chain

    def _send_hint(self, chain: _Chain) -> None:
        if chain.hint is None or not self._refresh(chain):
            return
        full = chain.request.num_tokens // self._geometry.store_tokens
        self._lookups.hint(list(chain.keys(full, self._fingerprint)), chain.hint)

    def _refresh(self, chain: _Chain) -> bool:
        """Updates the names of a request's blocks from its current tokens and media. Returns
        whether it has names."""
        if not chain.is_named:
            return False
        if not chain.refresh(self._is_media_named) and chain.lookup is not None:
            self._lookups.drop(chain.lookup)
            chain.lookup = None
        if not chain.is_named and not self._is_media_told:
            self._is_media_told = True
            log.warning(
                "cairn: nothing is cached of requests with media that vLLM does not name by their"
                " content: those with multi_modal_uuids, and all where prefix caching is off and"
                " --mm-processor-cache-gb is 0"
            )
        return chain.is_named

    def _usable(self, chain: _Chain, block_count: int) -> int:
        return block_count if chain.usable_blocks is None else min(block_count, chain.usable_blocks)

    def _mark_saved(self, chain: _Chain, block_count: int) -> None:
        if self._recorded and not chain.saved_blocks:
            self._recorded -= 1
            return
        chain.saved_blocks = max(chain.saved_blocks, block_count)

    def _ask(self, chain: _Chain) -> None:
        if not self._is_loading or not self._refresh(chain) or chain.lookup is not None:
            return
        # The last token is always computed. A block that ends with it is loaded for its earlier
        # tokens.
        store_tokens = self._geometry.store_tokens
        left = 1 if self._geometry.has_states else 0  # a part of a block is useless then
        full = self._usable(chain, (chain.request.num_tokens - left) // store_tokens)
        wanted = chain.keys(full, self._fingerprint)
        chain.lookup = self._lookups.ask(wanted)
