"""The types of ``muster``, whose names are imported when they are used."""

from muster.client.deployments import Deployment as Deployment, deployment as deployment
from muster.client.versions import (
    Version as Version,
    Versions as Versions,
    put as put,
    version as version,
    versions as versions,
)
from muster.core.errors import MusterError as MusterError
from muster.core.signature import signature as signature

__all__: list[str]
__version__: str
