"""The variables that ranks start with: few, named here, and nothing else of the submitter's environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from muster.backends.tracking import tracking_database, tracking_uri
from muster.core.job import JobSpec
from muster.core.settings import Settings

# What a machine needs to work at all: drivers, certificates, proxies.
_PASSED = (
    "CUDA_HOME",
    "CUDA_PATH",
    "HOME",
    "LD_LIBRARY_PATH",
    "LOGNAME",
    "NO_PROXY",
    "HTTPS_PROXY",
    "HTTP_PROXY",
    "REQUESTS_CA_BUNDLE",
    "SSL_CERT_DIR",
    "SSL_CERT_FILE",
    "USER",
    "http_proxy",
    "https_proxy",
    "no_proxy",
)
# Some libraries tell their makers of their use, and keep a name for the machine in its user's HOME.
NO_TELEMETRY = {
    "DO_NOT_TRACK": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",  # else ~/.config/mlflow
    "ORT_DISABLE_TELEMETRY": "1",  # else ~/.cache/Microsoft
}
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def variables(
    job: JobSpec, *, python: Path, settings: Settings, secrets: Mapping[str, str]
) -> dict[str, str]:
    """Return what every worker of a job, and so its ranks, find in their environment.

    :param python: the image's; its folder comes first on PATH.
    """
    programs = python.parent
    return {
        **{name: os.environ[name] for name in _PASSED if name in os.environ},
        "PATH": f"{programs}:{_SYSTEM_PATH}",
        "LANG": "C.UTF-8",
        "VIRTUAL_ENV": str(programs.parent),
        "MLFLOW_TRACKING_URI": tracking_uri(tracking_database(settings.home)),
        "MPLCONFIGDIR": str(settings.cache / "matplotlib"),  # else in HOME
        **NO_TELEMETRY,
        **job.env,
        **secrets,
    }
