"""What to do next about each cause of a job's end, so that one cause gets one advice wherever it is found."""

from __future__ import annotations

from typing import TYPE_CHECKING

from muster.core.verdict import Cause, Verdict

if TYPE_CHECKING:
    from muster.core.job import JobSpec

_ADVICE = {
    Cause.USER_ERROR: "mend the code{place} and run again; earlier stages are kept",
    Cause.SPEC_ERROR: "mend the Dag, or the code or image that the message names; asking again cannot help",
    Cause.OUT_OF_MEMORY: "raise memory_gib in its resources, or hold less at once{place} (smaller batches, fewer ranks)",
    Cause.GPU_OUT_OF_MEMORY: "make the batch smaller{place}, or ask for a GPU class with more memory",
    Cause.RANK_LOST: "it was started as often as max_restarts allows: look for who kills it (kill -9, too little memory); "
    "the log's last lines may say",
    Cause.HANG: "every rank's stack is in the log: often one waits in a collective that another never enters; if all were "
    "busy, raise hang_timeout",
    Cause.IDLE: "find what it waits for in the log's last lines, or raise idle=; when it runs again it goes on from its checkpoint",
    Cause.RUN_TIMEOUT: "raise the timeout, or find what takes so long in its log",
    Cause.EVICTED: "it goes on from its checkpoint at the next try; a higher priority is preempted less often",
    Cause.NODE_LOST: "it goes on from its checkpoint at the next try, on another node",
    Cause.UNSCHEDULABLE: "ask for less, or run it on a bigger machine",
    Cause.IMAGE_UNAVAILABLE: "see uv's last lines in the log, mend the image and run again",
    Cause.CANCELLED: "nothing was sealed; what was saved to checkpoints is kept",
    Cause.COMMIT_FAILED: "mend what the message or the log's last lines name, then run again",
    Cause.BACKEND_ERROR: "run it again; if it happens again, report it with its last lines in the log",
}


def advice_on(cause: Cause, *, where: str = "") -> str:
    """Return what to do about a cause.

    :param where: in the code, such as ``train.py:3``.
    """
    return _ADVICE[cause].format(place=f" at {where}" if where else "")


def usual(cause: Cause, message: str, *, rank: int | None = None) -> Verdict:
    """Return the verdict with the cause's own advice."""
    return Verdict(cause=cause, message=message, advice=advice_on(cause), rank=rank)


SHIPPED = frozenset(
    [
        "dask",
        "etl",
        "horovod",
        "ingest",
        "keras",
        "kserve",
        "mlflow",
        "notebook",
        "python",
        "ray",
        "report",
        "seldon",
        "serve",
        "spark",
        "tables",
        "train",
        "validate",
    ]
)
"""The images of muster that jobs run in: their folders belong to the installation."""
HOLDERS = {
    **dict.fromkeys(("lightgbm", "sklearn", "skops", "xgboost"), "tables"),
    **dict.fromkeys(("dask", "ray", "mlflow"), None),
    "distributed": "dask",
    "torch": "train",
    "tensorflow": "keras",
    "pyspark": "spark",
    "great_expectations": "validate",
    "pandas": "etl",
}
"""The shipped image that holds what is imported by this name; None is one of the same name."""
_PACKAGES = {
    "bs4": "beautifulsoup4",
    "Crypto": "pycryptodome",
    "cv2": "opencv-python-headless",
    "dateutil": "python-dateutil",
    "docx": "python-docx",
    "dotenv": "python-dotenv",
    "faiss": "faiss-cpu",
    "git": "GitPython",
    "jwt": "PyJWT",
    "MySQLdb": "mysqlclient",
    "OpenSSL": "pyOpenSSL",
    "PIL": "pillow",
    "pkg_resources": "setuptools<81",
    "psycopg2": "psycopg2-binary",
    "serial": "pyserial",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "umap": "umap-learn",
    "yaml": "PyYAML",
    "zmq": "pyzmq",
}


def adding(package: str, image: str) -> str:
    """Return how a package is added to an image: a shipped one is copied first."""
    if image not in SHIPPED:
        return f"add {package} to images/{image}/requirements.in and run `muster images lock {image}`"
    mine = f"my{image}"
    return (
        f"run `muster images copy {image} {mine}`, add {package} to images/{mine}/requirements.in, run `muster images lock {mine}`, "
        f'and take image="{mine}"'
    )


def lacking(name: str, image: str) -> str:
    """Say that an image lacks what is imported by a name, which image has it, and how it is added."""
    package, holder = _PACKAGES.get(name, name), HOLDERS.get(name, "") or name
    there = f'image {holder} has it, image="{holder}"; or ' if name in HOLDERS and holder != image else ""
    return f"image {image} has no {package}: {there}{adding(package, image)}"


def missing_package(module: str, spec: JobSpec) -> str:
    """Return what to do where a job imports what its environment lacks."""
    name = module.partition(".")[0]
    package = _PACKAGES.get(name, name)
    if spec.interpreter is not None:
        return (
            f"install {package} into {spec.interpreter.path}, which runs image {spec.image} on this machine in place of its lock, "
            "or mend the import"
        )
    return f"{lacking(name, spec.image)}, or mend the import"


def uncommitted(cause: Cause, job_id: str, *, empty: bool = False) -> str:
    """Return what to do where a job sealed what it wrote, and that was not committed.

    :param empty: it wrote nothing.
    """
    if empty:
        return "let the code write into the folder of each output, {outputs.NAME} in a command, or end with another exit status; then run again"
    what = "the code that writes it" if cause is Cause.USER_ERROR else "what the message names"
    return f"mend {what} and run again; what it wrote: muster jobs get {job_id}"


def one_replica(spec: JobSpec) -> str:
    """Return what a script wants that lets the first rank of each machine write."""
    return f"a script that lets LOCAL_RANK 0 write wants `ranks={spec.world_size}` in one replica"
