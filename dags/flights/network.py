"""The classifier: embeddings and scaled numbers into a linear part and a small MLP, whose sum is one logit."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import nn

from flights.table import NUMBERS

HIDDEN = 128
EMBEDDING = 16
DROPOUT = 0.1


class LateNet(nn.Module):
    """Logit of a late arrival, from category codes (rows, C) and scaled numbers (rows, N).

    The linear part alone is logistic regression on one-hot categories; it is also the baseline.

    :param sizes: the number of categories of each code column.
    :param deep: whether it has the MLP.
    :param hidden: the width of its first layer; the second has half of it.
    :param embedding: the most numbers that a category is embedded in. `dropout`: the share of the MLP's inputs that is dropped.
    """

    mean: torch.Tensor
    deviation: torch.Tensor

    def __init__(
        self,
        sizes: Sequence[int],
        *,
        deep: bool = True,
        hidden: int = HIDDEN,
        embedding: int = EMBEDDING,
        dropout: float = DROPOUT,
    ) -> None:
        super().__init__()
        self.weights = nn.ModuleList(nn.Embedding(size, 1) for size in sizes)
        self.linear = nn.Linear(len(NUMBERS), 1)
        for weight in self.weights:
            nn.init.zeros_(weight.weight)  # type: ignore[arg-type]
        widths = [min(embedding, width(size)) for size in sizes]
        tables = (nn.Embedding(size, wide) for size, wide in zip(sizes, widths, strict=True) if deep)
        self.embeddings = nn.ModuleList(tables)
        self.deep = _mlp((sum(widths) + len(NUMBERS), hidden, hidden // 2), dropout) if deep else None
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
    return 2 + round(size**0.5)


def _mlp(widths: Sequence[int], dropout: float) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU(), nn.Dropout(dropout)]
    return nn.Sequential(*layers, nn.Linear(widths[-1], 1))
