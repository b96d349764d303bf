"""Where this Airflow's tasks work: the backend, its settings, and the name of the Airflow itself."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from muster.backends.base import Backend
from muster.core.errors import SpecError
from muster.core.settings import Settings

INSTANCE = "instance"


def connect(settings: Settings | None = None) -> Backend:
    """Return the backend that the settings name. Nothing is started, and it costs a few milliseconds."""
    from muster.backends.local import LocalBackend

    return LocalBackend(settings or Settings.load())


def instance(settings: Settings) -> str:
    """Return the name of this Airflow: ``[muster] instance``, or one made once and kept in MUSTER_HOME.

    :raises SpecError: the home cannot be written.
    """
    from airflow.sdk.configuration import conf

    configured = str(conf.get("muster", "instance", fallback=""))
    return configured or _kept(settings.home / INSTANCE)


def _kept(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        pass
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(secrets.token_hex(4) + "\n", encoding="utf-8")
        try:
            os.link(temporary, path)  # of two that come together one wins, and both read its name
        except FileExistsError:
            pass
        finally:
            temporary.unlink()
        return path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise SpecError(f"MUSTER_HOME {path.parent} cannot be written: {error}") from error
