"""Gangs of muster beside equal JobSets applied by hand: seconds to begin, to restart, and to free their GPUs.

The rows, each a median over pairs:

- *rank 0's first line*: from the operator's start beside ``kubectl apply``, of the same torch program.
- *killed rank 0 to its next line*: a program that goes on after rank 0's first line (by hand under torchrun, as in the
  first row). From the end of rank 0's pod to the next rank 0's first line, which is the user's wait.
- *killed pod to whole gang*: programs that only wait, until the API shows all new pods as Running. By hand these
  pods have one container and no volume; a gang of muster always has an init container and mounts the claim.
- *by hand with a claim and init*: the same, beside pods by hand with a claim and an init container.
- *last rank to free GPU*: of the first row's gangs, beside the promised seconds.
"""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Callable, Collection, Iterable
from functools import partial
from itertools import count
from textwrap import dedent
from typing import Any

from tests.cluster import kubectl
from tests.cluster.inside import NAMESPACE, pods_of
from tests.cluster.replay import AdmissionSample, PodSample, Recorder

from benchmarks.cluster_site import MUSTER, Site
from benchmarks.pairs import Ratio, compare, ratio
from muster.backends.kubernetes.labels import MAIN
from muster.core.job import JobSpec, Launcher, Role
from muster.core.resources import Resources

PODS = 2
CLASS = "gpu-a100"
RESOURCES = Resources(cpus=0.25, memory_gib=1, gpus=1, gpu_class=(CLASS,))
GRACE_SECONDS = 7
FREE_SECONDS = 2.0
SECONDS = 180.0

TRAIN = """
    import os, sys, time
    import torch.distributed as dist

    dist.init_process_group("gloo")
    if dist.get_rank() == 0:
        print("first line", time.time(), flush=True)
    dist.barrier()
    dist.destroy_process_group()
    print("last line", time.time(), flush=True)
    os._exit(0)
"""
RESUME = """
    import os, signal, time
    import torch.distributed as dist

    signal.signal(signal.SIGTERM, lambda *_: os._exit(143))
    dist.init_process_group("gloo")
    if dist.get_rank() == 0:
        print("first line", time.time(), flush=True)
    time.sleep(600)  # a rank that is to go on, until it is told
"""
WAIT = """
    import os, signal, time

    signal.signal(signal.SIGTERM, lambda *_: os._exit(143))
    time.sleep(600)  # a rank that is to go on, until it is told
"""
DAG = """
    from datetime import datetime
    from pathlib import Path
    import time

    from airflow.sdk import dag
    from muster.airflow import GangOperator, Resources

    @dag(schedule=None, start_date=datetime(2024, 1, 1))
    def start() -> None:
        GangOperator(
            task_id="train",
            image="train",
            command=["python", "train.py"],
            replicas={pods},
            launcher="torchrun",
            env={{"OMP_NUM_THREADS": "1"}},
            resources=Resources(cpus=0.25, memory_gib=1, gpus=1, gpu_class=("{gpu_class}",)),
            retries=0,
            on_execute_callback=lambda context: Path("{began}").write_text(str(time.time())),
        )

    start()
"""


def measure(site: Site, *, pairs: int) -> list[Ratio]:
    """Return the ratios of muster's gangs to JobSets by hand."""
    with Recorder(site.layout) as recorder:
        beside = Beside(site, recorder)
        first, free = compare(beside.started_by_hand, beside.started_by_muster, pairs=pairs)
        resumed = beside.resumes(pairs=pairs)
        again = beside.restarts(beside.apply_waiting, pairs=pairs)
        furnished = beside.restarts(beside.apply_furnished, pairs=pairs)
    allowed = [FREE_SECONDS] * pairs
    return [
        ratio("rank 0's first line", *first, unit="s", limit=1.3),
        ratio("killed rank 0 to its next line", *resumed, unit="s", limit=1.2),
        ratio("killed pod to whole gang", *again, unit="s", limit=1.2),
        ratio("  by hand with a claim and init", *furnished, unit="s", limit=1.2),
        ratio("last rank to free GPU, to 2 s", allowed, free[1], unit="s", limit=1.0),
    ]


