"""Chooses the params of the next trial. Optuna does the sampling (ask and tell); the rest of the search is muster's.

What is chosen for trial n follows from the spec, n, and what was told so far, so it is the same after a restart of
the process that asks. Each choice has a sampler of its own, whose seed is a digest of the search's seed and n.
"""

from __future__ import annotations

import hashlib
import json
import random
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from muster.backends.search.state import Phase, SearchState
from muster.core.search import Mode, Sampler, SearchSpec
from muster.core.space import Dimension, grid, in_order

if TYPE_CHECKING:
    import optuna

MOST_KNOWN = 1_000
"""TPE looks at this many trials, the newest: its time grows with their number."""
_TRIES = 100
_FEWEST_KNOWN = 10  # before these TPE draws at random


class Sampling:
    """The choices of one search.

    :param earlier: params and value of trials of earlier searches; None is NaN.
    """

    def __init__(
        self, spec: SearchSpec, *, earlier: tuple[tuple[Mapping[str, Any], float | None], ...] = ()
    ) -> None:
        self._spec, self._earlier = spec, earlier
        self._order = in_order(spec.space)
        self._grid: list[dict[str, Any]] | None = None
        if spec.sampler is Sampler.GRID:
            self._grid = grid(spec.space)
            random.Random(spec.seed).shuffle(self._grid)  # noqa: S311 no secret
        self._asked: set[str] = set()
        self._seen = 0

    def ask(self, state: SearchState) -> dict[str, Any] | None:
        """Return the params of the next trial; None where every point of the space was tried."""
        number = len(state.trials)
        if self._grid is not None:
            return self._grid[number] if number < len(self._grid) else None
        for trial in state.trials[self._seen :]:
            self._asked.add(_text(trial.params))
        self._seen = number
        for attempt in range(_TRIES):
            params = self._draw(state, f"{number}.{attempt}")
            if _text(params) not in self._asked:
                return params
        return None

    def _draw(self, state: SearchState, name: str) -> dict[str, Any]:
        import optuna
        from optuna.study import StudyDirection

        seed = int.from_bytes(hashlib.blake2b(f"{self._spec.seed}.{name}".encode(), digest_size=4).digest())
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of choices that are no plain values, which are kept as they are
            known = self._known(state) if self._spec.sampler is Sampler.TPE else []
            sampler: optuna.samplers.BaseSampler = optuna.samplers.RandomSampler(seed=seed)
            if known:
                sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=_FEWEST_KNOWN)
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
        """What the sampler knows: each trial by the value that it told last."""
        ended = [
            (each.params, each.value) for each in state.trials if each.values or each.phase is Phase.ENDED
        ]
        return [self._frozen(params, value) for params, value in (*self._earlier, *ended)[-MOST_KNOWN:]]

    def _frozen(self, params: Mapping[str, Any], value: float | None) -> optuna.trial.FrozenTrial:
        import optuna

        asked = {name: each for name, each in self._spec.space.items() if name in params}
        return optuna.trial.create_trial(
            state=optuna.trial.TrialState.FAIL if value is None else optuna.trial.TrialState.COMPLETE,
            value=value,
            params={name: _index(each, params[name]) for name, each in asked.items()},
            distributions={name: _distribution(each) for name, each in asked.items()},
        )


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


def _index(dimension: Dimension, value: Any) -> Any:
    return dimension.choices.index(value) if dimension.choices else value


def _text(params: Mapping[str, Any]) -> str:
    return json.dumps(dict(params), sort_keys=True)
