# SPDX-License-Identifier: Apache-2.0
"""What a coded cache did to a model's predictions, in numbers: those of cairn.evaluate."""

from __future__ import annotations

import numpy as np
from cairn.evaluate.metrics import (  # noqa: F401
    Scores,
    divergence,
    log_softmax,
    score,
    standard_error,
    trimmed_mean,
)


def relative_error(exact: np.ndarray, coded: np.ndarray) -> float:
    """Root of the summed squared error over that of the summed squares."""
    return float(np.sqrt(np.square(coded - exact).sum() / np.square(exact).sum()))
