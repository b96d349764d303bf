"""What a task asks a person, Airflow's human in the loop: the run's listener is asked, unless the answer was given with the run."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from muster.airflow.embedded.load import Loaded, operator_class
from muster.airflow.embedded.result import Approval, Listener
from muster.airflow.upstream import internals
from muster.core.errors import SpecError

if TYPE_CHECKING:
    from datetime import datetime

    from sqlalchemy.orm import Session

    from muster.airflow.upstream.internals import TaskInstance

_ASKS = ("airflow.providers.standard.operators.hitl", "HITLOperator")
_TRIGGERS = ("airflow.providers.standard.operators.trigger_dagrun", "TriggerDagRunOperator")


class OpenQuestions:
    """The open questions of a run; one is put at a time.

    :param answers: options by the task that asks for one.
    """

    def __init__(self, session: Session, listener: Listener, answers: Mapping[str, str]) -> None:
        self._session = session
        self._listener = listener
        self._answers = answers
        self._open: dict[Any, Approval] = {}
        self._due: dict[Any, datetime | None] = {}

    def __bool__(self) -> bool:
        return bool(self._open)

    def add(self, ti: TaskInstance) -> None:
        """Put the question of an instance that awaits an answer."""
        asked, self._due[ti.id] = self._asked(ti), ti.trigger_timeout
        self._open[ti.id] = Approval(
            task=ti.task_id,
            subject=asked.subject,
            body=asked.body or "",
            options=tuple(asked.options),
            multiple=bool(asked.multiple),
        )

    def answered(self) -> TaskInstance | None:
        """Return the instance whose question has its answer, scheduled again; None if a person still thinks about it.

        After the task's `response_timeout` the answer is its defaults; without any, the task fails.
        """
        from muster.airflow.upstream.internals import TaskInstance, timezone

        ti_id, question = next(iter(self._open.items()))
        given = self._answers.get(question.task)
        chosen = self._listener.answer(question) if given is None else question.chosen(given)
        timed_out = False
        if chosen is None:
            late = [each for each in self._open if (due := self._due[each]) and due <= timezone.utcnow()]
            if not late:
                return None
            ti_id, timed_out = late[0], True
        del self._open[ti_id]
        ti = self._session.get_one(TaskInstance, ti_id)
        self._respond(ti, self._asked(ti).defaults if timed_out else chosen, timed_out=timed_out)
        return ti

    def _asked(self, ti: TaskInstance) -> internals.HITLDetail:

        return self._session.get_one(internals.HITLDetail, ti.id)

    def _respond(self, ti: TaskInstance, chosen: Collection[str] | None, *, timed_out: bool) -> None:
        """Write an answer as Airflow's API and its scheduler do; None: there is none."""
        from airflow.triggers.base import TriggerEvent

        asked = self._asked(ti)
        if chosen is None:
            told: Any = {"error": "response_timeout has passed without an answer", "error_type": "timeout"}
        else:
            asked.responded_by = None if timed_out else {"id": "muster", "name": "muster"}
            asked.responded_at = internals.timezone.utcnow()
            asked.chosen_options = list(chosen)
            asked.params_input = {name: param.get("value") for name, param in (asked.params or {}).items()}
            told = asked.as_resume_event_payload(timedout=timed_out)
        event = TriggerEvent(told)  # type: ignore[no-untyped-call]
        internals.handle_event_submit(event, task_instance=ti, session=self._session)
        self._session.commit()


def check(loaded: Loaded, names: Collection[str], answers: Mapping[str, str], listener: Listener) -> None:
    """Refuse tasks that would wait for what no ``muster run`` does, and warn of what it leaves out.

    :raises SpecError: it says what to do.
    """
    dag_id, asking = loaded.dag.dag_id, []
    if loaded.dag.deadline:
        listener.warning(
            f"the deadline of Dag {dag_id} is left out: Airflow's scheduler minds it, under `muster up`"
        )
    for name in names:
        task: Any = loaded.dag.task_dict[name]
        if _is(task, _TRIGGERS):
            raise SpecError(
                f"task {name} of Dag {dag_id} triggers another Dag, and muster run runs one: run both under `muster up`, or one "
                "after the other with `muster run`, without this task"
            )
        if _is(task, _ASKS):
            asking.append(name)
    for name, text in answers.items():
        if name not in asking:
            raise SpecError(
                f"--answer {name}={text}: no stage of that name asks; those that do: {', '.join(asking) or 'none'}"
            )
        asks: Any = loaded.dag.task_dict[name]
        if not asks.is_mapped:  # a mapped one has its options when it runs
            Approval(task=name, options=tuple(asks.options), multiple=asks.multiple).chosen(text)
    for name in asking:
        if name not in answers and not listener.can_answer:
            raise SpecError(
                f"task {name} of Dag {dag_id} asks a person, and this is no terminal: give the answer with the run, such as "
                f"--answer {name}=Approve, or run it under `muster up`, whose page asks"
            )


def _is(task: Any, what: tuple[str, str]) -> bool:
    """Whether a task's operator is, or extends, a class of a module, which is imported if a task has it."""
    module, name = what
    kind = getattr(sys.modules.get(module), name, None)
    return kind is not None and issubclass(operator_class(task), kind)
