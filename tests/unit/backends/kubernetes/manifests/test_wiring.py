from __future__ import annotations

import inspect
import json
import re
from collections.abc import Mapping
from dataclasses import replace

import pytest
from tests.unit.backends.kubernetes.golden import DIGEST, EXAMPLES, KUEUE, SITE, job

from muster.backends.kubernetes.manifests import bootstrap, wiring
from muster.backends.kubernetes.manifests.wiring import Submission
from muster.core.data import Input, Pinned
from muster.core.errors import SpecError
from muster.core.job import Launcher, Role, SecretRef
from muster.core.replica import Replica
from muster.core.resources import Resources
from muster.core.wire import loads

_PLACE = re.compile(r"\$(\$|\(([^)]*)\))")


def expanded(text: str, known: Mapping[str, str]) -> str:
    """What Kubernetes makes of it (third_party/forked/golang/expansion)."""
    return _PLACE.sub(lambda found: "$" if found[1] == "$" else known.get(found[2], found[0]), text)


def submission(name: str) -> wiring.Submission:
    example = EXAMPLES[name]
    return wiring.Submission(
        job=example.job, job_id=example.job_id, attempt=2, site=example.site, cluster=example.cluster
    )


POD = {"MUSTER_REPLICA": "1", "MUSTER_RESTART": "4", "MUSTER_POD": "uid-1"}


def test_the_gangs_orders_are_those_of_its_first_replica() -> None:
    replica = loads(Replica, wiring.orders(submission("tensorflow")))
    assert (replica.role, replica.index, replica.first_rank, replica.attempt) == ("chief", 0, 0, 2)
    assert replica.master_address == "train-0a1b2c3d4e5f-1-chief-0-0.train-0a1b2c3d4e5f-1"
    assert replica.code is None


def test_a_replica_finds_its_inputs_outputs_and_code() -> None:
    replica = loads(Replica, wiring.orders(submission("torchrun")))
    assert replica.inputs == {
        "features": ("/mnt/muster/inputs/features/0",),
        "months": ("/mnt/muster/inputs/months/0", "/mnt/muster/inputs/months/1"),
    }
    assert replica.staging == {"model": "/mnt/muster/outputs/model"}
    assert replica.code == "/muster/code"
    assert replica.spec.params["text"] == "$(HOME) $5"


def test_a_job_of_one_pod_meets_nobody() -> None:
    assert loads(Replica, wiring.orders(submission("single"))).master_address == "127.0.0.1"


def test_the_init_container_asks_for_its_own_bundle() -> None:
    of_job = submission("torchrun")
    told = json.loads(expanded(wiring.bootstrap_orders(of_job, of_job.job.roles[0]), POD))
    assert told == {
        "url": "http://muster-store:8080/v1/jobs/train-0a1b2c3d4e5f-1/bundle"
        "?attempt=2&restart=4&role=worker&index=1&pod=uid-1",
        "token": "/mnt/muster/job/token",
        "orders": "/mnt/muster/job/orders.json",
        "role": "worker",
        "index": "1",
        "sealed": "/mnt/muster/gang/worker-1.part-manifest",
        "gpus": 2,
        "folder": "/muster",
        "patience_seconds": 600.0,
    }


@pytest.mark.parametrize(("failures", "ignored", "start"), [("0", "0", "0-0"), ("1", "2", "1-2")])
def test_a_job_names_its_starts_by_two_counts(failures: str, ignored: str, start: str) -> None:
    single = submission("single-bare")
    pod = {**POD, "MUSTER_FAILURES": failures, "MUSTER_IGNORED": ignored}
    told = json.loads(expanded(wiring.bootstrap_orders(single, single.job.roles[0]), pod))
    assert f"/bundle?attempt=2&restart={start}&role=main&" in told["url"]
    assert expanded(single.staging, pod) == f"store/staging/2013-etl-0a1b2c3d4e5f-1/2.{start}"


def test_every_variable_that_others_name_is_given_before_them() -> None:
    for name in EXAMPLES:
        of_job = submission(name)
        given = {each["name"] for each in wiring.counters(of_job)}
        texts = [of_job.staging, *(wiring.bootstrap_orders(of_job, role) for role in of_job.job.roles)]
        texts += [value for role in of_job.job.roles for value in wiring.variables(of_job, role).values()]
        for text in texts:
            assert {found[2] for found in _PLACE.finditer(text) if found[2]} <= given


def test_nothing_that_a_site_says_is_read_as_a_variable() -> None:
    of_job = submission("torchrun")
    site = replace(SITE, gpu_environment={"NCCL_SECRET": "$(HOME) $$ $5 $"}, store_url="http://store/$(X)")
    changed = replace(of_job, site=site)
    (role,) = of_job.job.roles
    variables = {name: expanded(value, POD) for name, value in wiring.variables(changed, role).items()}
    assert variables["NCCL_SECRET"] == "$(HOME) $$ $5 $"
    assert variables["MUSTER_STORE_URL"] == "http://store/$(X)"
    told = json.loads(expanded(wiring.bootstrap_orders(changed, role), {**POD, "X": "stolen"}))
    assert told["url"].startswith("http://store/$(X)/v1/")


