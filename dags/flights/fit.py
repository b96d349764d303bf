"""Fits the network on the ranks of a gang, epoch by epoch; with checkpoint, calibration and baseline.

A restarted gang continues after its last complete epoch and ends with the same weights as an undisturbed one: all random
numbers of an epoch are drawn from (seed, epoch, rank).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits as cross_entropy
from torch.nn.parallel import DistributedDataParallel

from flights.assess import auc
from flights.network import LateNet
from flights.table import TEXT, Rows
from flights.tracking import Board

WEIGHT_DECAY = 1.0
BASELINE_EPOCHS = 3
BASELINE_RATE = 0.02
CHECKPOINT = "last.pt"
HIDE = 0.005
"""How often a text category is hidden from training."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How to train: passes over the rows, rows a step (of all ranks together), highest learning rate, seed."""

    epochs: int
    batch: int
    rate: float
    seed: int

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.batch < 1 or not self.rate > 0:
            raise ValueError(
                f"epochs, batch and rate must be above 0, found {self.epochs}, {self.batch} and {self.rate}"
            )


@dataclass(frozen=True)
class Rank:
    """One process of the gang."""

    index: int
    world: int
    device: torch.device

    @property
    def first(self) -> bool:
        """Whether it is rank 0, which prints, writes and reports."""
        return self.index == 0


@dataclass(frozen=True)
class Tensors:
    """Rows on the rank's device."""

    codes: torch.Tensor
    numbers: torch.Tensor
    late: torch.Tensor

    @classmethod
    def of(cls, rows: Rows, device: torch.device) -> Tensors:
        """Copy the rows' arrays."""
        return cls(*(torch.from_numpy(each).to(device) for each in (rows.codes, rows.numbers, rows.late)))

    def __len__(self) -> int:
        return len(self.late)

    def take(self, chosen: torch.Tensor | slice) -> Tensors:
        """Return the rows at these positions."""
        return Tensors(self.codes[chosen], self.numbers[chosen], self.late[chosen])


@contextmanager
def joined() -> Iterator[Rank]:
    """Join the other ranks by the launcher's environment variables; without a launcher there is one rank.

    NCCL where every rank of this machine has a GPU of its own, else gloo.
    """
    local, ranks_here = int(os.environ.get("LOCAL_RANK", "0")), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    gpu = torch.cuda.is_available() and torch.cuda.device_count() >= ranks_here
    device = torch.device("cuda", local) if gpu else torch.device("cpu")
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # else cuBLAS may add in any order
    torch.use_deterministic_algorithms(True)
    if "WORLD_SIZE" not in os.environ:
        yield Rank(0, 1, device)
        return
    dist.init_process_group("nccl" if gpu else "gloo")
    try:
        yield Rank(dist.get_rank(), dist.get_world_size(), device)
    finally:
        dist.destroy_process_group()


@dataclass
class State:
    """The state of the training, which is the checkpoint."""

    network: nn.Module
    optimizer: torch.optim.Optimizer
    schedule: torch.optim.lr_scheduler.LRScheduler
    history: list[dict[str, float]] = field(default_factory=list)

    @classmethod
    def begin(cls, network: nn.Module, plan: Plan, steps: int) -> State:
        """Begin with this network: AdamW, with a learning rate that rises over the first epochs and falls to 0."""
        optimizer = torch.optim.AdamW(network.parameters(), lr=plan.rate, weight_decay=WEIGHT_DECAY)
        total = plan.epochs * steps
        rates = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, max_lr=plan.rate, total_steps=total, pct_start=0.15
        )
        return cls(network, optimizer, rates)

    def save(self, file: Path) -> None:
        """Write it atomically: a restart finds the last epoch or the one before."""
        part = file.with_suffix(".part")
        with part.open("wb") as stream:
            torch.save(
                {
                    "network": self.network.state_dict(),
                    "optimizer": self.optimizer.state_dict(),
                    "schedule": self.schedule.state_dict(),
                    "history": self.history,
                },
                stream,
            )
            stream.flush()
            os.fsync(stream.fileno())
        part.replace(file)

    def load(self, file: Path, device: torch.device) -> None:
        """Load the checkpoint, if there is one."""
        if not file.exists():
            return
        saved = torch.load(file, map_location=device, weights_only=True)
        self.network.load_state_dict(saved["network"])
        self.optimizer.load_state_dict(saved["optimizer"])
        self.schedule.load_state_dict(saved["schedule"])
        self.history = saved["history"]