class Beside:
    """Runs gangs in both ways, and reads the times of their events from their logs and from the API's watches."""

    def __init__(self, site: Site, recorder: Recorder) -> None:
        self._site = site
        self._recorder = recorder
        self._numbers = count()
        self._began = site.folder / "began"
        folder = site.folder / "dags" / "start"
        folder.mkdir(parents=True)
        told = {"pods": PODS, "gpu_class": CLASS, "began": self._began}
        (folder / "dag.py").write_text(dedent(DAG).format(**told))
        (folder / "train.py").write_text(dedent(TRAIN))

    def started_by_hand(self) -> tuple[float, float]:
        """Seconds from ``kubectl apply`` to the first line, and from the last rank's end to free GPUs."""
        name = f"hand-{next(self._numbers)}"
        document = job_set(self._site, name, image="train", script=TRAIN, torchrun=True)
        began = time.time()
        kubectl.apply(self._site.layout, [document])
        free_at = self._free_at(name)
        of_pods = [pod["metadata"]["name"] for pod in pods_of(self._site.layout, name)]
        words = (f"--namespace={NAMESPACE}",)
        lines = "\n".join(kubectl.run(self._site.layout, "logs", pod, *words) for pod in of_pods)
        self._site.clear()
        return _told("first", lines)[0] - began, free_at - max(_told("last", lines))

    def started_by_muster(self) -> tuple[float, float]:
        """Seconds from the operator's start to the first line, and from the last rank's end to free GPUs."""
        done = subprocess.run(
            [MUSTER, "run", "start", "--json"],
            cwd=self._site.folder,
            env=self._site.environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"muster run ended with {done.returncode}:\n{done.stderr[-4000:]}")
        (stage,) = json.loads(done.stdout)["stages"]
        data, _ = self._site.backend.store.ledger.read(stage["job_id"], after=0)
        lines = data.decode()
        free_at = self._free_at(stage["job_id"])
        self._site.clear()
        return _told("first", lines)[0] - float(self._began.read_text()), free_at - max(_told("last", lines))

    def resumes(self, *, pairs: int) -> tuple[list[float], list[float]]:
        """Seconds from the end of rank 0's pod to its next first line: by hand, and with muster."""
        (found,) = compare(
            partial(self.resumed, self.apply_training),
            partial(self.resumed, self.submit_training),
            pairs=pairs,
        )
        return found

    def resumed(self, begin: Callable[[str], None]) -> tuple[float]:
        """Seconds from the end of rank 0's pod to the first line of the next."""
        name = f"trains-{next(self._numbers)}"
        begin(name)
        before = {pod.name for pod in self._running(name, but=frozenset())}
        self._first_line(before)
        killed = self._kill(before)
        at = self._first_line({pod.name for pod in self._running(name, but=before)})
        self._site.clear()
        return (at - killed,)

    def restarts(self, by_hand: Callable[[str], None], *, pairs: int) -> tuple[list[float], list[float]]:
        """Seconds from a killed pod to a whole gang: by hand, and with muster."""
        (found,) = compare(
            partial(self.restarted, by_hand), partial(self.restarted, self.submit_waiting), pairs=pairs
        )
        return found

    def restarted(self, begin: Callable[[str], None]) -> tuple[float]:
        """Seconds from the end of one pod to all pods of the gang running again."""
        name = f"waits-{next(self._numbers)}"
        begin(name)
        before = {pod.name for pod in self._running(name, but=frozenset())}
        killed = self._kill(before)
        again = self._running(name, but=before)
        self._site.clear()
        return (max(pod.at for pod in again) - killed,)

    def apply_training(self, name: str) -> None:
        """Begin a gang by hand whose rank 0 prints its first line and goes on."""
        document = job_set(self._site, name, image="train", script=RESUME, torchrun=True)
        kubectl.apply(self._site.layout, [document])

    def submit_training(self, name: str) -> None:
        """Begin a gang of muster that does the same."""
        self._submit(name, image="train", script=RESUME, launcher=Launcher.TORCHRUN)

    def apply_waiting(self, name: str) -> None:
        """Begin a gang by hand that only waits."""
        document = job_set(self._site, name, image="python", script=WAIT)
        kubectl.apply(self._site.layout, [document])

    def apply_furnished(self, name: str) -> None:
        """Begin a gang by hand whose pods mount the claim and have an init container that does nothing.

        The cluster takes the time for both: 0.3 s for the first volume, a container's start, and up to a
        second until the kubelet sees its end.
        """
        document = job_set(self._site, name, image="python", script=WAIT)
        furnish(document, claim=self._site.cluster.claim)
        kubectl.apply(self._site.layout, [document])

    def submit_waiting(self, name: str) -> None:
        """Begin a gang of muster that only waits."""
        self._submit(name, image="python", script=WAIT, launcher=Launcher.PLAIN)

    def _submit(self, name: str, *, image: str, script: str, launcher: Launcher) -> None:
        role = Role(replicas=PODS, command=("python", "-u", "-c", dedent(script)), resources=RESOURCES)
        spec = JobSpec(
            name="benchmark.again",
            image=image,
            image_digest=self._site.digest(image),
            roles=(role,),
            launcher=launcher,
            env={"OMP_NUM_THREADS": "1"},
            grace_seconds=2.0,
        )
        self._site.backend.submit(spec, job_id=name)

    def _kill(self, pods: Collection[str]) -> float:
        """Delete the pod of a gang's rank 0, which has the smallest name; return the time."""
        killed = time.time()
        words = ("delete", "pod", min(pods), f"--namespace={NAMESPACE}", "--wait=false")
        kubectl.run(self._site.layout, *words)
        return killed

    def _first_line(self, pods: Collection[str]) -> float:
        """Return the time of rank 0's first line, from the log of its pod, which has the smallest name."""
        at: list[float] = []
        words = ("logs", min(pods), f"--namespace={NAMESPACE}", f"--container={MAIN}")

        def look() -> bool:
            at[:] = _told("first", kubectl.ask(self._site.layout, *words))
            return bool(at)

        kubectl.until(f"{min(pods)} says its first line", look, seconds=SECONDS)
        return at[0]

    def _running(self, name: str, *, but: Iterable[str]) -> list[PodSample]:
        """Wait until all pods of one start of the gang run; return the first sample in which each did."""
        found: dict[str, PodSample] = {}

        def look() -> bool:
            found.clear()
            for sample in self._recorder.samples:
                if isinstance(sample, PodSample) and sample.gang == name and sample.runs:
                    found.setdefault(sample.name, sample)
            for gone in but:
                found.pop(gone, None)
            return len(found) >= PODS

        kubectl.until(f"{name} runs", look, seconds=SECONDS)
        return list(found.values())

    def _free_at(self, name: str) -> float:
        """Return the time when all of a gang's GPUs were free: its pods had ended, and Kueue no longer counted it."""
        at: list[float] = []

        def look() -> bool:
            ended: dict[str, float] = {}
            for sample in self._recorder.samples:
                if sample.gang == name and _is_end(sample):
                    who = sample.name if isinstance(sample, PodSample) else ""
                    ended.setdefault(who, sample.at)
            at[:] = ended.values()
            return len(ended) == PODS + 1

        kubectl.until(f"the GPUs of {name} are free", look, seconds=SECONDS)
        return max(at)


