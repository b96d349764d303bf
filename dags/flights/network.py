"""The classifier: embeddings and scaled numbers into a linear part and a small MLP, whose sum is one logit."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from flights.table import NUMBERS

HIDDEN = (128, 64)


class LateNet(nn.Module):
    """Logit of a late arrival, from category codes (rows, C) and scaled numbers (rows, N).

    The linear part alone is logistic regression on one-hot categories; it is also the baseline.

    :param sizes: the number of categories of each code column.
    :param deep: whether it has the MLP.
    """

    mean: torch.Tensor
    deviation: torch.Tensor

    def __init__(self, sizes: Sequence[int], *, deep: bool = True) -> None:
        super().__init__()
        self.weights = nn.ModuleList(nn.Embedding(size, 1) for size in sizes)
        self.linear = nn.Linear(len(NUMBERS), 1)
        for weight in self.weights:
            nn.init.zeros_(weight.weight)  # type: ignore[arg-type]
        self.embeddings = nn.ModuleList(nn.Embedding(size, width(size)) for size in sizes if deep)
        self.deep = _mlp(sum(map(width, sizes)) + len(NUMBERS)) if deep else None
        self.register_buffer("mean", torch.zeros(len(NUMBERS)))
        self.register_buffer("deviation", torch.ones(len(NUMBERS)))

    def fit_scale(self, numbers: torch.Tensor) -> None:
        """Take mean and standard deviation from the training rows; a constant column is only shifted."""
        self.mean.copy_(numbers.mean(0))
        spread = numbers.std(0)
        self.deviation.copy_(torch.where(spread > 0, spread, 1.0))

    @torch.no_grad()
    def stretch(self, slope: float, shift: float) -> None:
        """Change the weights so that every logit is multiplied by `slope` and `shift` is added."""
        ends = [self.linear, *self.weights] + ([self.deep[-1]] if self.deep is not None else [])
        for end in ends:
            for parameter in end.parameters():
                parameter.mul_(slope)
        self.linear.bias.add_(shift)

    def forward(self, codes: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        """Return one logit a row."""
        scaled = (numbers - self.mean) / self.deviation
        logit = self.linear(scaled)
        for column, weight in enumerate(self.weights):
            logit = logit + weight(codes[:, column])
        if self.deep is not None:
            known = [table(codes[:, column]) for column, table in enumerate(self.embeddings)]
            logit = logit + self.deep(torch.cat([*known, scaled], dim=1))
        return logit.squeeze(1)


def width(size: int) -> int:
    """Return the width of the embedding for a column of `size` categories."""
    return min(16, 2 + round(size**0.5))


def _mlp(inputs: int) -> nn.Sequential:
    widths = (inputs, *HIDDEN)
    layers: list[nn.Module] = []
    for before, after in zip(widths, HIDDEN, strict=False):
        layers += [nn.Linear(before, after), nn.ReLU(), nn.Dropout(0.1)]
    return nn.Sequential(*layers, nn.Linear(HIDDEN[-1], 1))
