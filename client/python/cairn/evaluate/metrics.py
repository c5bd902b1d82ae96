# SPDX-License-Identifier: Apache-2.0
"""Measures the effect of a coded cache on a model's predictions. Needs numpy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

TRIMMED_SHARE = 0.05  # share of the positions, at each end


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Returns the natural logarithms of probabilities [rows, vocabulary], float32 from sums in
    float64."""
    shifted = logits - logits.max(-1, keepdims=True)
    total = np.exp(shifted).sum(-1, keepdims=True, dtype=np.float64)
    return shifted - np.log(total).astype(np.float32)


def divergence(exact: np.ndarray, coded: np.ndarray) -> np.ndarray:
    """Returns KL(exact || coded) of each row of log probabilities, in nats. It is not below 0
    except by the rounding of float64 sums, about 1e-9."""
    out = np.empty(len(exact))
    for row in range(len(exact)):  # row by row: a vocabulary of 262144 in float64 is 2 MB
        p, q = exact[row].astype(np.float64), coded[row].astype(np.float64)
        p -= np.log(np.exp(p).sum())
        q -= np.log(np.exp(q).sum())
        out[row] = (np.exp(p) * (p - q)).sum()
    return out


def trimmed_mean(values: np.ndarray, share: float = TRIMMED_SHARE) -> float:
    """Returns the mean without the largest and the smallest values, a `share` of each, rounded down
    to a count."""
    dropped = int(len(values) * share)
    return float(np.sort(values)[dropped : len(values) - dropped].mean())


def standard_error(values: np.ndarray) -> float:
    """Returns the standard error of the mean of two or more positions, as if they were
    independent."""
    return float(values.std(ddof=1) / len(values) ** 0.5)


@dataclass(frozen=True)
class Scores:
    """Scores over the positions of one run. The perplexities are None if the tokens that really
    came next are unknown."""

    kl: float
    kl_error: float
    kl_trimmed: float
    kl_max: float
    perplexity_exact: float | None
    perplexity_ratio: float | None  # coded over exact
    perplexity_error: float | None  # its standard error
    same_top: float  # share of positions with the same most likely token


def score(exact: np.ndarray, coded: np.ndarray, targets: np.ndarray | None) -> Scores:
    """Scores log probabilities [positions, vocabulary] of both, with the tokens that really came
    next."""
    kl = divergence(exact, coded)
    perplexity_exact = perplexity_ratio = perplexity_error = None
    if targets is not None:
        rows = np.arange(len(targets))
        exact_loss, coded_loss = (-x[rows, targets].astype(np.float64) for x in (exact, coded))
        more = coded_loss - exact_loss
        perplexity_exact = float(np.exp(exact_loss.mean()))
        perplexity_ratio = float(np.exp(more.mean()))
        perplexity_error = perplexity_ratio * standard_error(more)
    return Scores(
        kl=float(kl.mean()),
        kl_error=standard_error(kl),
        kl_trimmed=trimmed_mean(kl),
        kl_max=float(kl.max()),
        perplexity_exact=perplexity_exact,
        perplexity_ratio=perplexity_ratio,
        perplexity_error=perplexity_error,
        same_top=float((exact.argmax(-1) == coded.argmax(-1)).mean()),
    )
