# SPDX-License-Identifier: Apache-2.0
"""One recipe on one dump: its size, its errors and its speed, on the codec alone. Needs numpy."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from . import image
from ._dump import Dump, Kv, as_float
from ._judge import Verdict
from .errors import InvalidArgumentError

TOKENS_PER_BLOCK = 128
SOURCE_BYTES_MAX = 48 << 20  # in one image, which has at most 64 MiB
SAMPLES_MIN = 5  # of a rate; where there are fewer blocks they are coded again
# Shares of the bar: coding, comparing, and where there is a judge its own, 0.7 of all.
CODING_SHARE, JUDGE_SHARE = 0.5, 0.7

Progress = Callable[[float, str], None]  # share done, what is being done


@dataclass(frozen=True)
class Evaluation:
    """One recipe on one dump. Errors are relative: the root of the summed squared error over that
    of the summed squares; by layer in the order of `layers`. attention_error is of what attention
    returns to the dumped queries; None without them, and for layers without. What a judge said is
    None without one. Rates are bytes in source form a second of the median block, one core; decode
    includes checking every checksum."""

    recipe: str
    bits: float  # per element of K and V: whole images, headers and directories
    ratio: float
    k_error: float
    v_error: float
    layers: list[int]
    k_error_by_layer: list[float]
    v_error_by_layer: list[float]
    attention_error_by_layer: list[float | None]
    encode_rate: float
    decode_rate: float
    attention_error: float | None = None
    kl: float | None = None  # KL(exact || coded) of the next token, nats, mean over positions
    kl_error: float | None = None  # its standard error
    kl_trimmed: float | None = None  # without the 5 % largest and the 5 % smallest
    perplexity_ratio: float | None = None  # behind the coded KV over behind the exact one
    same_top: float | None = None  # share of positions at which the likeliest token is the same

    @property
    def kv_error(self) -> float:
        """The larger one."""
        return max(self.k_error, self.v_error)


def measure(
    dump: Dump,
    recipe: str,
    verdict: Verdict | None = None,
    progress: Progress = lambda share, what: None,
) -> Evaluation:
    """Codes a dump with one recipe, in full blocks of 128 tokens; tokens after the last full one
    are left out. Takes as much memory as K and V have."""
    block_count = dump.token_count // TOKENS_PER_BLOCK
    if not block_count:
        raise InvalidArgumentError(f"{dump.token_count} tokens are no block of {TOKENS_PER_BLOCK}")
    exact = dump.first_tokens(block_count * TOKENS_PER_BLOCK)
    codec = _Codec(exact, _parts(dump), recipe)
    share = 1.0 if verdict is None else 1.0 - JUDGE_SHARE
    for block in range(block_count):
        codec.code(block)
        progress(share * CODING_SHARE * (block + 1) / block_count, "coding")
    errors = _Errors(dump, exact, codec.coded)
    layers = sorted(exact.k)
    for index, layer in enumerate(layers):
        errors.add(layer)
        done = CODING_SHARE + (1 - CODING_SHARE) * (index + 1) / len(layers)
        progress(share * done, "comparing")
    judged = {}
    if verdict is not None:
        progress(share, "asking the judge")
        scores = verdict.score(exact, codec.coded)
        names = ("kl", "kl_error", "kl_trimmed", "perplexity_ratio", "same_top")
        judged = {name: getattr(scores, name) for name in names}
    progress(1.0, "done")
    return Evaluation(recipe=recipe, layers=layers, **codec.figures(), **errors.figures(), **judged)


def _parts(dump: Dump) -> list[list[int]]:
    """Layers that share an image: those of one geometry, as many as an image can hold."""
    found = []
    for layers in dump.groups():
        kv = dump.k[layers[0]], dump.v[layers[0]]
        layer_bytes = sum(x[:, :TOKENS_PER_BLOCK].nbytes for x in kv)
        count = max(1, SOURCE_BYTES_MAX // layer_bytes)
        found += [layers[i : i + count] for i in range(0, len(layers), count)]
    return found


class _Codec:
    """Encodes and decodes block after block; `coded` is what comes back."""

    def __init__(self, exact: Kv, groups: list[list[int]], recipe: str) -> None:
        self._exact, self._groups, self._recipe = exact, groups, recipe
        k = {layer: np.empty_like(plane) for layer, plane in exact.k.items()}
        v = {layer: np.empty_like(plane) for layer, plane in exact.v.items()}
        self.coded = Kv(exact.dtype, k, v)
        self._image_bytes = 0
        self._source_bytes = 0
        self._rates: dict[str, list[float]] = {"encode": [], "decode": []}
        self._targets: list[bytearray] = []
        self._decoded: list[np.ndarray] = []
        self._samples = 1

    def code(self, block: int) -> None:
        if not block:
            self._warm_up()
        for index, layers in enumerate(self._groups):
            spec, source = self._source_of(layers, block)
            for _ in range(self._samples):
                begin = time.perf_counter()
                encoded = image.encode(spec, source=source, target=self._targets[index])
                self._rates["encode"].append(source.nbytes / (time.perf_counter() - begin))
                begin = time.perf_counter()
                image.decode(encoded, source=self._decoded[index])
                self._rates["decode"].append(source.nbytes / (time.perf_counter() - begin))
            self._image_bytes += len(encoded)
            self._source_bytes += source.nbytes
            self._keep(layers, block, spec, self._decoded[index])

    def _warm_up(self) -> None:
        """Pages in the memory of images, loads the library."""
        block_count = self._exact.token_count // TOKENS_PER_BLOCK
        self._samples = -(-SAMPLES_MIN // (block_count * len(self._groups)))
        for layers in self._groups:
            spec, source = self._source_of(layers, 0)
            self._targets.append(bytearray(image.bytes_max(spec)))
            self._decoded.append(np.empty_like(source))
            encoded = image.encode(spec, source=source, target=self._targets[-1])
            image.decode(encoded, source=self._decoded[-1])

    def _source_of(self, layers: list[int], block: int) -> tuple[image.ImageSpec, np.ndarray]:
        """A copy of one block of one group as source payload: [layers, heads, K then V]."""
        cut = np.s_[:, block * TOKENS_PER_BLOCK : (block + 1) * TOKENS_PER_BLOCK]
        k, v = (np.stack([p[i][cut] for i in layers]) for p in (self._exact.k, self._exact.v))
        spec = image.ImageSpec(
            self._recipe,
            len(layers),
            k.shape[1],
            TOKENS_PER_BLOCK,
            k.shape[3],
            v.shape[3],
            self._exact.dtype,
            first_position=block * TOKENS_PER_BLOCK,
        )
        flat = [plane.reshape(*plane.shape[:2], -1) for plane in (k, v)]
        return spec, np.concatenate(flat, axis=2)

    def _keep(
        self, layers: list[int], block: int, spec: image.ImageSpec, decoded: np.ndarray
    ) -> None:
        cut = np.s_[:, block * TOKENS_PER_BLOCK : (block + 1) * TOKENS_PER_BLOCK]
        k, v = np.split(decoded, [spec.tokens * spec.k_dim], axis=2)
        shape = (spec.heads, spec.tokens, -1)
        for place, layer in enumerate(layers):
            self.coded.k[layer][cut] = k[place].reshape(shape)
            self.coded.v[layer][cut] = v[place].reshape(shape)

    def figures(self) -> dict[str, float]:
        item_bytes = next(iter(self.coded.k.values())).itemsize
        rates = {f"{step}_rate": float(np.median(found)) for step, found in self._rates.items()}
        return rates | {
            "bits": 8 * item_bytes * self._image_bytes / self._source_bytes,
            "ratio": self._source_bytes / self._image_bytes,
        }


class _Errors:
    """Of K, of V and of attention, layer by layer."""

    def __init__(self, dump: Dump, exact: Kv, coded: Kv) -> None:
        self._dump, self._exact, self._coded = dump, exact, coded
        self._k, self._v, self._attention = RelativeError(), RelativeError(), RelativeError()
        self._attention_by_layer: list[float | None] = []

    def add(self, layer: int) -> None:
        both = [[as_float(plane[layer]) for plane in (kv.k, kv.v)] for kv in self._kv]
        (k, v), (coded_k, coded_v) = both
        self._k.add(k, coded_k)
        self._v.add(v, coded_v)
        queries = self._dump.q.get(layer)
        if queries is None:
            self._attention_by_layer.append(None)
            return
        q, window = as_float(queries), self._dump.windows.get(layer, 0)
        first = self._dump.token_count - q.shape[1]
        self._attention.add(*(attention_output(q, first, *kv, window) for kv in both))
        self._attention_by_layer.append(self._attention.parts[-1])

    @property
    def _kv(self) -> tuple[Kv, Kv]:
        return self._exact, self._coded

    def figures(self) -> dict:
        return {
            "k_error": self._k.whole,
            "v_error": self._v.whole,
            "attention_error": self._attention.whole if self._dump.q else None,
            "k_error_by_layer": self._k.parts,
            "v_error_by_layer": self._v.parts,
            "attention_error_by_layer": self._attention_by_layer,
        }


class RelativeError:
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


def attention_output(
    q: np.ndarray, first: int, k: np.ndarray, v: np.ndarray, window: int = 0
) -> np.ndarray:
    """Causal attention of q [query heads, n, dim], tokens first, first + 1, …, over k and v. A
    query sees itself and the window - 1 tokens before it, or all of them where window is 0; one
    past the last token of k sees what that sees."""
    shared = len(q) // len(k)
    places = np.minimum(np.arange(first, first + q.shape[1]), k.shape[1] - 1)
    behind = places[:, None] - np.arange(k.shape[1])[None]
    unseen = behind < 0
    if window:
        unseen |= behind >= window
    out = np.empty((*q.shape[:2], v.shape[2]), np.float32)
    with np.errstate(over="ignore", invalid="ignore"):  # of values that are not finite
        for head, query in enumerate(q):
            score = query @ k[head // shared].T * np.float32(k.shape[2] ** -0.5)
            score[unseen] = -np.inf
            score = np.exp(score - score.max(-1, keepdims=True))
            out[head] = score @ v[head // shared] / score.sum(-1, keepdims=True)
    return out


def copy_rate(dump: Dump) -> float:
    """Bytes a second of a plain copy of a block of the first group: what a rate is held against."""
    layers, token_count = dump.groups()[0], min(TOKENS_PER_BLOCK, dump.token_count)
    source = np.stack([dump.k[i][:, :token_count] for i in layers])
    target, found = np.empty_like(source), []
    for _ in range(2 * SAMPLES_MIN):
        begin = time.perf_counter()
        np.copyto(target, source)
        found.append(source.nbytes / (time.perf_counter() - begin))
    return float(np.median(found))
