"""``muster volumes mirror`` and ``restore``: a second home of versions, and the way back."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any

import typer

from muster.cli.command import Json, example, open_store
from muster.cli.progress import progress
from muster.cli.screen import emit, note, safe, say, size
from muster.core.address import SCHEME, Address, Select
from muster.core.errors import Conflict, MusterError
from muster.core.settings import Settings
from muster.core.shipped import need
from muster.core.wire import plain

if TYPE_CHECKING:
    from muster.ext.mirrors.base import Home
    from muster.ext.mirrors.copying import Mirrored
    from muster.volumes.commit_records import Place

_DIGEST = re.compile(r"b3:[0-9a-f]{8,64}")

Volumes = Annotated[
    list[str] | None,
    typer.Option("--volumes", metavar="VOLUME", help="Only these, repeated or with commas; by default all."),
]
KeepDeleted = Annotated[
    bool, typer.Option("--keep-deleted", help="What gc deletes here stays in the mirror.")
]
Verify = Annotated[
    bool, typer.Option("--verify/--no-verify", help="Read what was written again, and compare its digests.")
]


def mirror(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET", help="A folder, a store service (http://…), or a URL of fsspec such as s3://…"
        ),
    ],
    *,
    volumes: Volumes = None,
    watch: Annotated[bool, typer.Option("--watch", help="Go on, until Ctrl-C.")] = False,
    every: Annotated[
        float | None,
        typer.Option("--every", min=1, help="With --watch: seconds between two looks; 60 if not given."),
    ] = None,
    keep_deleted: KeepDeleted = False,
    verify: Verify = True,
    now: Annotated[
        bool,
        typer.Option(
            "--now", help="Free the space of what is deleted in the mirror at once, not after an hour."
        ),
    ] = False,
    plain_folder: Annotated[
        bool,
        typer.Option(
            "--plain", help="A new folder holds files that can be read without muster, not a store."
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Bring a mirror up to this store: same numbers, same digests.

    Only missing content travels, what is served or pinned first; pins, retirements and deletions follow. It may be ended
    at any moment, and goes on there the next time. The mirror of a store takes nothing from another one. The token of a
    store service is read from MUSTER_MIRROR_TOKEN. The exit code is 1 if a version is damaged here, or arrived so.
    With --watch, --json prints one document for each look.
    """
    from muster.ext.mirrors.opening import home_of, open_home

    need("mirrors", what="muster volumes mirror")
    if every is not None and not watch:
        raise typer.BadParameter("--every is for --watch: give both, or neither")
    pause = 60.0 if every is None else every
    names, store = _names(volumes), open_store()
    while True:
        try:
            with (
                closing(home_of(store)) as source,
                closing(open_home(target, Settings.load(), make=True, plain=plain_folder)) as home,
            ):
                done = _copy(source, home, volumes=names, keep_deleted=keep_deleted, verify=verify, now=now)
        except MusterError as error:
            if not watch:
                raise
            note(f"{safe(error)}; the next look is in {pause:g} s", style="yellow")
        else:
            _show(done, at=target, source="this store", as_json=as_json)
            if not watch:
                raise typer.Exit(0 if done.whole else 1)
        time.sleep(pause)  # --every


def restore(
    *,
    source: Annotated[
        str, typer.Option("--from", metavar="MIRROR", help="As TARGET of `muster volumes mirror`.")
    ],
    volumes: Volumes = None,
    expect: Annotated[
        list[str] | None,
        typer.Option(
            metavar="VERSION=DIGEST",
            help="Refuse the mirror if this version is not there with this digest; repeated for several.",
        ),
    ] = None,
    verify: Verify = True,
    as_json: Json = False,
) -> None:
    """Bring versions back from a mirror into this store.

    A store without versions becomes the one that was mirrored, and the mirror goes on as its mirror. Into the store that
    was mirrored come the versions that it lacks, also those that gc deleted. No version that is here is changed.
    """
    from muster.ext.mirrors.opening import home_of, open_home

    need("mirrors", what="muster volumes restore")
    wanted = list(map(_expected, expect or ()))
    with closing(open_home(source, Settings.load())) as home:
        for place, digest in wanted:
            _check_expected(home, place, digest)
        with closing(home_of(open_store(make=True))) as target:
            done = _copy(home, target, volumes=_names(volumes), keep_deleted=True, verify=verify, adopt=True)
    _show(done, at="this store", source=source, as_json=as_json)
    raise typer.Exit(0 if done.whole else 1)


def _expected(text: str) -> tuple[Place, str]:
    address, _, digest = text.partition("=")
    wanted = Address.parse(address)
    if wanted.select is not Select.NUMBER or _DIGEST.fullmatch(digest) is None:
        raise typer.BadParameter(
            f"--expect {text!r:.120}: need a version and its digest, or the first 8 digits of it or more, such as "
            "flights/model@3=b3:1f0a93c2; `muster volumes show` says both"
        )
    return (wanted.volume, int(wanted.value)), digest


def _check_expected(home: Home, place: Place, digest: str) -> None:
    """Refuse a mirror in which a version is not what was noted elsewhere. :raises Conflict: it has another digest."""
    documents = home.documents(place)
    documents.entries  # noqa: B018 - raises where its digest is not that of its files
    if not documents.digest.startswith(digest):
        raise Conflict(
            f"{documents.address} is {documents.digest[:19]} in {home.where}, and {digest[:19]} was expected: the mirror was changed, or "
            "is of another store. Nothing was restored"
        )


def _names(volumes: list[str] | None) -> list[str]:
    return [name.removeprefix(SCHEME) for each in volumes or () for name in each.split(",") if name]


def _copy(source: Home, target: Home, **rules: Any) -> Mirrored:
    from muster.ext.mirrors.copying import Copying

    with progress() as tell:
        return Copying(source, target, progress=tell, **rules).run()


def _show(done: Mirrored, *, at: str, source: str, as_json: bool) -> None:
    """Say what was brought to `at` from `source`."""
    if as_json:
        emit({**plain(done), "whole": done.whole})
        return
    for address, why in done.damaged.items():
        say(f"{safe(address)} is damaged and was left out: {safe(why)}", style="red")
    for address, wrong in done.wrong.items():
        say(f"{safe(address)} arrived damaged: {safe('; '.join(wrong[:3]))}", style="red")
    if done.unknown:
        first, count = safe(done.unknown[0]), len(done.unknown)
        those = f"{first} is" if count == 1 else f"{count} versions, such as {first}, are"
        stays = "it stays" if count == 1 else "they stay"
        note(f"{those} in {safe(at)}, but not in {safe(source)}: {stays}")
    marks = f", marks of {done.marked} changed" if done.marked else ""
    versions = "1 version" if len(done.versions) == 1 else f"{len(done.versions)} versions"
    say(f"{versions} brought ({size(done.sent_bytes)}), {done.present} were there{marks}")


def add(groups: Mapping[str, typer.Typer]) -> None:
    """Add the commands of this extension to those of ``muster``."""
    groups["volumes"].command(
        "mirror",
        epilog=example(
            "muster volumes mirror /backup/muster/store",
            "muster volumes mirror s3://bucket/muster --volumes flights/model --keep-deleted",
            "muster volumes mirror http://muster-store.other:8470 --watch",
        ),
    )(mirror)
    groups["volumes"].command(
        "restore",
        epilog=example(
            "muster volumes restore --from /backup/muster/store",
            "muster volumes restore --from s3://bucket/muster",
        ),
    )(restore)
