# SPDX-License-Identifier: Apache-2.0
"""Makes the profile for the recipe `cairn`, from KV of the model over any text.

    groups = [GroupSamples(texts=[(k, v), …], rotation=Rotation.of("half", frequencies))]
    profiles = build(groups, rates=(2.3, 3.0, 4.3))     # one of each group, in bytes

A few thousand tokens suffice; 512 are usable, but a basis needs 8 tokens per channel. The result is
better with q_squares, the mean of the squared queries, and with losses: the damage to a model's
predictions if one plane of one layer is coarse. `cairnctl evaluate --judge` measures those losses
and stores them in the profiles that it makes. docs/recipes/cairn.md explains all inputs. Needs
numpy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ._profile import SYMBOLS, TABLES, Basis, Plane, Profile, Rotation
from .errors import InvalidArgumentError

SKIPPED_TOKENS = 4  # of each text: attention rests on them by default, so they are not typical
LOSS_EXPONENT = 0.35  # exponent of a layer's loss in its step; a larger one would over-fit the text
LOSS_MIN = 1e-5
V_LOSS_SHARE = 0.3  # of K's, if losses are unknown and K's steps follow queries
LOG_LIMIT = 64 * 256
FIRST_MULTIPLIERS = (-480, -330, -200, -60, 40)
STRIP_TOKENS = 128
STRIP_BYTES = 78  # header 16, padding 8, and the coder's states
TILE_BYTES, IMAGE_BYTES = 16, 320
ROWS_MAX, ROW_SHARE = 2, 0.16
FIND_STRIDE = 4  # bits are counted for every fourth token


@dataclass
class GroupSamples:
    """texts: K after RoPE and V of each, float32 [layers, heads, tokens, dim], from position 0."""

    texts: Sequence[tuple[np.ndarray, np.ndarray]]
    rotation: Rotation = Rotation()
    q_squares: np.ndarray | None = None  # after RoPE [layers, heads, dim]
    k_loss: np.ndarray | None = None  # [layers]; groups have both losses, or none has any
    v_loss: np.ndarray | None = None

    def losses(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns the losses of K and of V by layer; assumed ones if they were not measured."""
        if self.k_loss is not None:
            return self.k_loss, self.v_loss
        flat = np.ones(len(self.texts[0][0]))
        return flat, flat if self.q_squares is None else V_LOSS_SHARE * flat


def turn(k: np.ndarray, rotation: Rotation, first: int, sign: int) -> np.ndarray:
    """Applies RoPE to K [..., tokens, dim] (sign 1) or removes it (sign −1)."""
    if rotation.kind == "none":
        return k.astype(np.float32)
    positions = np.arange(first, first + k.shape[-2], dtype=np.uint64)
    phase = (positions[:, None] * rotation.turns[None]).astype(np.float64) * (2 * np.pi / 2.0**64)
    cosine, sine = np.cos(phase).astype(np.float32), np.sin(phase * sign).astype(np.float32)
    one, two = rotation.pairs()
    out = k.astype(np.float32)
    a, b = k[..., one], k[..., two]
    out[..., one] = a * cosine - b * sine
    out[..., two] = a * sine + b * cosine
    return out


def pair_means(q_squares: np.ndarray, rotation: Rotation) -> np.ndarray:
    """Returns [..., dim], with the mean of each pair for both of its channels, because RoPE mixes
    them."""
    weights = q_squares.copy()
    one, two = rotation.pairs()
    weights[..., one] = weights[..., two] = (weights[..., one] + weights[..., two]) / 2
    return weights


def channel_scale(weights: np.ndarray) -> np.ndarray:
    """Returns [..., dim]: how much finer the step of each channel is, from its weight in
    attention."""
    return np.sqrt(weights / weights.mean(-1, keepdims=True) + 1e-3).astype(np.float32)


