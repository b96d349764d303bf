"""What the script's losses are: the same sums without TensorFlow and without ranks."""

from __future__ import annotations

from pathlib import Path

SCRIPT = Path(__file__).with_name("script.py")


def losses() -> list[float]:
    """Return the mean loss of each of its three epochs."""
    numbers = [-1.0 + 2.0 * place / 255 for place in range(256)]
    rows = [numbers[first : first + 4] for first in range(0, 256, 4)]
    weights, bias, means = [0.1] * 4, 0.0, []
    for _ in range(3):
        found = []
        for first in range(0, 64, 16):
            batch = rows[first : first + 16]
            errors = [
                sum(w * x for w, x in zip(weights, row, strict=True)) + bias - sum(row) for row in batch
            ]
            found.append(sum(error**2 for error in errors) / 16)
            slopes = [
                sum(2 * e * row[i] for e, row in zip(errors, batch, strict=True)) / 16 for i in range(4)
            ]
            weights = [w - 0.1 * slope for w, slope in zip(weights, slopes, strict=True)]
            bias -= 0.1 * sum(2 * error for error in errors) / 16
        means.append(sum(found) / len(found))
    return means
