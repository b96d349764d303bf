"""A Dag bundle of Airflow's whose versions are those of a volume.

::

    AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST='[{"name": "site",
      "classpath": "muster.ext.dags.bundle.VolumeDagBundle", "kwargs": {"volume": "site/dags@latest"}}]'

``muster volumes put site/dags dags/`` brings other Dags. A run keeps the version that it began with: its tasks, in any worker,
fetch that one, and gc keeps it as long.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

from airflow.dag_processing.bundles.base import BaseDagBundle, BundleVersion

from muster.airflow.attempts.database import used_versions
from muster.airflow.site import open_place
from muster.airflow.upstream import internals
from muster.core.address import Address, pinned
from muster.core.errors import SpecError
from muster.core.shipped import copy_whole
from muster.volumes.protocols import Store

PIN = "airflow/"
"""What begins the reason under which a version is pinned that runs which go on began with; a bundle's name follows."""


class VolumeDagBundle(BaseDagBundle):
    """Dags of a version of a volume. Its processes need the connection of ``[muster] connection``, with a token that may read.

    :param volume: which version, such as ``site/dags@latest``; of a folder in it ``site/dags@latest/dags``.
    :raises SpecError: the address is none, or selects several versions.
    """

    supports_versioning = True

    def __init__(self, *, volume: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._address = Address.parse(volume)
        if self._address.many:
            raise SpecError(
                f"volume is {volume!r:.120}: Dags come from one version, such as 'site/dags@latest'"
            )
        self.volume = self._address.volume
        self._newest = self.base_dir / "newest"  # a link, so that a file's path is the same in each version

    @property
    def path(self) -> Path:
        """The folder of the Dags."""
        return (self._folder(self.version) if self.version else self._newest) / self._address.path

    def initialize(self) -> None:
        """Have the run's version here, or the newest. :raises MusterError: it is in no store, or none answers."""
        if self.version:
            with closing(open_place()) as place:
                self._have(self.version, place.store)
        else:
            self.refresh()
        super().initialize()

    def get_current_version(self) -> BundleVersion:
        """The number of the version that is here."""
        return BundleVersion(version=self.version or self._newest.readlink().name)

    def refresh(self) -> None:
        """Take the version that the address selects now."""
        with closing(open_place()) as place:
            (found,) = place.store.resolve(str(self._address).removesuffix(f"/{self._address.path}"))
            version = str(found.number)
            self._have(version, place.store)
        with self.lock():
            new = self._newest.with_name("newer")
            new.unlink(missing_ok=True)
            new.symlink_to(self._folder(version))
            new.replace(self._newest)

    def _folder(self, version: str) -> Path:
        return self.versions_dir / version  # Airflow itself deletes those that no task has used for long

    def _have(self, version: str, store: Any) -> None:
        with self.lock():
            if (folder := self._folder(version)).exists():
                return
            self.versions_dir.mkdir(parents=True, exist_ok=True)
            copy_whole(store.path(pinned(self._address.volume, int(version))), folder)
            for each in (folder, *(one for one in folder.rglob("*") if one.is_dir())):
                each.chmod(0o755)  # what is in it is deleted some day, and folders of versions are read-only


def keep_used(store: Store) -> None:
    """Pin the versions that runs which go on began with, and no others, for each bundle of Airflow's setting that is a volume's."""
    bundles = [
        each
        for each in internals.DagBundlesManager().get_all_dag_bundles()  # type: ignore[no-untyped-call]
        if isinstance(each, VolumeDagBundle)
    ]
    using = used_versions() if bundles else set()
    for bundle in bundles:
        reason = f"{PIN}{bundle.name}"
        for version in store.versions(bundle.volume):
            used = (bundle.name, str(version.number)) in using
            if used != (reason in version.pins):
                (store.pin if used else store.unpin)(version.address, reason=reason)
