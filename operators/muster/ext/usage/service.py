"""Asks about usage and budgets where the log is: in this process for a folder, else by a call of the store service."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from muster.core.address import SCHEME
from muster.core.errors import NotFound
from muster.core.tally import HourBudget, Tally, month_of
from muster.core.wire import dumps, loads
from muster.ext.usage import budgets, log, table
from muster.ext.usage.budgets import BudgetQuestion, SpentBudgets
from muster.ext.usage.table import UsageQuestion, UsageRow

if TYPE_CHECKING:
    from muster.core.deployment import DeploymentStatus
    from muster.core.job import JobSpec
    from muster.volumes.folder import FolderStore
    from muster.volumes.protocols import LocalStore
    from muster.volumes.service.calls import Bind, Call, Served
    from muster.volumes.service.client import ServiceStore

_PATH, _BUDGETS, _SET = "/v1/usage", "/v1/usage/budgets", "/v1/usage/budgets/set"


@dataclass(frozen=True, kw_only=True)
class UsageTable:
    """An answer."""

    rows: tuple[UsageRow, ...]


def ask(store: LocalStore, question: UsageQuestion) -> UsageTable:
    """Answer a question about the jobs of a store."""
    sent = _sent(store, _PATH, question)
    return _answer(cast("FolderStore", store), question) if sent is None else loads(UsageTable, sent)


def deployed(statuses: Iterable[DeploymentStatus]) -> dict[str, str]:
    """Return what each version that serves now is called, by its address: by all deployments that serve it."""
    names = dict[str, list[str]]()
    for status in statuses:
        for address in {each.model.address for each in status.revisions if each.percent}:
            names.setdefault(address, []).append(status.name)
    return {
        address: f"{', '.join(found)} ({address.removeprefix(SCHEME)})" for address, found in names.items()
    }


def this_month(store: LocalStore) -> Iterator[tuple[tuple[str, str, str], float]]:
    """Yield the hours of this month by team, class of card and kind; those of cores have the class ``cpu``."""
    question = UsageQuestion(by=("team", "class"), since=month_of(time.time())[0])
    for row in ask(store, question).rows:
        team, card = row.keys
        for kind, gpu, cpu in zip(table.HOURS, row.gpu, row.cpu, strict=True):
            yield (team, "cpu", kind), cpu
            yield (team, card, kind), gpu  # 0 where that is cpu, too


def ask_budgets(store: LocalStore, question: BudgetQuestion, *, keep: bool = False) -> SpentBudgets:
    """Answer a question about the budgets of a store. :param keep: whether what is given is stored."""
    sent = _sent(store, _SET if keep else _BUDGETS, question)
    if sent is None:
        return budgets.spent(cast("FolderStore", store), question, keep=keep)
    return loads(SpentBudgets, sent)


def held(store: LocalStore, job: JobSpec | None, tally: Tally, entered: bool) -> str:
    """Say why a job has to wait for its budget, which one that is entered sets; empty where it may start.

    :param job: None: say whether any budget is used up.
    """
    if job is None:
        over = _over(store, (), (), None)
    else:
        whose = (f"dag:{job.origin.dag_id}", f"team:{tally.team}")
        over = _over(store, whose, [job], job.budget if entered else None)
    return next((f"waits for its budget: {each}" for each in over), "")


def planned(
    store: LocalStore, dag_id: str, team: str, jobs: Sequence[JobSpec], gpu: float, cpu: float
) -> Iterator[str]:
    """Warn of budgets that what is planned goes beyond."""
    said = next((job.budget for job in jobs if job.budget), None)
    whose = (f"dag:{dag_id}", f"team:{team}")
    for each in _over(store, whose, jobs, said, gpu=gpu, cpu=cpu) if jobs else ():
        yield f"jobs beyond the budget wait: {each}"


def _over(
    store: LocalStore, whose: tuple[str, ...], jobs: Sequence[JobSpec], said: HourBudget | None, **more: float
) -> Iterator[str]:
    given = {whose[0]: said} if said and whose[0] != "dag:" else {}
    keep = bool(given) and not more  # a plan sets nothing
    try:
        found = ask_budgets(store, BudgetQuestion(whose=whose, given=given), keep=keep).budgets
    except NotFound:  # a store service of an earlier release
        return
    cards = not jobs or any(role.resources.gpus for job in jobs for role in job.roles)
    yield from filter(None, (each.over(cards=cards, **more) for each in found))


def _sent(store: LocalStore, path: str, question: UsageQuestion | BudgetQuestion) -> bytes | None:
    """Return a store service's answer; None of a folder, which is all else that there is."""
    from muster.volumes.folder import FolderStore  # who has a folder does not wait for httpx

    if isinstance(store, FolderStore):
        return None
    connection = cast("ServiceStore", store).connection
    return connection.request("POST", path, content=dumps(question).encode(), slow=True).content


def routes(_: Served) -> Iterator[Bind]:
    """Return the routes of this module."""
    from muster.volumes.service.calls import LIMIT_JSON_BYTES, route

    yield route("POST", _PATH, _call, turns="working", text=LIMIT_JSON_BYTES, right="reads")
    yield route("POST", _BUDGETS, _spent, turns="working", text=LIMIT_JSON_BYTES, right="reads")
    yield route("POST", _SET, _set, turns="working", text=LIMIT_JSON_BYTES)


def _call(call: Call) -> UsageTable:
    return _answer(call.served.store, call.message(UsageQuestion))


def _spent(call: Call) -> SpentBudgets:
    return budgets.spent(call.served.store, call.message(BudgetQuestion))


def _set(call: Call) -> SpentBudgets:
    return budgets.spent(call.served.store, call.message(BudgetQuestion), keep=True)


def _answer(store: FolderStore, question: UsageQuestion) -> UsageTable:
    now = time.time()
    lines = log.read(store.layout.root, store.ledger, since=question.since, now=now)
    return UsageTable(rows=tuple(table.usage(lines, question, now=now)))
