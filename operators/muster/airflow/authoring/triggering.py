"""The versions that triggered a run, their inputs and their lineage, for the Dag file of a consumer.

A Dag that is scheduled by a volume's asset names the versions of the events that started it::

    model = triggering("flights/model")
    JobOperator(
        task_id="card",
        inputs={"models": model, "test": model.input("test")},
        params={"lineage": model.lineage},
    )

Airflow gathers events that come close together into one run, so it is always a list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from muster.airflow.authoring.references import Late
from muster.core.address import SCHEME, Address
from muster.core.errors import SpecError

if TYPE_CHECKING:
    from muster.volumes.base import Version
    from muster.volumes.protocols import Store


class Triggering(Late):
    """The versions of one volume whose events triggered this run; see :func:`triggering`."""

    def __init__(self, volume: str, *, otherwise: str) -> None:
        self._volume = volume
        self._otherwise = otherwise

    def resolve(self, context: Mapping[str, Any]) -> list[str]:
        """Return pinned addresses, oldest partition first; the same in every field of one try."""
        return [version.address for version in self.told(context)[1]]

    def input(self, name: str) -> Late:
        """The versions that they were made from, of one input; each once."""
        return _OfVersions(
            f"{self}.input({name!r})",
            lambda store, versions: list(
                dict.fromkeys(
                    pinned.address for version in versions for pinned in _inputs(store, version, name)
                )
            ),
            self,
        )

    @property
    def lineage(self) -> Late:
        """The lineage of each, in their order, as JSON: its record, and in short all versions that it was made from."""
        return _OfVersions(
            f"{self}.lineage", lambda store, versions: [_lineage(store, each) for each in versions], self
        )

    def told(self, context: Mapping[str, Any]) -> tuple[Store, list[Version]]:
        """The versions, and the store they lie in."""
        from muster.airflow.attempts.verdicts import translated
        from muster.airflow.site import connect

        with translated():
            store = connect().store
            kept = context.setdefault(f"muster.{self}.{self._otherwise}", [])  # type: ignore[attr-defined]  # Airflow's is a dict
            if not kept:
                kept += self._named(store, context)
            return store, [store.resolve(address)[0] for address in kept]

    def _named(self, store: Store, context: Mapping[str, Any]) -> list[str]:
        newest = {
            version.partition: version
            for event in _events(context, self._volume)
            for version in _announced(store, event, self._volume)
        }
        if newest:
            return [newest[key].address for key in sorted(newest, key=lambda key: key or "")]
        otherwise = context["dag"].get_template_env().from_string(self._otherwise).render(**context)
        return [version.address for version in store.resolve(otherwise)]

    def __str__(self) -> str:
        return f"triggering({self._volume!r})"


class _OfVersions(Late):
    """A value that is read from the triggering versions."""

    def __init__(self, name: str, read: Callable[[Store, list[Version]], Any], of: Triggering) -> None:
        self._name = name
        self._read = read
        self._of = of

    def resolve(self, context: Mapping[str, Any]) -> Any:
        """Read it from the store."""
        from muster.airflow.attempts.verdicts import translated

        store, versions = self._of.told(context)
        with translated():
            return self._read(store, versions)

    def __str__(self) -> str:
        return self._name


def triggering(volume: str, *, otherwise: str | None = None) -> Triggering:
    """Name the versions of `volume` whose events triggered this run, of each partition the newest.

    :param otherwise: the address where no event did, as in a run by hand; the volume's newest version
        where not given. (templated)
    :raises SpecError: it is no volume's name.
    """
    name = volume.removeprefix(SCHEME)
    if Address.parse(name).volume != name:
        raise SpecError(f"triggering({volume!r:.120}): an event is of a volume, such as 'flights/model'")
    return Triggering(name, otherwise=otherwise or f"{SCHEME}{name}@latest")


def _events(context: Mapping[str, Any], volume: str) -> Iterator[Any]:
    """The events of a volume's asset, oldest first."""
    events = context.get("triggering_asset_events") or {}
    for asset in events:
        if getattr(asset, "uri", None) == f"{SCHEME}{volume}":
            yield from sorted(events[asset], key=lambda event: event.timestamp)


def _announced(store: Store, event: Any, volume: str) -> list[Version]:
    """The versions that an event tells of; none for one that a person made by hand.

    :raises SpecError: this store holds another version under its address, or it is of another volume.
    """
    address, digest = event.extra.get("version"), event.extra.get("digest")
    if address is None:
        return []
    (newest,) = store.resolve(address)
    if newest.digest != digest:
        raise SpecError(
            f"the event announced {address} as {digest!r:.24}, here it is {newest.digest:.20}…: "
            "it came from another store; give its version by hand"
        )
    versions = [version for each in event.extra.get("versions", [address]) for version in store.resolve(each)]
    for version in versions:
        if version.volume != volume:
            raise SpecError(f"the event of {volume} announced {version.address}: give its version by hand")
    return versions


def _lineage(store: Store, version: Version) -> dict[str, Any]:
    from muster.volumes.lineage import document  # here: a Dag file that only names it does not pay for it

    return document(store, version.address)


def _inputs(store: Store, version: Version, name: str) -> Any:
    inputs = store.record(version.address).inputs
    if name not in inputs:
        raise SpecError(
            f"{version.address} was made without an input {name!r:.60}; its inputs are "
            f"{', '.join(sorted(inputs)) or 'none'}"
        )
    return inputs[name]
