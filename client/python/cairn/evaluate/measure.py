# SPDX-License-Identifier: Apache-2.0
"""Measures one recipe on one dump, with the codec alone: size, errors and speed. Needs numpy."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from .._profile import Rotation
from ..profile import turn
from .code import TOKENS_PER_BLOCK, Group, Inputs, block_count_of, code
from .dump import Dump, Kv, as_float
from .judge import Verdict

# Shares of the progress bar: the judge, if there is one, then coding. Comparing has the rest,
# except for the last step.
JUDGE_SHARE, CODING_SHARE, LAST_SHARE = 0.7, 0.5, 0.01
COPY_SAMPLES = 10
# A judge's figures with their standard errors, and the number of standard errors in a limit.
MARGINS = {"kl": "kl_error", "perplexity_ratio": "perplexity_error"}
MARGIN = 2.0

Progress = Callable[[float, str], None]  # share done, what is being done


@dataclass(frozen=True)
class Evaluation:
    """One recipe on one dump. Errors are relative: the square root of the summed squared error over
    the summed squares, by layer in the order of `layers`. Errors of K are relative to the means of
    its channels (RelativeError.add_k). attention_error is the error of attention outputs for the
    dumped queries; None without queries. A judge's figures are None without a judge. Rates are
    bytes in source form per second for the median block on one core; decoding includes all
    checksums. Bits and errors cover tokens that no profile was made from; the judge continues after
    all tokens."""

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
    perplexity_ratio: float | None = None  # after the coded KV over after the exact KV
    perplexity_error: float | None = None  # its standard error
    same_top: float | None = None  # share of positions with the same most likely token
    profile: str | None = None  # the kind of profile: plain, basis

    @property
    def name(self) -> str:
        return self.recipe if self.profile is None else f"{self.recipe}/{self.profile}"

    @property
    def kv_error(self) -> float:
        """Returns the larger error."""
        return max(self.k_error, self.v_error)

    @property
    def kv_error_by_layer(self) -> list[float]:
        return list(map(max, self.k_error_by_layer, self.v_error_by_layer))

    def worst(self, figure: str) -> tuple[float, int] | None:
        """Returns the largest error of a layer, and the layer; None if no layer has one."""
        errors = zip(getattr(self, f"{figure}_by_layer"), self.layers, strict=True)
        known = [(error, layer) for error, layer in errors if error is not None]
        return max(known, key=lambda pair: pair[0], default=None)

    def bound(self, figure: str) -> float | None:
        """Returns the value that is compared with a limit: a judge's figure with two standard
        errors, or the error of the worst layer. One bad layer can spoil a model's predictions
        without showing in the error of all layers."""
        if figure in MARGINS:
            value, error = getattr(self, figure), getattr(self, MARGINS[figure])
            return None if value is None else value + MARGIN * error
        worst = self.worst(figure)
        return None if worst is None else max(worst[0], getattr(self, figure))


@dataclass(frozen=True)
class Scored:
    """The scored part of a dump: full blocks of 128 tokens. The first blocks and queries are not
    scored if profiles were made from them."""

    dump: Dump
    groups: Sequence[Group]
    inputs: Inputs = Inputs()
    first_block: int = 0
    first_query: int = 0


def measure(
    scored: Scored,
    recipe: str,
    profile: str | None = None,
    verdict: Verdict | None = None,
    progress: Progress = lambda share, what: None,
) -> Evaluation:
    """Codes a dump with one recipe; tokens after the last full block are left out. Needs as much
    memory as K and V. `profile` is the kind of the groups' profiles."""
    dump = scored.dump
    exact = dump.first_tokens(block_count_of(dump) * TOKENS_PER_BLOCK)
    share = 1.0 if verdict is None else 1.0 - JUDGE_SHARE
    coded = code(
        exact,
        scored.groups,
        recipe,
        scored.inputs,
        scored.first_block,
        lambda done: progress(share * CODING_SHARE * done, "coding"),
    )
    errors = _Errors(scored, exact, coded.kv)
    layers = sorted(exact.k)
    for index, layer in enumerate(layers):
        errors.add(layer)
        done = CODING_SHARE + (1 - LAST_SHARE - CODING_SHARE) * (index + 1) / len(layers)
        progress(share * done, "comparing")
    judged = {}
    if verdict is not None:
        progress(share, "asking the judge")
        scores = verdict.score(exact, coded.kv)
        names = ("kl_trimmed", "same_top", *MARGINS, *MARGINS.values())
        judged = {name: getattr(scores, name) for name in names}
    progress(1.0, "done")
    names = ("bits", "ratio", "encode_rate", "decode_rate")
    figures = {name: getattr(coded, name) for name in names} | errors.figures() | judged
    return Evaluation(recipe=recipe, profile=profile, layers=layers, **figures)


