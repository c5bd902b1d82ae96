# SPDX-License-Identifier: Apache-2.0
"""Which recipe fits a model? Codes its KV with each, and says what that costs and what it saves.

    python -m cairn.evaluate DUMP --control 127.0.0.1:50151 --out report

DUMP is a folder of safetensors or npy files with tensors `k` and `v`, [layers, heads, tokens, dim],
or `k.0`, `v.0`, … by layer, [heads, tokens, dim]; and `q` or `q.0`, …, queries of the last tokens,
if there are any. K and queries are after RoPE; bf16 in npy files is its bits as uint16.

The daemon at --control encodes; its other blocks are left alone. Prints a table and writes
evaluate.json and evaluate.html, one page that opens anywhere. What evaluate.json already has for
this dump is not measured again. Needs numpy, unlike the rest of the package.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import secrets
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

if __name__ == "__main__":  # small products: threads that wait for each other are slower than one
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

from . import image
from ._dump import Dump, as_float, read_dump
from ._evaluate_page import make_page
from .client import Client, connect
from .errors import Error, InvalidArgumentError
from .keys import KvGroup
from .space import Space
from .transfer import Part

RECIPES = ("raw", "kivi:8", "kivi:4", "kivi:4+", "kivi:2", "kivi:2+")
TOKENS_PER_BLOCK = 128
CALL_SECONDS = 60.0


@dataclass(frozen=True)
class Evaluation:
    """One recipe on one dump. Errors are relative: the root of the summed squared error over that
    of the summed squares; by layer in the order of `layers`. attention_error is of what attention
    returns to the dumped queries, None without them. Rates are bytes in source form a second, of
    one caller: put and get include the transport, decode is one core's, checksums verified."""

    recipe: str
    bits: float  # per element of K and V: whole images, headers and directories
    ratio: float
    k_error: float
    v_error: float
    attention_error: float | None
    layers: list[int]
    k_error_by_layer: list[float]
    v_error_by_layer: list[float]
    put_rate: float
    get_rate: float
    decode_rate: float

    @property
    def loss(self) -> float:
        """What `recommend` compares: attention_error, or the larger of the other two."""
        if self.attention_error is not None:
            return self.attention_error
        return max(self.k_error, self.v_error)


def evaluate(
    client: Client, dump: Dump, recipe: str, progress: Callable[[float], None] = lambda share: None
) -> Evaluation:
    """Codes a dump with one recipe, in full blocks of 128 tokens; tokens after the last full one
    are left out."""
    block_count = dump.token_count // TOKENS_PER_BLOCK
    if not block_count:
        raise InvalidArgumentError(f"{dump.token_count} tokens are no block of {TOKENS_PER_BLOCK}")
    groups = dump.groups()
    run = _Run(dump, block_count)
    specs = []
    for layers in groups:
        heads, _, dim = dump.k[layers[0]].shape
        specs.append(KvGroup(layers, heads, dim, v_dim=dump.v[layers[0]].shape[2]))
    with client.open_space(
        f"cairn.evaluate {secrets.token_hex(8)}",  # whatever is there is not touched
        weights_revision=recipe,
        groups=specs,
        dtype=dump.dtype,
        tokens_per_block=TOKENS_PER_BLOCK,
        recipe=recipe,
    ) as space:
        if space.recipe != recipe:
            raise InvalidArgumentError(f"{recipe} was asked for, the space has {space.recipe}")
        try:
            for block in range(block_count):
                for index, layers in enumerate(groups):
                    run.code(space, block, index, layers)
                progress((block + 1) / block_count)
        finally:
            space.invalidate()
    return run.finish(recipe)


def recommend(found: Sequence[Evaluation], loss_max: float) -> Evaluation | None:
    """The one of fewest bits whose loss is at most that, or None."""
    good = [one for one in found if one.loss <= loss_max]
    return min(good, key=lambda one: (one.bits, one.loss), default=None)


