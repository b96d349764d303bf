"""The types of ``muster``, whose names are imported when they are used."""

from muster.client.deployments import Deployment as Deployment
from muster.client.deployments import deployment as deployment
from muster.client.versions import Version as Version
from muster.client.versions import Versions as Versions
from muster.client.versions import put as put
from muster.client.versions import version as version
from muster.client.versions import versions as versions
from muster.core.errors import MusterError as MusterError
from muster.core.signature import signature as signature

__all__: list[str]
__version__: str