def _is_end(sample: PodSample | AdmissionSample) -> bool:
    if isinstance(sample, AdmissionSample):
        return sample.finished
    return sample.gone or sample.phase in ("Succeeded", "Failed")


def _told(which: str, lines: str) -> list[float]:
    """Return the times that the ranks printed."""
    return [float(text) for text in re.findall(rf"{which} line ([0-9.]+)", lines)]


def job_set(site: Site, name: str, *, image: str, script: str, torchrun: bool = False) -> dict[str, Any]:
    """Return a JobSet by hand for the same gang: the same image, queue, cards and rules."""
    command = ["python", "-u", "-c", dedent(script)]
    if torchrun:
        command = ["python", "-m", "torch.distributed.run", "--no-python", *command]
    rendezvous = {
        "PET_NNODES": str(PODS),
        "PET_NPROC_PER_NODE": "1",
        "PET_MASTER_ADDR": f"{name}-w-0-0.{name}",
        "PET_MASTER_PORT": "29500",
    }
    index = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
    variables = {"OMP_NUM_THREADS": "1", "HOME": "/tmp", **rendezvous}
    amounts = {"memory": "1Gi", "nvidia.com/gpu": str(RESOURCES.gpus)}
    container = {
        "name": MAIN,
        "image": site.cluster.image(image, site.digest(image)),
        "command": command,
        "env": [
            *({"name": key, "value": text} for key, text in variables.items()),
            {"name": "PET_NODE_RANK", "valueFrom": {"fieldRef": {"fieldPath": index}}},
        ],
        "resources": {"requests": {"cpu": "250m", **amounts}, "limits": amounts},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    pod = {
        "metadata": {"annotations": {"kueue.x-k8s.io/podset-unconstrained-topology": "true"}},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": GRACE_SECONDS,
            "automountServiceAccountToken": False,
            "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
            "nodeSelector": {"muster.dev/gpu-class": CLASS},
            "containers": [container],
        },
    }
    disrupted = {
        "action": "FailJob",
        "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
    }
    job = {
        "parallelism": PODS,
        "completions": PODS,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        "podFailurePolicy": {"rules": [disrupted]},
        "template": pod,
    }
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "labels": {"kueue.x-k8s.io/queue-name": site.cluster.queue},
        },
        "spec": {
            "suspend": True,
            "failurePolicy": {"maxRestarts": 3, "restartStrategy": "BlockingRecreate"},
            "replicatedJobs": [{"name": "w", "replicas": 1, "template": {"spec": job}}],
        },
    }


def furnish(document: dict[str, Any], *, claim: str) -> None:
    """Add to the pods of a JobSet a claim, a folder, and an init container that could fill it."""
    pod = document["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    (main,) = pod["containers"]
    folder = {"name": "folder", "mountPath": "/mnt/folder"}
    init = {key: main[key] for key in ("image", "securityContext")}
    pod["initContainers"] = [
        {**init, "name": "init", "command": ["python", "-I", "-c", "pass"], "volumeMounts": [folder]}
    ]
    main["volumeMounts"] = [folder, {"name": "claim", "mountPath": "/mnt/claim", "readOnly": True}]
    pod["volumes"] = [
        {"name": "folder", "emptyDir": {}},
        {"name": "claim", "persistentVolumeClaim": {"claimName": claim}},
    ]