class _Run:
    """Decoded planes, bytes and seconds of one recipe as they add up."""

    def __init__(self, dump: Dump, block_count: int) -> None:
        self._dump = dump
        self._tokens = block_count * TOKENS_PER_BLOCK
        self._k = {i: np.empty_like(k[:, : self._tokens]) for i, k in dump.k.items()}
        self._v = {i: np.empty_like(v[:, : self._tokens]) for i, v in dump.v.items()}
        self._image_bytes = 0
        self._seconds = {"put": 0.0, "get": 0.0, "decode": 0.0}

    def code(self, space: Space, block: int, group: int, layers: list[int]) -> None:
        """Puts one block of one group, gets it back as an image and decodes that."""
        key = space.opaque_key(f"{block}".encode())
        part = Part(group=group)
        first = block * TOKENS_PER_BLOCK
        cut = np.s_[:, first : first + TOKENS_PER_BLOCK]
        planes = (self._dump.k, self._dump.v)
        source = [np.stack([plane[i][cut] for i in layers]) for plane in planes]
        begin = time.perf_counter()
        stored = space.put(key, *source, first_position=first, part=part, timeout=CALL_SECONDS)
        self._seconds["put"] += time.perf_counter() - begin
        self._image_bytes += stored.image_bytes
        encoded = bytearray(space.image_bytes_max(part))
        begin = time.perf_counter()
        got = space.get(key, image=encoded, part=part, timeout=CALL_SECONDS)
        self._seconds["get"] += time.perf_counter() - begin
        if not got:
            raise InvalidArgumentError(f"block {block} is gone: does the daemon have room for it?")
        k, v = (np.empty_like(plane) for plane in source)
        begin = time.perf_counter()
        image.decode(memoryview(encoded)[: got.target_bytes], k, v)
        self._seconds["decode"] += time.perf_counter() - begin
        for place, layer in enumerate(layers):
            self._k[layer][cut], self._v[layer][cut] = k[place], v[place]

    def finish(self, recipe: str) -> Evaluation:
        layers = sorted(self._k)
        k, v, attention = _Error(), _Error(), _Error()
        for layer in layers:
            exact = [as_float(x[layer][:, : self._tokens]) for x in (self._dump.k, self._dump.v)]
            coded = [as_float(self._k[layer]), as_float(self._v[layer])]
            k.add(exact[0], coded[0])
            v.add(exact[1], coded[1])
            if layer in self._dump.q:
                # Queries of tokens past the last full block see the whole prefix, like its last.
                q = as_float(self._dump.q[layer])
                first = self._dump.token_count - q.shape[1]
                attention.add(*(attention_output(q, first, *kv) for kv in (exact, coded)))
        elements = sum(x.size for plane in (self._k, self._v) for x in plane.values())
        source_bytes = elements * next(iter(self._k.values())).itemsize
        return Evaluation(
            recipe=recipe,
            bits=8 * self._image_bytes / elements,
            ratio=source_bytes / self._image_bytes,
            k_error=k.whole,
            v_error=v.whole,
            attention_error=attention.whole if self._dump.q else None,
            layers=layers,
            k_error_by_layer=k.parts,
            v_error_by_layer=v.parts,
            **{f"{step}_rate": source_bytes / taken for step, taken in self._seconds.items()},
        )


class _Error:
    """Relative errors of parts and of the whole. Values that are not finite count where the coded
    ones differ from them, as an error of the exact values' size."""

    def __init__(self) -> None:
        self._sums: list[tuple[float, float]] = []

    def add(self, exact: np.ndarray, coded: np.ndarray) -> None:
        finite = np.isfinite(exact)
        difference = np.where(finite, coded, 0) - np.where(finite, exact, 0)
        size = float(np.square(np.where(finite, exact, 0), dtype=np.float64).sum())
        lost = ~finite & ~((coded == exact) | (np.isnan(exact) & np.isnan(coded)))
        error = float(np.square(difference, dtype=np.float64).sum())
        self._sums.append((error + (size if lost.any() else 0.0), size))

    @staticmethod
    def _ratio(error: float, size: float) -> float:
        return (error / size) ** 0.5 if size else (0.0 if error == 0 else float("inf"))

    @property
    def parts(self) -> list[float]:
        return [self._ratio(*sums) for sums in self._sums]

    @property
    def whole(self) -> float:
        return self._ratio(*(sum(x) for x in zip(*self._sums, strict=True)))