def test_tensorflow_is_told_who_else_there_is() -> None:
    of_job = submission("tensorflow")
    config = json.loads(expanded(wiring.variables(of_job, of_job.job.roles[2])["TF_CONFIG"], POD))
    name = "train-0a1b2c3d4e5f-1"
    assert config == {
        "cluster": {
            "chief": [f"{name}-chief-0-0.{name}:2222"],
            "worker": [f"{name}-worker-0-{index}.{name}:2222" for index in range(3)],
            "ps": [f"{name}-ps-0-{index}.{name}:2222" for index in range(2)],
        },
        "task": {"type": "ps", "index": 1},
    }


@pytest.mark.parametrize(
    ("example", "expected"),
    [("torchrun-script", True), ("torchrun", False), ("horovod", False), ("single", False)],
)
def test_a_script_that_calls_torchrun_itself_finds_its_options(example: str, expected: bool) -> None:
    of_job = submission(example)
    told = {
        name: expanded(value, POD)
        for name, value in wiring.variables(of_job, of_job.job.roles[0]).items()
        if name.startswith("PET_")
    }
    name = of_job.job_id
    wanted = {
        "PET_NNODES": "2",
        "PET_NPROC_PER_NODE": "4",
        "PET_NODE_RANK": "1",
        "PET_MASTER_ADDR": f"{name}-worker-0-0.{name}",
        "PET_MASTER_PORT": "29500",
    }
    assert told == (wanted if expected else {})


def test_nccl_is_told_something_only_where_there_are_gpus() -> None:
    of_job = submission("tensorflow")
    nccl = {
        role.name: {name for name in wiring.variables(of_job, role) if name.startswith("NCCL")}
        for role in of_job.job.roles
    }
    assert nccl == {"chief": set(), "worker": {"NCCL_DEBUG", "NCCL_SOCKET_IFNAME"}, "ps": set()}


def test_an_address_inside_a_version_is_mounted_alone() -> None:
    assert wiring.version_path("volume://flights/features@7") == "v/flights/features/7/data"
    assert (
        wiring.version_path("volume://flights/features@7/part/a.csv")
        == "v/flights/features/7/data/part/a.csv"
    )


def test_a_gang_of_ten_thousand_is_named_in_time() -> None:
    of_job = replace(
        submission("single"),
        job=job(
            Role(replicas=10_000, entrypoint="a:b", resources=Resources()),
            launcher=Launcher.TORCHRUN,
            inputs={"a": Input(versions=(Pinned(address="a@1", digest=DIGEST),))},
        ),
    )
    assert of_job.host(of_job.job.roles[0], 9_999).endswith("-main-0-9999.train-0a1b2c3d4e5f-1")


def asking(source: str, name: str) -> Submission:
    asked = job(secrets={"KEY": SecretRef(source=source, name=name)})
    return Submission(job=asked, job_id="t-1", attempt=1, site=SITE, cluster=KUEUE)


def test_the_secret_holds_the_token_the_program_and_what_was_looked_up() -> None:
    given = {"MLFLOW_TRACKING_PASSWORD": "s3cret", "API_KEY": "not asked for here"}
    example = EXAMPLES["torchrun"]
    submission = Submission(job=example.job, job_id="t-1", attempt=1, site=SITE, cluster=KUEUE)
    assert wiring.secret_data(submission, token="t", values=given) == {
        "token": "t",
        "orders.json": wiring.orders(submission),
        "bootstrap.py": inspect.getsource(bootstrap),
        "env.MLFLOW_TRACKING_PASSWORD": "s3cret",
    }


def test_a_secret_that_nobody_looked_up_is_named_and_its_value_never_written() -> None:
    asked = asking("environment", "API_KEY")
    with pytest.raises(SpecError, match="secret KEY: the submitter did not look up environment 'API_KEY'"):
        wiring.secret_data(asked, token="t", values={})
    with pytest.raises(
        SpecError, match=r"job flights.train: its spec and secrets are 20\d{5} bytes"
    ) as refused:
        wiring.secret_data(asked, token="t", values={"KEY": "hunter2" * 200_000 + "x" * 600_000})
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("value", ["hunter2\0", "hunter2\udcff"])
def test_a_value_that_no_variable_can_hold_is_refused_and_not_shown(value: str) -> None:
    with pytest.raises(SpecError, match="secret KEY: its value holds") as refused:
        wiring.secret_data(asking("environment", "API_KEY"), token="t", values={"KEY": value})
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
        assert wiring.secret_variables(asking("kubernetes", name))
        return
    with pytest.raises(SpecError, match=message):
        wiring.secret_variables(asking("kubernetes", name))


def test_values_stay_out_of_all_but_the_secret() -> None:
    made = replace(EXAMPLES["torchrun"], values={"MLFLOW_TRACKING_PASSWORD": "hunter2"}).documents()
    *others, secret = made.owned
    assert "hunter2" in str(secret)
    assert "hunter2" not in str([made.owner, *others])
