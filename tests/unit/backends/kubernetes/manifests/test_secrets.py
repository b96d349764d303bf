from __future__ import annotations

import inspect
from dataclasses import replace

import pytest
from tests.unit.backends.kubernetes.golden import EXAMPLES, KUEUE, SITE, job

from muster.backends.kubernetes.manifests import bootstrap, secrets, wiring
from muster.backends.kubernetes.manifests.wiring import Submission
from muster.core.errors import SpecError
from muster.core.job import SecretRef


def asking(source: str, name: str) -> Submission:
    asked = job(secrets={"KEY": SecretRef(source=source, name=name)})
    return Submission(job=asked, job_id="t-1", attempt=1, site=SITE, cluster=KUEUE)


def test_the_secret_holds_the_token_the_program_and_what_was_looked_up() -> None:
    given = {"MLFLOW_TRACKING_PASSWORD": "s3cret", "API_KEY": "not asked for here"}
    example = EXAMPLES["torchrun"]
    submission = Submission(job=example.job, job_id="t-1", attempt=1, site=SITE, cluster=KUEUE)
    assert secrets.data(submission, token="t", values=given) == {
        "token": "t",
        "orders.json": wiring.orders(submission),
        "bootstrap.py": inspect.getsource(bootstrap),
        "env.MLFLOW_TRACKING_PASSWORD": "s3cret",
    }


def test_a_secret_that_nobody_looked_up_is_named_and_its_value_never_written() -> None:
    asked = asking("environment", "API_KEY")
    with pytest.raises(SpecError, match="secret KEY: the submitter did not look up environment 'API_KEY'"):
        secrets.data(asked, token="t", values={})
    with pytest.raises(
        SpecError, match=r"job flights.train: its spec and secrets are 20\d{5} bytes"
    ) as refused:
        secrets.data(asked, token="t", values={"KEY": "hunter2" * 200_000 + "x" * 600_000})
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("value", ["hunter2\0", "hunter2\udcff"])
def test_a_value_that_no_variable_can_hold_is_refused_and_not_shown(value: str) -> None:
    with pytest.raises(SpecError, match="secret KEY: its value holds") as refused:
        secrets.data(asking("environment", "API_KEY"), token="t", values={"KEY": value})
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("weather", "is not NAME/KEY"),
        ("weather/", "is not NAME/KEY"),
        ("weather/..", "is not NAME/KEY"),
        ("weather/a/b", "is not NAME/KEY"),
        ("weather/a b", "is not NAME/KEY"),
        ("../x/key", "is not the name of a Secret"),
        ("Weather/key", "is not the name of a Secret"),
        ("a..b/key", "is not the name of a Secret"),
        (f"{'a' * 248}/key", None),
        ("muster-t-2/token", "is muster's own"),
        ("muster-operators/token", "is muster's own"),
        ("sh.helm.release.v1.muster.v1/release", "is what Helm keeps of a release"),
    ],
)
def test_a_secret_of_the_cluster_is_anybodys_but_ours(name: str, message: str | None) -> None:
    if message is None:
        assert secrets.variables(asking("kubernetes", name))
        return
    with pytest.raises(SpecError, match=message):
        secrets.variables(asking("kubernetes", name))


def test_values_stay_out_of_all_but_the_secret() -> None:
    made = replace(EXAMPLES["torchrun"], values={"MLFLOW_TRACKING_PASSWORD": "hunter2"}).documents()
    *others, secret = made.owned
    assert "hunter2" in str(secret)
    assert "hunter2" not in str([made.owner, *others])
