"""``muster deployments install-service``: systemd keeps the deployments of this machine, from each boot on."""

from __future__ import annotations

import hashlib
import os
import pwd
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from muster.cli.command import store_is_here
from muster.cli.screen import note, safe
from muster.client.place import check_home
from muster.core.errors import BackendError, SpecError
from muster.core.interpreters import python_command
from muster.core.settings import Settings

SYSTEM_UNITS = Path("/etc/systemd/system")
LINGERING = Path("/var/lib/systemd/linger")
RUNNING = Path("/run/systemd/system")  # sd_booted(3)
_COMMAND = python_command("-m", "muster", "deployments", "keep")

# A keeper stays in the unit's control group: it must survive what the unit itself goes through.
_UNIT = """\
[Unit]
Description=muster keeps the deployments of {about}
RequiresMountsFor={home}
{after}
[Service]
Restart=always
RestartSec=5
KillMode=process
OOMPolicy=continue
{user}Environment={variables}
ExecStart={command}

[Install]
WantedBy={target}
"""


def install_service(
    *,
    system: Annotated[
        bool, typer.Option("--system", help="A unit of the machine, not of the user; root writes it.")
    ] = False,
    show: Annotated[bool, typer.Option("--show", help="Print the unit, and write nothing.")] = False,
    remove: Annotated[bool, typer.Option("--remove", help="Delete the unit.")] = False,
) -> None:
    """Have systemd keep all deployments, from each boot on.

    The command writes a unit that runs `muster deployments keep` as the owner of MUSTER_HOME, and enables it: all deployments
    are up after a boot, and again when they died. Each MUSTER_HOME has a unit of its own; the same command writes it anew.
    Without systemd, have your init run what --show prints after ExecStart, with its Environment.
    """
    if show and remove:
        raise SpecError("give --show or --remove, not both")
    settings = Settings.load()
    check_home(settings)
    if not store_is_here():
        raise SpecError("install-service: MUSTER_CLUSTER is set, and a cluster brings its pods back itself")
    uid = settings.home.stat().st_uid
    owner = next((each.pw_name for each in pwd.getpwall() if each.pw_uid == uid), str(uid))
    name = f"muster-deployments-{hashlib.sha256(os.fsencode(settings.home)).hexdigest()[:8]}.service"
    base = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    folder, target = (
        (SYSTEM_UNITS, "multi-user.target") if system else (base / "systemd/user", "default.target")
    )
    path, enabled = folder / name, folder / f"{target}.wants" / name
    text = unit(settings, target, user=owner if system else None)
    if show:
        typer.echo(text, nl=False)
        return
    try:
        if remove:
            for each in (enabled, path):
                each.unlink(missing_ok=True)
            note(f"{path} is gone; what runs goes on: systemctl {'' if system else '--user '}stop {name}")
            return
        enabled.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        if not enabled.is_symlink():
            enabled.symlink_to(path)  # as `systemctl enable` does, which needs a systemd that runs
    except OSError as error:
        root = (
            f": run it as root, sudo env {shlex.join(_variables(settings))} {shlex.quote(sys.executable)} "
            "-P -m muster deployments install-service --system"
            if isinstance(error, PermissionError) and system
            else ""
        )
        raise BackendError(f"{path} cannot be written ({error.strerror}){root}") from error
    note(f"{path} is written: from each boot on it runs `muster deployments keep`")
    if not RUNNING.is_dir():
        words = shlex.join(["env", *_variables(settings), *_COMMAND]).replace("%", "\\%")  # crontab(5)
        note(f"no systemd runs here. A line of `crontab -e` that does the same: @reboot {words}")
    if not system and not (LINGERING / owner).exists():
        note(
            f"it waits until {safe(owner)} logs in; to have it at boot: loginctl enable-linger {safe(owner)}"
        )


def unit(settings: Settings, target: str, *, user: str | None = None) -> str:
    """Return the text of the unit.

    :param user: whose processes it starts; None where the unit is a user's own.
    :raises SpecError: a path holds what no unit can.
    """
    return _UNIT.format(
        about=str(settings.home).replace("%", "%%"),
        home=_quoted(str(settings.home)),
        after="Wants=network-online.target\nAfter=network-online.target\n" if user else "",
        user=f"User={user}\n" if user else "",
        variables=" ".join(_quoted(each) for each in _variables(settings)),
        command=" ".join(_quoted(word.replace("$", "$$")) for word in _COMMAND),
        target=target,
    )


def _variables(settings: Settings) -> list[str]:
    """Return what the unit is told. A cache that no setting names is the owner's own, not that of the root who writes the unit."""
    named = os.environ.get("MUSTER_CACHE") or os.environ.get("XDG_CACHE_HOME")
    return [f"MUSTER_HOME={settings.home}", *([f"MUSTER_CACHE={settings.cache}"] if named else [])]


def _quoted(text: str) -> str:
    """Return a word as units have it: systemd.syntax(7), and the specifiers of systemd.unit(5)."""
    if not text.isprintable():
        raise SpecError(f"{text!r:.200}: a unit of systemd cannot hold this path")
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%") + '"'