def run_epochs(
    network: LateNet,
    rows: Tensors,
    held: Tensors,
    plan: Plan,
    rank: Rank,
    checkpoints: Path,
    board: Board | None,
) -> list[dict[str, float]]:
    """Train to the end, from the checkpoint if there is one; return the figures of each epoch."""
    steps = len(rows) // plan.batch
    if plan.batch % rank.world or not steps:
        raise ValueError(
            f"batch is {plan.batch}: need a multiple of the {rank.world} ranks, and no more than {len(rows)} rows"
        )
    state = State.begin(network, plan, steps)
    state.load(checkpoints / CHECKPOINT, rank.device)
    if board and state.history:
        print(f"going on after epoch {len(state.history)} of {plan.epochs}", flush=True)
        for past in state.history:
            board.write(past)
    wrapped = DistributedDataParallel(network) if rank.world > 1 else network
    for epoch in range(len(state.history) + 1, plan.epochs + 1):
        begin = time.perf_counter()
        loss = run_epoch(wrapped, share(rows, plan, rank, epoch), state, plan, rank, epoch)
        speed = steps * plan.batch / (time.perf_counter() - begin)
        state.history.append({"epoch": epoch, "loss": loss, "rows_per_second": speed})
        if board:
            state.history[-1]["auc_held"] = auc(probabilities(network, held), held.late.cpu().numpy())
            state.save(checkpoints / CHECKPOINT)
            board.write(state.history[-1])
            print(_line(plan, **state.history[-1]), flush=True)
    return state.history


def share(rows: Tensors, plan: Plan, rank: Rank, epoch: int) -> Tensors:
    """Return this rank's part of the rows, in the epoch's random order; all parts have the same length.

    A few categories are hidden, so that the embedding of unknown ones, which no training row has, is learned too.
    """
    draw = torch.Generator().manual_seed(_seed(plan, epoch))
    order = torch.randperm(len(rows), generator=draw)
    hidden = torch.rand(rows.codes.shape, generator=draw) < HIDE
    hidden[:, len(TEXT) :] = False  # the hour is never unknown
    whole = len(rows) // plan.batch * plan.batch
    mine = order[:whole][rank.index :: rank.world].to(rank.device)
    part = rows.take(mine)
    return replace(part, codes=part.codes.masked_fill(hidden.to(rank.device)[mine], 0))


def run_epoch(network: nn.Module, rows: Tensors, state: State, plan: Plan, rank: Rank, epoch: int) -> float:
    """Run one epoch; return the mean loss over all ranks."""
    torch.manual_seed(_seed(plan, epoch) + 1 + rank.index)  # for dropout
    network.train()
    size = plan.batch // rank.world
    total = torch.zeros((), device=rank.device)
    for begin in range(0, len(rows), size):
        part = rows.take(slice(begin, begin + size))
        loss = cross_entropy(network(part.codes, part.numbers), part.late)
        state.optimizer.zero_grad()
        loss.backward()
        state.optimizer.step()
        state.schedule.step()
        total += loss.detach()
    if rank.world > 1:
        dist.all_reduce(total)
    return float(total) / (len(rows) // size * rank.world)


@torch.no_grad()
def probabilities(network: LateNet, rows: Tensors) -> np.ndarray:
    """Return the network's probability for every row."""
    network.eval()
    return torch.sigmoid(network(rows.codes, rows.numbers)).cpu().numpy()


def _seed(plan: Plan, epoch: int) -> int:
    return (plan.seed * 10_000 + epoch) * 100_000


def _line(plan: Plan, *, epoch: int, loss: float, rows_per_second: float, auc_held: float) -> str:
    """Return the line of progress that muster shows; its AUC is that on the days held back."""
    return (
        f"muster: epoch={epoch}/{plan.epochs} loss={loss:.4f} auc_held={auc_held:.4f} "
        f"rows_per_second={rows_per_second:.0f}"
    )


def calibrate(network: LateNet, held: Tensors) -> tuple[float, float]:
    """Fit slope and shift of the logits on the days held back (Platt scaling) and fold them into the weights."""
    with torch.no_grad():
        network.eval()
        logits = network(held.codes, held.numbers).double()
    slope = torch.ones((), dtype=torch.double, device=logits.device, requires_grad=True)
    shift = torch.zeros((), dtype=torch.double, device=logits.device, requires_grad=True)
    solver = torch.optim.LBFGS([slope, shift], max_iter=50, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        solver.zero_grad()
        value = cross_entropy(logits * slope + shift, held.late.double())
        value.backward()
        return value

    solver.step(loss)
    network.stretch(slope.item(), shift.item())
    return slope.item(), shift.item()


def baseline(rows: Tensors, sizes: list[int], plan: Plan) -> LateNet:
    """Fit logistic regression: the network's linear part alone, on the same columns and scales."""
    torch.manual_seed(plan.seed)
    network = LateNet(sizes, deep=False).to(rows.late.device)
    network.fit_scale(rows.numbers)
    optimizer = torch.optim.Adam(network.parameters(), lr=BASELINE_RATE)
    steps = max(1, len(rows) // plan.batch)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=BASELINE_RATE, total_steps=BASELINE_EPOCHS * steps
    )
    for _ in range(BASELINE_EPOCHS):
        mixed = rows.take(torch.randperm(len(rows)).to(rows.late.device))
        for begin in range(0, steps * plan.batch, plan.batch):
            part = slice(begin, begin + plan.batch)
            optimizer.zero_grad()
            cross_entropy(network(mixed.codes[part], mixed.numbers[part]), mixed.late[part]).backward()
            optimizer.step()
            schedule.step()
    return network
