"""Chooses the params of the next trial. Optuna does the sampling (ask and tell); the rest of the search is muster's.

What is chosen for trial n follows from the spec, n, and what was told so far, so it is the same after a restart of
the process that asks. Each choice has a sampler of its own, whose seed is a digest of the search's seed and n.
"""

from __future__ import annotations

import hashlib
import json
import random
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from muster.ext.search.space import Dimension, grid, in_order
from muster.ext.search.spec import Mode, Sampler, SearchSpec
from muster.ext.search.state import Phase, SearchState

Earlier = Sequence[tuple[Mapping[str, Any], float | None]]

if TYPE_CHECKING:
    import optuna

MOST_KNOWN = 500
"""TPE looks at this many trials, the newest: its time grows with their number."""
_TRIES = 100
_TPE_TRIES = 4  # then at random: TPE likes to come back to the best point of a space that has few
_FEWEST_KNOWN = 10  # before these TPE draws at random


class Sampling:
    """The choices of one search.

    :param earlier: params and value of trials of earlier searches, which TPE knows from the start; None is NaN. They are no
        trials of this search: their points may be tried again.
    :ivar left_out: how many of `earlier` are no points of this space, and so are not known.
    """

    def __init__(self, spec: SearchSpec, *, earlier: Earlier = ()) -> None:
        self._spec = spec
        self._order = in_order(spec.space)
        fitting = [each for each in earlier if self._fits(each[0])]
        self._earlier, self.left_out = fitting[-MOST_KNOWN:], len(earlier) - len(fitting)
        self._grid: list[dict[str, Any]] | None = None
        if spec.sampler is Sampler.GRID:
            self._grid = grid(spec.space)
            random.Random(spec.seed).shuffle(self._grid)  # noqa: S311 no secret
        self._asked: set[str] = set()
        self._seen = 0
        self._frozen: dict[int, tuple[tuple[Any, ...], optuna.trial.FrozenTrial]] = {}

    def ask(self, state: SearchState) -> dict[str, Any] | None:
        """Return the params of the next trial; None where every point of the space was tried.

        Points are drawn again while they were tried before, a hundred times.
        """
        number = len(state.trials)
        if self._grid is not None:
            return self._grid[number] if number < len(self._grid) else None
        for trial in state.trials[self._seen :]:
            self._asked.add(_text(trial.params))
        self._seen = number
        known = self._known(state) if self._spec.sampler is Sampler.TPE else []
        for attempt in range(_TRIES):
            params = self._draw(known if attempt < _TPE_TRIES else [], f"{number}.{attempt}")
            if _text(params) not in self._asked:
                return params
        return None

    def _draw(self, known: list[optuna.trial.FrozenTrial], name: str) -> dict[str, Any]:
        import optuna
        from optuna.study import StudyDirection

        seed = int.from_bytes(hashlib.blake2b(f"{self._spec.seed}.{name}".encode(), digest_size=4).digest())
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # before Optuna 5 constant_liar is called experimental
            sampler: optuna.samplers.BaseSampler = optuna.samplers.RandomSampler(seed=seed)
            if known:
                sampler = optuna.samplers.TPESampler(
                    seed=seed, n_startup_trials=_FEWEST_KNOWN, constant_liar=True
                )
            directions = {Mode.MAX: StudyDirection.MAXIMIZE, Mode.MIN: StudyDirection.MINIMIZE}
            study = optuna.create_study(sampler=sampler, direction=directions[self._spec.mode])
            study.add_trials(known)
            trial = study.ask()
            params: dict[str, Any] = {}
            for each in self._order:
                dimension = self._spec.space[each]
                if dimension.asked(params):
                    params[each] = _suggest(trial, each, dimension)
        return params

    def _known(self, state: SearchState) -> list[optuna.trial.FrozenTrial]:
        """What TPE knows: earlier trials, then those of this search, the newest of all."""
        newest = state.trials[-MOST_KNOWN:]
        self._frozen.pop(len(state.trials) - MOST_KNOWN - 1, None)
        room = MOST_KNOWN - len(newest)
        earlier = [
            self._told(-number, params, self._spec.last, value, has_ended=True)
            for number, (params, value) in enumerate(self._earlier[len(self._earlier) - room :], start=1)
        ]
        return earlier + [
            self._told(each.number, each.params, each.rung, each.value, has_ended=each.phase is Phase.ENDED)
            for each in newest
        ]

    def _told(
        self, number: int, params: Mapping[str, Any], rung: int, value: float | None, *, has_ended: bool
    ) -> optuna.trial.FrozenTrial:
        """A trial as Optuna knows it: one that did not end is pruned, and by Optuna's rule better the further it came.

        One that told NaN, or failed before it told anything, counts as one that runs. TPE takes these for bad ones, so that the
        next trials keep away from what fails, and those that run at once from each other.
        """
        from optuna.trial import TrialState, create_trial

        key = (rung, value, has_ended)
        if number in self._frozen and self._frozen[number][0] == key:
            return self._frozen[number][1]
        state = TrialState.RUNNING
        if value is not None:
            state = TrialState.COMPLETE if has_ended else TrialState.PRUNED
        asked = {name: each for name, each in self._spec.space.items() if name in params}
        made = create_trial(
            state=state,
            value=value if state is TrialState.COMPLETE else None,
            intermediate_values={} if value is None else {max(rung, 0): value},
            params={name: _internal(each, params[name]) for name, each in asked.items()},
            distributions={name: _distribution(each) for name, each in asked.items()},
        )
        self._frozen[number] = key, made
        return made

    def _fits(self, params: Mapping[str, Any]) -> bool:
        """Whether these are the params of a point of the space."""
        asked = [name for name in self._order if self._spec.space[name].asked(params)]
        return set(asked) == set(params) and all(self._spec.space[name].holds(params[name]) for name in asked)


def _suggest(trial: optuna.Trial, name: str, dimension: Dimension) -> Any:
    if dimension.choices:
        return dimension.choices[trial.suggest_categorical(name, list(range(len(dimension.choices))))]
    low, high = dimension.bounds
    if dimension.whole:
        return trial.suggest_int(name, int(low), int(high), log=dimension.log, step=int(dimension.step or 1))
    return trial.suggest_float(name, low, high, log=dimension.log, step=dimension.step)


def _distribution(dimension: Dimension) -> optuna.distributions.BaseDistribution:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if dimension.choices:
        return CategoricalDistribution(list(range(len(dimension.choices))))
    low, high = dimension.bounds
    if dimension.whole:
        return IntDistribution(int(low), int(high), log=dimension.log, step=int(dimension.step or 1))
    return FloatDistribution(low, high, log=dimension.log, step=dimension.step)


def _internal(dimension: Dimension, value: Any) -> Any:
    """A param as Optuna is told it: a choice by its place, since Optuna knows no choices but plain values."""
    return dimension.index(value) if dimension.choices else value


def _text(params: Mapping[str, Any]) -> str:
    return json.dumps(dict(params), sort_keys=True)