class _Errors:
    """Errors of K, V and attention, by layer."""

    def __init__(self, scored: Scored, exact: Kv, coded: Kv) -> None:
        self._dump, self._exact, self._coded = scored.dump, exact, coded
        self._first_token = scored.first_block * TOKENS_PER_BLOCK
        self._first_query = scored.first_query
        self._k, self._v, self._attention = RelativeError(), RelativeError(), RelativeError()
        self._attention_by_layer: list[float | None] = []

    def add(self, layer: int) -> None:
        both = [kv.values_of(layer) for kv in self._kv]
        cut = np.s_[:, self._first_token :]
        (k, v), (coded_k, coded_v) = both
        rotation = self._dump.rotation_of(layer)
        self._k.add_k(k[cut], coded_k[cut], rotation, self._first_token)
        self._v.add(v[cut], coded_v[cut])
        queries = self._dump.q.get(layer)
        if queries is None:
            self._attention_by_layer.append(None)
            return
        q = as_float(queries)[:, self._first_query :]
        window = self._dump.windows.get(layer, 0)
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
    """Relative errors of parts and of the whole. If coded values differ from values that are not
    finite, the error counts as large as the exact values."""

    def __init__(self) -> None:
        self._sums: list[tuple[float, float]] = []

    def add(self, exact: np.ndarray, coded: np.ndarray) -> None:
        known, difference, is_lost = self._compare(exact, coded)
        self._append(known, difference, is_lost)

    def add_k(
        self, exact: np.ndarray, coded: np.ndarray, rotation: Rotation, first: int
    ) -> None:
        """Adds K [heads, tokens, dim] after RoPE, from position `first` on. The error is relative
        to K about the means of its channels, before RoPE if `rotation` is known: a constant of a
        channel, such as a bias, does not distinguish tokens, so keeping it must not reduce the
        error. A constant in the error changes all logits of a query by the same amount, so the
        means of the error are subtracted, too."""
        known, difference, is_lost = self._compare(exact, coded)
        content = turn(known, rotation, first, -1)
        with np.errstate(invalid="ignore"):  # some coded values are not finite
            self._append(_about_means(content), _about_means(difference), is_lost)

    @staticmethod
    def _compare(exact: np.ndarray, coded: np.ndarray) -> tuple[np.ndarray, np.ndarray, bool]:
        """Returns the exact values and the error, both 0 if the exact values are not finite, and
        whether one of those was lost."""
        finite = np.isfinite(exact)
        known = np.where(finite, exact, 0)
        lost = ~finite & ~((coded == exact) | (np.isnan(exact) & np.isnan(coded)))
        return known, np.where(finite, coded, 0) - known, bool(lost.any())

    def _append(self, known: np.ndarray, difference: np.ndarray, is_lost: bool) -> None:
        size, error = (
            float(np.square(x, dtype=np.float64).sum()) for x in (known, difference)
        )
        error = float("inf") if np.isnan(error) else error
        self._sums.append((error + (size if is_lost else 0.0), size))

    @staticmethod
    def _ratio(error: float, size: float) -> float:
        return (error / size) ** 0.5 if size else (0.0 if error == 0 else float("inf"))

    @property
    def parts(self) -> list[float]:
        return [self._ratio(*sums) for sums in self._sums]

    @property
    def whole(self) -> float:
        return self._ratio(*(sum(x) for x in zip(*self._sums, strict=True)))


def _about_means(values: np.ndarray) -> np.ndarray:
    """Returns [heads, tokens, dim] without the mean of each channel."""
    return values - values.mean(1, keepdims=True, dtype=np.float64)


def attention_output(
    q: np.ndarray, first: int, k: np.ndarray, v: np.ndarray, window: int = 0
) -> np.ndarray:
    """Computes causal attention of q [query heads, n, dim], for tokens first, first + 1, …, over k
    and v. A query attends to itself and the window - 1 tokens before it, or to all of them if
    window is 0. A query after the last token of k attends to the same tokens as that token."""
    shared = len(q) // len(k)
    places = np.minimum(np.arange(first, first + q.shape[1]), k.shape[1] - 1)
    behind = places[:, None] - np.arange(k.shape[1])[None]
    unseen = behind < 0
    if window:
        unseen |= behind >= window
    out = np.empty((*q.shape[:2], v.shape[2]), np.float32)
    with np.errstate(over="ignore", invalid="ignore"):  # some values are not finite
        for head, query in enumerate(q):
            score = query @ k[head // shared].T * np.float32(k.shape[2] ** -0.5)
            score[unseen] = -np.inf
            score = np.exp(score - score.max(-1, keepdims=True))
            out[head] = score @ v[head // shared] / score.sum(-1, keepdims=True)
    return out


def copy_rate(dump: Dump) -> float:
    """Returns the bytes per second of a plain copy of a block of the first group, for
    comparison."""
    layers, token_count = dump.groups()[0], min(TOKENS_PER_BLOCK, dump.token_count)
    source = np.stack([dump.k[i][:, :token_count] for i in layers])
    target, found = np.empty_like(source), []
    for _ in range(COPY_SAMPLES):
        begin = time.perf_counter()
        np.copyto(target, source)
        found.append(source.nbytes / (time.perf_counter() - begin))
    return float(np.median(found))