class _Samples:
    """One plane of one group: the channels as they are quantized."""

    def __init__(
        self, texts: list[np.ndarray], weights: np.ndarray | None, has_basis: bool
    ) -> None:
        count = sum(text.shape[2] for text in texts)
        self.mean = (sum(text.sum(2, dtype=np.float64) for text in texts) / count).astype(
            np.float32
        )
        self.scale = np.ones(self.mean.shape, np.float32)
        if weights is not None:
            self.scale = channel_scale(weights)
        self.vectors: np.ndarray | None = None
        if has_basis:
            scaled = [(text - self.mean[:, :, None]) * self.scale[:, :, None] for text in texts]
            covariance = sum(np.matmul(y.swapaxes(-1, -2), y) for y in scaled) / count
            vectors = np.linalg.eigh(covariance.astype(np.float64))[1][..., ::-1]
            self.vectors = vectors.astype(np.float16)
        self.values = np.concatenate([self.of(text) for text in texts], 2)
        self.sigma = np.sqrt(np.square(self.values).mean(2, dtype=np.float64))
        # The spread of a layer, with weighted channels. A step is a share of it.
        weighted = self.sigma if has_basis else self.sigma * self.scale
        self.spread = np.sqrt(np.square(weighted).mean((1, 2)))
        self.step_log = self.sigma_log = np.zeros(self.mean.shape, np.int16)

    def of(self, text: np.ndarray) -> np.ndarray:
        """Returns the values of a text that are quantized."""
        centred = text - self.mean[:, :, None]
        if self.vectors is None:
            return centred
        return np.matmul(centred * self.scale[:, :, None], self.vectors.astype(np.float32))

    def set_steps(self, of_layers: np.ndarray) -> None:
        steps = np.maximum(of_layers, 1e-12)[:, None, None] / (
            1 if self.vectors is not None else self.scale
        )
        self.step_log = _log(np.broadcast_to(steps, self.sigma.shape))
        self.sigma_log = _log(self.sigma)

    def codes(self, multiplier: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Returns positions in steps, codes, and for each channel its raw bits and its table."""
        inverse = np.exp2(-(self.step_log.astype(np.float64) + multiplier) / 256).astype(np.float32)
        positions = self.values * inverse[:, :, None]
        raw_bits, table = shapes(self.sigma_log.astype(np.int64) - self.step_log - multiplier)
        return positions, np.rint(positions).astype(np.int32), raw_bits, table


def shapes(ratio: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For channels whose spread is 2^(ratio/256) steps, returns the number of raw low bits and the
    table."""
    octave_quarter = np.clip(((ratio + 32) >> 6) + 16, 0, 39)
    raw_bits = np.maximum(0, (octave_quarter - 17) // 4)
    return raw_bits, octave_quarter - 4 * raw_bits


def symbols_of(codes: np.ndarray, raw_bits: np.ndarray) -> np.ndarray:
    """Returns symbols 0 … 14, or 15 for a code without one."""
    half = (1 << raw_bits) >> 1
    high = ((codes + half[:, :, None]) >> raw_bits[:, :, None]) + 7
    return np.where((high >= 0) & (high < SYMBOLS - 1), high, SYMBOLS - 1)


def _log(values: np.ndarray) -> np.ndarray:
    logs = np.rint(256 * np.log2(np.maximum(values, 1e-30)))
    return np.clip(logs, -LOG_LIMIT, LOG_LIMIT).astype(np.int16)


def _histograms(
    samples: list[_Samples], multipliers: Sequence[int]
) -> tuple[np.ndarray, np.ndarray]:
    """Returns counts [TABLES, SYMBOLS], and the sum and number of the rounding errors of codes ±1
    and ±2."""
    counts, shrink = np.zeros((TABLES, SYMBOLS)), np.zeros((TABLES, 2, 2))
    for multiplier in multipliers:
        for plane in samples:
            positions, codes, raw_bits, table = plane.codes(multiplier)
            wide = np.broadcast_to(table[:, :, None], codes.shape)
            index = wide * SYMBOLS + symbols_of(codes, raw_bits)
            counts += np.bincount(index.ravel(), minlength=counts.size).reshape(counts.shape)
            sizes = np.abs(codes)
            for size in (1, 2):
                chosen = (sizes == size) & (raw_bits == 0)[:, :, None]
                rest = np.abs(positions[chosen]) - size
                shrink[:, size - 1, 0] += np.bincount(wide[chosen], rest, TABLES)
                shrink[:, size - 1, 1] += np.bincount(wide[chosen], minlength=TABLES)
    counts[:, : SYMBOLS - 1] += counts[:, SYMBOLS - 2 :: -1]  # distributions are symmetric
    return counts, shrink


def _table(counts: np.ndarray) -> np.ndarray:
    """Returns frequencies that sum to 256 and minimize the cost. Rare symbols get none and are
    escapes."""
    if counts.sum() == 0:
        counts = np.exp(-np.abs(np.arange(SYMBOLS) - 7.0))
    order = np.argsort(-counts[: SYMBOLS - 1], kind="stable")
    best, least = None, np.inf
    for kept in range(1, SYMBOLS):
        mass = np.zeros(SYMBOLS)
        mass[order[:kept]] = counts[order[:kept]]
        mass[-1] = counts.sum() - mass.sum()
        present = np.append(order[:kept], SYMBOLS - 1)
        frequencies = np.zeros(SYMBOLS, np.int64)
        frequencies[present] = _shares(mass[present])
        cost = (mass[present] * (8 - np.log2(frequencies[present]))).sum() + 16 * mass[-1]
        if cost < least:
            best, least = frequencies, cost
    return best


def _shares(mass: np.ndarray) -> np.ndarray:
    """Divides 256 slots in proportion, with at least one each; the last few go where they save
    most."""
    shares = np.maximum(1, np.floor(256 * mass / mass.sum()).astype(np.int64))
    while shares.sum() > 256:
        shares[
            np.argmin(
                np.where(shares > 1, mass * np.log2(shares / np.maximum(shares - 1, 1)), np.inf)
            )
        ] -= 1
    while shares.sum() < 256:
        shares[np.argmax(mass * np.log2((shares + 1) / shares))] += 1
    return shares


def _tables(samples: list[_Samples], multipliers: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    counts, shrink = _histograms(samples, multipliers)
    offsets = shrink[:, :, 0] / (shrink[:, :, 1] + 50) * 256
    return np.stack([_table(row) for row in counts]), np.clip(np.rint(offsets), -102, 102).astype(
        np.int8
    )


def _coded_bits(samples: list[_Samples], frequencies: np.ndarray, multiplier: int) -> float:
    """Returns the size in bits of the codes of all samples."""
    prices = 8 - np.log2(np.maximum(frequencies, 1))
    prices[:, -1] += 16
    prices = np.where(frequencies > 0, prices, prices[:, -1:])
    total = 0.0
    for plane in samples:
        _, codes, raw_bits, table = plane.codes(multiplier)
        symbols = symbols_of(codes, raw_bits)
        total += prices[table[:, :, None], symbols].sum() + raw_bits.sum() * codes.shape[2]
    return total


def _row_share(values: np.ndarray) -> float:
    """Returns the share of tokens of V [layers, heads, tokens, dim] that are rows because of a
    small norm."""
    blocks = values.shape[2] // STRIP_TOKENS
    norms = np.square(values[:, :, : blocks * STRIP_TOKENS]).sum(-1).reshape(-1, STRIP_TOKENS)
    if not len(norms):
        return 0.0
    small = norms < ROW_SHARE * np.sort(norms)[:, STRIP_TOKENS // 2, None]
    return float(np.minimum(small.sum(1), ROWS_MAX).mean() / STRIP_TOKENS)


def _overhead(groups: Sequence[GroupSamples], planes: list[list[_Samples]]) -> float:
    """Returns the bits per element other than those of symbols."""
    total = elements = 0.0
    rows = float(
        np.mean([_row_share(group.texts[0][1][:, :, SKIPPED_TOKENS:]) for group in groups])
    )
    for samples in planes:
        for plane in samples:
            layers, heads, dim = plane.mean.shape
            a_block = (
                layers * heads * (STRIP_BYTES + TILE_BYTES + rows * STRIP_TOKENS * (2 * dim + 1))
            )
            total += 8 * (a_block + IMAGE_BYTES / len(planes))
            elements += layers * heads * dim * STRIP_TOKENS
    return total / elements


class _Group:
    """Texts of K before RoPE and of V, and the profile data made from them."""

    def __init__(self, group: GroupSamples, has_basis: bool) -> None:
        squares = group.q_squares
        self._weights = None if squares is None else pair_means(squares, group.rotation)
        self._has_basis = has_basis
        k = [turn(k, group.rotation, 0, -1) for k, _ in group.texts]
        self._texts = [
            _parts([text[:, :, SKIPPED_TOKENS:] for text in texts])
            for texts in (k, [v for _, v in group.texts])
        ]
        self.planes = [self._fit(plane, texts) for plane, texts in enumerate(self._texts)]

    def _fit(self, plane: int, texts: list[np.ndarray]) -> _Samples:
        if plane == 0:
            return _Samples(texts, self._weights, self._has_basis)
        return _Samples(texts, None, False)

    def unseen(self, plane: int) -> list[_Samples]:
        """Returns each text as seen by a profile made from the other texts, with the same steps.
        The spreads of the profile are then set to those values, because a basis underestimates them
        on the text that it was fitted to."""
        texts, whole = self._texts[plane], self.planes[plane]
        unseen, squares, count = [], 0.0, 0
        for index, text in enumerate(texts):
            fitted = self._fit(plane, texts[:index] + texts[index + 1 :])
            fitted.values = fitted.of(text)
            squares += np.square(fitted.values).sum(2, dtype=np.float64)
            count += text.shape[2]
            unseen.append(fitted)
        whole.sigma_log = _log(np.sqrt(squares / count))
        for fitted in unseen:
            fitted.step_log, fitted.sigma_log = whole.step_log, whole.sigma_log
        return unseen


def _parts(texts: list[np.ndarray]) -> list[np.ndarray]:
    """Returns texts of which each can be left out; a single text is divided into quarters."""
    return np.array_split(texts[0], 4, axis=2) if len(texts) == 1 else texts


def _share_steps(groups: Sequence[GroupSamples], prepared: list[list[_Samples]]) -> None:
    """Sets the steps of all layers of all groups, relative to each other, before the multiplier."""
    if len({loss is None for group in groups for loss in (group.k_loss, group.v_loss)}) > 1:
        raise InvalidArgumentError("losses are known of K and V of all groups, or of none")
    shares = []
    for group, planes in zip(groups, prepared, strict=True):
        for loss, _ in zip(group.losses(), planes, strict=True):
            shares.append(np.maximum(loss, LOSS_MIN) ** -LOSS_EXPONENT)
    middle = np.exp(np.log(np.concatenate(shares)).mean())
    flat_planes = [plane for planes in prepared for plane in planes]
    for share, plane in zip(shares, flat_planes, strict=True):
        plane.set_steps(plane.spread * share / middle)


def _surprise(groups: list[_Group], frequencies: list[np.ndarray], multiplier: int) -> float:
    """Returns the additional bits per element of text that the profile was not made from."""
    more = elements = 0.0
    for plane, table in enumerate(frequencies):
        for group in groups:
            unseen = group.unseen(plane)
            more += _coded_bits(unseen, table, multiplier)
            more -= _coded_bits([group.planes[plane]], table, multiplier)
            elements += group.planes[plane].values.size
    return more / elements


def _find(
    planes: list[list[_Samples]], frequencies: list[np.ndarray], bits: float, fixed: float
) -> int:
    """Returns the multiplier with which the samples have the target number of bits."""
    elements = sum(plane.values.size for samples in planes for plane in samples)
    low, high = -4000, 800
    while high - low > 1:
        middle = (low + high) // 2
        coded = sum(
            _coded_bits(samples, table, middle)
            for samples, table in zip(planes, frequencies, strict=True)
        )
        low, high = (middle, high) if coded / elements + fixed > bits else (low, middle)
    return high


def build(
    groups: Sequence[GroupSamples], rates: Sequence[float], has_basis: bool = False
) -> list[bytes]:
    """Returns the profiles of a model's groups. All share their tables and multipliers, so that
    bits go where the whole model needs them most."""
    prepared = [_Group(group, has_basis) for group in groups]
    _share_steps(groups, [group.planes for group in prepared])
    planes = [[group.planes[index] for group in prepared] for index in range(2)]
    tables = [_tables(samples, FIRST_MULTIPLIERS) for samples in planes]
    frequencies = [table for table, _ in tables]
    fixed = _overhead(groups, planes) + _surprise(prepared, frequencies, FIRST_MULTIPLIERS[2])
    for plane in (plane for samples in planes for plane in samples):
        plane.values = plane.values[:, :, ::FIND_STRIDE]
    found = {round(bits * 10): _find(planes, frequencies, bits, fixed) for bits in sorted(rates)}
    profiles = []
    for group, made in zip(groups, prepared, strict=True):
        parts = [
            Plane(plane.mean, plane.step_log, plane.sigma_log, *table)
            for plane, table in zip(made.planes, tables, strict=True)
        ]
        k = made.planes[0]
        basis = None if k.vectors is None else Basis(k.scale, 1 / k.scale, k.vectors)
        profiles.append(Profile(parts, group.rotation, found, basis).to_bytes())
    return profiles