def attention_output(q: np.ndarray, first: int, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Causal attention of q [query heads, n, dim], tokens first, first + 1, …, over k and v."""
    shared = len(q) // len(k)
    unseen = np.arange(k.shape[1])[None] > np.arange(first, first + q.shape[1])[:, None]
    out = np.empty((*q.shape[:2], v.shape[2]), np.float32)
    for head, query in enumerate(q):
        score = query @ k[head // shared].T * np.float32(k.shape[2] ** -0.5)
        score[unseen] = -np.inf
        score = np.exp(score - score.max(-1, keepdims=True))
        out[head] = score @ v[head // shared] / score.sum(-1, keepdims=True)
    return out


def _read_kept(path: pathlib.Path, dump: Dump) -> list[Evaluation]:
    if not path.exists():
        return []
    kept = json.loads(path.read_text(encoding="utf-8"))
    if kept.get("dump") != dump.fingerprint:
        return []
    return [Evaluation(**row) for row in kept["evaluations"]]


def make_table(found: Sequence[Evaluation]) -> str:
    lines = [
        f"{'recipe':12}{'bits':>8}{'ratio':>7}{'K error':>9}{'V error':>9}{'attention':>11}"
        f"{'put':>8}{'get':>8}{'decode':>8}  GB/s"
    ]
    for one in found:
        attention = "-" if one.attention_error is None else f"{one.attention_error:.4f}"
        rates = "".join(f"{x / 1e9:8.2f}" for x in (one.put_rate, one.get_rate, one.decode_rate))
        lines.append(
            f"{one.recipe:12}{one.bits:8.3f}{one.ratio:7.2f}{one.k_error:9.4f}{one.v_error:9.4f}"
            f"{attention:>11}{rates}"
        )
    return "\n".join(lines)


def _show_bar(recipe: str, share: float) -> None:
    if sys.stderr.isatty():
        filled = int(30 * share)
        end = "\n" if share >= 1 else ""
        bar = "#" * filled + "." * (30 - filled)
        print(f"\r{recipe:12} [{bar}] {share:4.0%}", end=end, file=sys.stderr, flush=True)


def _parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m cairn.evaluate",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("dump", type=pathlib.Path, help="folder of safetensors or npy files")
    parser.add_argument("--control", required=True, help="HOST:PORT of the daemon")
    parser.add_argument("--data", help="unix:PATH or HOST:PORT of its data plane")
    parser.add_argument("--recipes", default=",".join(RECIPES))
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("."))
    parser.add_argument("--loss", type=float, default=0.1, help="of the recipe to recommend (0.1)")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    wanted = _parse_arguments(arguments)
    wanted.out.mkdir(parents=True, exist_ok=True)
    path = wanted.out / "evaluate.json"
    try:
        dump = read_dump(wanted.dump)
        found = {one.recipe: one for one in _read_kept(path, dump)}
        with connect(wanted.control, data=wanted.data, tenant="evaluate") as client:
            for recipe in wanted.recipes.split(","):
                if recipe in found:
                    continue
                found[recipe] = evaluate(client, dump, recipe, lambda x, r=recipe: _show_bar(r, x))
                rows = [asdict(one) for one in found.values()]
                kept = {"dump": dump.fingerprint, "evaluations": rows}
                path.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    except (Error, OSError) as error:
        print(f"evaluate: {error}", file=sys.stderr)
        return 1
    ordered = sorted(found.values(), key=lambda one: -one.bits)
    best = recommend(ordered, wanted.loss)
    page = make_page(ordered, best, wanted.loss, f"{wanted.dump.name}: {dump.token_count} tokens")
    (wanted.out / "evaluate.html").write_text(page, encoding="utf-8")
    print(make_table(ordered))
    if best is None:
        print(f"\nno recipe has a loss of at most {wanted.loss}")
    else:
        print(f"\nfor a loss of at most {wanted.loss}: {best.recipe}, {best.bits:.2f} bits")
    print(f"{path}\n{wanted.out / 'evaluate.html'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
