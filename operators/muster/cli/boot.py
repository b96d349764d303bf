"""``muster deployments install-service``: systemd brings the deployments of this machine back after a reboot."""

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

# A keeper stays in the unit's control group: it must survive what the unit itself goes through.
_UNIT = """\
[Unit]
Description=muster brings back the deployments of {about}
RequiresMountsFor={home}
{after}
[Service]
Type=oneshot
RemainAfterExit=yes
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
) -> None:
    """Have systemd bring all deployments back after a reboot.

    The command writes a unit that runs `muster deployments repair --all` at each boot as the owner of MUSTER_HOME, and
    enables it. Each MUSTER_HOME has a unit of its own; the same command writes it anew.
    """
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
    try:
        enabled.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(unit(settings, target, user=owner if system else None))
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
    note(f"{path} is written: at each boot it runs `muster deployments repair --all`")
    if not system and not (LINGERING / owner).exists():
        note(
            f"it waits until {safe(owner)} logs in; to have it at boot: loginctl enable-linger {safe(owner)}"
        )


def unit(settings: Settings, target: str, *, user: str | None = None) -> str:
    """Return the text of the unit.

    :param user: whose processes it starts; None where the unit is a user's own.
    :raises SpecError: a path holds what no unit can.
    """
    command = python_command("-m", "muster", "deployments", "repair", "--all")
    return _UNIT.format(
        about=str(settings.home).replace("%", "%%"),
        home=_quoted(str(settings.home)),
        after="Wants=network-online.target\nAfter=network-online.target\n" if user else "",
        user=f"User={user}\n" if user else "",
        variables=" ".join(_quoted(each) for each in _variables(settings)),
        command=" ".join(_quoted(word.replace("$", "$$")) for word in command),
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
