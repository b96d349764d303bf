"""MirrorOperator: a mirror of the store that a task brings up, on the Dag's schedule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

from muster.airflow.authoring.checks import check_flag, check_line, if_known, optional
from muster.airflow.authoring.keywords import keyword
from muster.airflow.authoring.references import keep_types
from muster.airflow.operators.base import MusterOperator
from muster.core.errors import Corrupt
from muster.core.ingest import check_connection
from muster.core.names import check_volume

if TYPE_CHECKING:
    from airflow.sdk import Context

    from muster.ext.mirrors.copying import Mirrored


def _check_volumes(value: Any) -> None:
    """Refuse what is neither a volume nor a list of them."""
    for volume in value if isinstance(value, (list, tuple)) else [value]:
        check_volume(volume)


class MirrorOperator(MusterOperator):
    """Bring a mirror up to the store: the versions that it lacks, and pins, retirements and deletions.

    As ``muster volumes mirror``. A task that is ended goes on with the next. It fails where a version is damaged here, or
    arrived so; the others are brought.
    """

    ui_color = "#f1f3f4"

    target: str = keyword(check=if_known(check_line), templated=True)
    """A folder, the address of a store service (``http://…``), or a URL of fsspec such as ``s3://bucket/muster``."""
    target_conn_id: str | None = keyword(default=None, check=optional(check_connection))
    """The connection of the target: its password is the token of a store service; else its extras are options of the
    file system, and login and password are ``key`` and ``secret``."""
    volumes: list[str] | str = keyword(
        default=(), read=keep_types, check=if_known(_check_volumes), templated=True
    )
    """Only these volumes; by default all."""
    keep_deleted: bool | str = keyword(
        default=False, read=keep_types, check=if_known(check_flag), templated=True
    )
    """What gc deletes here stays in the mirror."""
    verify: bool | str = keyword(default=True, read=keep_types, check=if_known(check_flag), templated=True)
    """Read what was written again, and compare its digests."""

    def changes(self) -> Sequence[str]:
        """Those of its keyword, or all: the task sends them away."""
        return [self.volumes] if isinstance(self.volumes, str) else [*self.volumes] or ["*"]

    def perform(self, context: Context) -> dict[str, Any]:  # noqa: ARG002 - it is about the whole store
        """Bring the mirror up, and return the sums."""
        from muster.airflow.site import connect
        from muster.core.settings import Settings
        from muster.ext.mirrors.copying import Copying
        from muster.ext.mirrors.opening import home_of, open_home

        self.check_keywords()  # they are rendered by now
        names = [self.volumes] if isinstance(self.volumes, str) else list(self.volumes)
        token, options = self._access()
        with (
            closing(home_of(connect().store)) as source,
            closing(
                open_home(self.target, Settings.load(), make=True, token=token, options=options)
            ) as target,
        ):
            done = Copying(
                source,
                target,
                volumes=names,
                keep_deleted=bool(self.keep_deleted),
                verify=bool(self.verify),
            ).run()
        self.log.info("%s", sentence(done, self.target))
        if not done.whole:
            bad = {**done.damaged, **{address: "; ".join(wrong) for address, wrong in done.wrong.items()}}
            raise Corrupt(
                f"{len(bad)} versions are not whole in {self.target}: "
                + "; ".join(f"{address}: {why}" for address, why in list(bad.items())[:3])
            )
        return {
            "brought": len(done.versions),
            "sent_bytes": done.sent_bytes,
            "present": done.present,
            "marked": done.marked,
        }

    def _access(self) -> tuple[str, Mapping[str, Any]]:
        """Return a store service's token, and the options of a file system."""
        if self.target_conn_id is None:
            return "", {}
        from muster.airflow.site import airflow_connection

        found = airflow_connection(self.target_conn_id)
        keys = {"key": found.login, "secret": found.password}
        return found.password or "", {
            **{name: value for name, value in keys.items() if value},
            **found.extra_dejson,
        }


def sentence(done: Mirrored, target: str) -> str:
    """What was done, for people."""
    return (
        f"{len(done.versions)} versions brought to {target} ({done.sent_bytes:,} B), {done.present} were there, "
        f"marks of {done.marked} changed"
    )
