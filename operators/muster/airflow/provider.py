"""What Airflow's provider discovery is told of muster. Imports nothing of Airflow, which calls it while it starts."""

from __future__ import annotations

from typing import Any

from muster import __version__
from muster.airflow import modules
from muster.core.extensions import added, extensions

_DECORATORS = dict.fromkeys(("job", "gang"), "muster.airflow.operators.decorators")
LINKS = (
    "JobLink",
    "CandidateLink",
    "ChampionLink",
    "VersionsLink",
    "ReportLink",
    "DataDocsLink",
    "TrackingLink",
    "DeploymentLink",
    "EndpointLink",
)
OPTIONS: dict[str, dict[str, Any]] = {
    "connection": {
        "description": "The connection, of type `kubernetes`, of the cluster that jobs go to; its "
        "extras say under `muster` which claim and store service. Empty: this machine, or the "
        "cluster that the file MUSTER_CLUSTER describes.",
        "example": "gpu_cluster",
    },
    "instance": {
        "description": "The name of this Airflow in the ids and records of its jobs. Two Airflows "
        "that share a store need two names. Empty: made once and kept in MUSTER_HOME; on a "
        "cluster it must be set.",
        "example": "production",
    },
    "mirror": {
        "description": "A mirror of the store, as `muster volumes mirror` names it. Versions that the "
        "store lacks are read from there, and nothing is written to it. Empty: none.",
        "example": "s3://bucket/muster",
    },
    "inline_wait": {
        "description": "Seconds that a task waits for its job in its own process, before it is "
        "deferred and the triggerer waits for it. 0 defers at once.",
        "type": "float",
        "example": "5",
        "default": "20",
    },
    "checkpoint_days": {
        "description": "Days that the checkpoints of a task are kept that failed or was ended, for "
        "its next try to go on from. A success takes them away.",
        "type": "float",
        "example": "30",
        "default": "7",
    },
    "run_days": {
        "description": "Days after which `muster up` and `muster run` delete rows and logs of a run that "
        "has ended, in their own databases and folders. 0 keeps all.",
        "type": "float",
        "example": "90",
        "default": "30",
    },
    "cache": {
        "description": "Whether a stage takes versions that were made of the same code, image, inputs "
        "and params, and runs nothing. A Dag may say otherwise.",
        "type": "boolean",
        "example": "True",
        "default": "False",
    },
    "interpreter.NAME": {
        "description": "The path of a Python that runs the jobs of the image NAME on this machine, unlocked, in "
        "place of an environment made from its lock. The variable MUSTER_INTERPRETER_NAME wins, with `_` for "
        "`-`. A cluster does not look at it.",
        "example": "/opt/conda/bin/python",
    },
    "plugin": {
        "description": "Whether Airflow's components load muster's plugin: the page, and the listener by which "
        "the scheduler and the triggerer mind the jobs of muster's tasks. Without it a job of a task that was "
        "cleared or marked failed runs until the Dag `muster_maintenance` ends it.",
        "type": "boolean",
        "example": "False",
        "default": "True",
    },
    "mlflow_url": {
        "description": "Where people find what `muster mlflow` shows: a task's link *MLflow run* leads "
        "there. To be set where it has another port, or is reached from another machine. Empty: "
        "http://127.0.0.1:5000, where that answers; where it does not, there is no such link.",
        "example": "https://gpu-box.example/mlflow",
    },
    "lineage_namespace": {
        "description": "The namespace of this store's volumes in OpenLineage's events. Empty: the store's "
        "address. To be set where several machines reach one store under several addresses, or where the "
        "name of a machine changes.",
        "example": "muster://lab",
    },
    "maintenance": {
        "description": "Whether the Airflow of `muster up` has the Dag `muster_maintenance` where the "
        "folder of Dags has none of its own. Other Airflows have the Dags that their folders hold.",
        "type": "boolean",
        "example": "False",
        "default": "True",
    },
}
"""The settings under ``[muster]``, but those of extensions; what an entry lacks is as in :data:`_OPTION`."""

# Airflow refuses the whole description where an option has no example.
_OPTION: dict[str, Any] = {"version_added": "0.1.0", "type": "string", "example": None, "default": ""}


def get_provider_info() -> dict[str, Any]:
    """Return the provider's description in the form of Airflow's ``provider_info.schema.json``."""
    return {
        "package-name": "airflow-provider-muster",
        "name": "muster",
        "description": "The whole road of a model in one Dag: ETL, validation, gang-scheduled training, "
        "gate and deployment.",
        "versions": [__version__],
        "integrations": [{"integration-name": "muster", "tags": ["software"]}],
        "operators": [
            {
                "integration-name": "muster",
                "python-modules": sorted(
                    {module for name, module in modules().items() if name.endswith("Operator")}
                ),
            }
        ],
        "task-decorators": [
            {"name": name, "class-name": f"{module}.{name}"}
            for name, module in {**_DECORATORS, **added(lambda each: each.decorators)}.items()
        ],
        "extra-links": [
            *(f"muster.airflow.links.{name}" for name in LINKS),
            *(link for each in extensions().values() for link in each.links),
        ],
        "config": {
            "muster": {
                "description": "How this Airflow's tasks find muster.",
                "options": {
                    name: {**_OPTION, **option}
                    for name, option in {**OPTIONS, **added(lambda each: each.settings)}.items()
                },
            }
        },
    }
