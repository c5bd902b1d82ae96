# SPDX-License-Identifier: Apache-2.0
"""What a scheduler decides: which blocks a request loads, and which of its blocks are saved.

Knows nothing of vLLM but the attributes of its requests that `_Chain` and `Scheduler` read:
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

IDLE_SECONDS = 0.002  # that a step without work leaves to a lookup


class _Chain:
    """A request's keys, derived once, and what was decided for it.

    A session (`resumable`) is one request whose last token may be taken back, and which gets more
    tokens and media as it goes on: `refresh` forgets the keys of blocks that have changed."""

    def __init__(
        self, request: Any, store_tokens: int, adapter: Adapter | None, fixed: list[keys.KeyExtra]
    ) -> None:
        self.request, self.adapter = request, adapter
        self.is_named = getattr(request, "prompt_embeds", None) is None  # by its tokens
        self.is_ended = False
        self.hint: Hint | None = None
        self._store_tokens = store_tokens
        self._fixed = fixed  # what all of its KV depends on
        self._media: dict[int, list[keys.KeyExtra]] = {}  # by the block in which they begin
        self._media_count = 0  # that are in _media
        self._keys: list[bytes] = []
        self._named: list[int] = []  # of a session, the tokens that have keys
        self.lookup: Lookup | None = None
        self.lease: bytes | None = None  # of the blocks being loaded
        self.loading: tuple[int, Tables] | None = None  # first store block, the engine's blocks
        self.usable_blocks: int | None = None  # before the first that failed to load
        self.saved_blocks = 0  # of the store, from the chain's begin on
        self.computed_from: int | None = None  # tokens before it were not computed by this request

    def keys(self, count: int, space: bytes) -> list[bytes]:
        """The first `count`, which have all of their tokens."""
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
        """vLLM's own names of `count` blocks from `first` on, for events. Its hashes are of
        hash_tokens each, and include all tokens before: that of a block of the store is the one at
        its end. Empty: vLLM makes none, as prefix caching is off."""
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
        """False: some blocks are not what they were, and their keys are forgotten."""
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
    """`is_loading` and `is_saving`: what the engine's role lets it. recorded: of so many requests
    all blocks are put, those too that are there already, as a tap wants whole sequences.

    Loads may go on while their step computes, as layer-wise ones do. What is computed on a block
    whose load failed is wrong, of whatever request, and the engine computes it again: until a load
    is known to have ended, nothing is saved of requests that have a block of it.

    hash_tokens: of vLLM's own hashes; None: of its blocks. is_media_named: whether vLLM names media
    by their content. weights_stay: asked when requests come
    after a `reset`: whether the engine's weights are known to be those that the space names."""

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
        self._is_in_doubt = self._is_off = False  # of the weights; nothing has a name any more
        self._on_their_way: dict[str, set[int]] = {}  # by request, the engine's blocks of its load

    # ---------------------------------------------------------------------------- of a request

    def begin(self, request: Any) -> None:
        """A request has come: what there is of it is asked for at once."""
        chain = self._chain(request)
        self._ask(chain)
        if chain.hint is not None and chain.hint.retain is not None:
            self._send_hint(chain)  # before its blocks are put: they are retained from then on

    def answer(self, request: Any, computed_tokens: int) -> int | None:
        """How many tokens after the computed ones can be loaded; None: not known yet."""
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
        """The engine gave blocks of each group to a request, of which external_tokens are to be
        loaded, or 0."""
        chain = self._chain(request)
        lookup, chain.lookup = chain.lookup, None
        if lookup is None:
            return
        chain.computed_from = None  # it is admitted anew, with other blocks than before
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
        # What the engine has of the first and the last block of the store stays as it is.
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
        """Of the prefix that is loaded, if so many blocks are there. At least one token is left to
        compute, and vLLM counts in its own blocks. Of states there is one at the last block's end,
        and none before."""
        step = self._geometry.engine_tokens
        limit = (chain.request.num_tokens - 1) // step * step
        end = max(0, usable * self._geometry.store_tokens - self._geometry.lag)
        if end > limit and self._geometry.has_states:
            return 0
        return min(end, limit)

    def end(self, request_id: str) -> None:
        """The request is finished. A load that is still at work ends by itself."""
        chain = self._chains.get(request_id)
        if chain is None:
            return
        if chain.lookup is not None:
            self._lookups.drop(chain.lookup)
            chain.lookup = None
        if chain.hint is not None:
            self._send_hint(chain)  # of what was generated, too
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
        """scheduled: how many tokens of a request this step computes. blocks_of: its blocks, of
        each group. states: of requests the blocks that have states when the step is over."""
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
        # Tokens that are only guessed are not in num_tokens.
        full = geometry.full_blocks(blocks, min(computed + tokens, request.num_tokens))
        first = chain.saved_blocks
        if not self._lookups.is_lossless:
            # A block of which some was loaded, or hit, may have losses: it is not put back.
            first = max(first, -(-chain.computed_from // geometry.store_tokens))
        if full <= first:
            return None
        if any(
            not loads.isdisjoint(table) for loads in self._on_their_way.values() for table in blocks
        ):
            return None  # in a later step
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
        """Workers have ended the loads of `finished`. failed_blocks: the engine's, of any load.
        failed_requests: whose loads failed, and which the engine computes as if there had been none
        (`Model.is_all_or_nothing`)."""
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
        """Remembers what failed: or else the scheduler asks for it for ever. It is computed now, and
        may be saved then."""
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
        """What workers have loaded of adapters, by their numbers."""
        self._adapters.take(loaded)

    def stop(self) -> None:
        """The engine has other weights than the space names."""
        self._is_off = True
        self._end_all()

    @property
    def is_off(self) -> bool:
        """Whether the weights are not known to be those that the space names."""
        return self._is_off or self._is_in_doubt

    def go_on(self) -> None:
        """The engine's weights are known again: `move` says in which space their blocks are."""
        self._is_off = self._is_in_doubt = False

    def reset(self) -> None:
        """The engine forgets what is cached: its weights may be others from now on. Unless they are
        known to stay, nothing is looked up or saved any more."""
        self._is_in_doubt = True
        self._end_all()

    def move(self, fingerprint: bytes, geometry: Geometry) -> None:
        """The space is another one. Requests that have come have keys of the space before: nothing of
        them is saved."""
        self._fingerprint, self._geometry = fingerprint, geometry
        self._end_all()

    def close(self) -> None:
        self._lookups.close()

    # -------------------------------------------------------------------------------- the rest

    def _end_all(self) -> None:
        for chain in list(self._chains.values()):
            chain.hint = None  # its keys may be of another space
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
        """Whether the request has names, which are those of its tokens and media as they stand."""
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
        # The last token is always computed: a block that ends with it is loaded for what is before.
        store_tokens = self._geometry.store_tokens
        left = 1 if self._geometry.has_states else 0  # then a part of a block is of no use
        full = self._usable(chain, (chain.request.num_tokens - left) // store_tokens)
        wanted = chain.keys(full, self._fingerprint)
        chain.lookup = self._lookups.ask(wanted)
