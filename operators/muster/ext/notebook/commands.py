"""``muster notebook``: JupyterLab, whose kernel runs in an image's environment, with versions at hand."""

from __future__ import annotations

import json
import keyword
import os
import re
import secrets
import shlex
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import muster
from muster.cli.command import example, open_store
from muster.cli.foreground import check_port, python_of_image, serve, temporary_folder
from muster.cli.screen import note, safe, say
from muster.core.address import Address
from muster.core.errors import ImageError, NotFound, SpecError
from muster.core.interpreters import python_command
from muster.core.names import check_identifier
from muster.core.settings import Settings, project_folder
from muster.ext.notebook import execute as execution
from muster.ext.notebook.execute import KERNEL, SCRIPT, TRANSPORT

if TYPE_CHECKING:
    from importlib.metadata import Distribution

SERVER = "notebook"
_NEEDS = ("ipykernel", "fsspec", "blake3", "httpx", "pathspec")  # of a kernel
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_INSTALLERS = ("pip", "pip3", "uv", "conda")
"""What a cell would call to install a package: into muster's own environment, where the cell could not import it."""
_SETTINGS = {
    "@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": False},
    "@jupyterlab/notebook-extension:tracker": {"autoStartDefaultKernel": True},
}
"""JupyterLab's settings: no news and updates, and no question which kernel: there is one."""


def notebook(
    *,
    image: Annotated[str, typer.Option(help="The image in whose environment cells run.")] = SERVER,
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--inputs",
            metavar="[NAME=]ADDRESS",
            help="A version that is at hand as a variable, called as the volume's last word unless NAME is given. "
            "Give it again for more.",
        ),
    ] = None,
    execute: Annotated[
        Path | None,
        typer.Option(
            "--execute",
            metavar="NOTEBOOK",
            help="Run all cells of this .ipynb, save it, and end; of a .py with cells print what they show.",
        ),
    ] = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Where on 127.0.0.1 it answers.")] = 8888,
    browser: Annotated[bool, typer.Option("--browser", help="Open the browser, too.")] = False,
) -> None:
    """Open JupyterLab in an image's environment, until Ctrl-C.

    The variables `muster`, `inputs` and one for each input are there; `inputs["features"].path` is a folder. Cells import
    what a job in the image can import, and the Dags' own modules. The first time images are built. Notebooks are those of
    the present folder.
    """
    from muster.ext.notebook import kernel

    if execute is not None and not execute.is_file():
        raise NotFound(f"{execute} does not exist: name a notebook, such as report.ipynb")
    chosen = _chosen(inputs or ())
    if execute is None:
        check_port(port)
    server = python_of_image(SERVER)
    python = server if image == SERVER else python_of_image(image)
    with temporary_folder("muster-notebook-") as folder:
        _prepare(folder, server=Path(server), python=Path(python), image=image)
        variables = {**_variables(folder), kernel.IMAGE: image, kernel.INPUTS: json.dumps(chosen)}
        if execute is not None:
            _execute(server, execute, variables)
        else:
            _open(server, folder, port=port, browser=browser, variables=variables)


def _chosen(inputs: Sequence[str]) -> dict[str, Any]:
    """Return the versions that the inputs name now, by variable. :raises NotFound: one is not there."""
    chosen: dict[str, Any] = {}
    for text in inputs:
        name, equals, address = text.partition("=")
        if not equals or "/" in name:
            name, address = "", text
        wanted = Address.parse(address)
        if wanted.path:
            raise SpecError(
                f"--inputs {text} names a file; give its version, and read the file below its path"
            )
        name = check_identifier(
            "--inputs", name or wanted.volume.rpartition("/")[2].replace("-", "_").replace(".", "_")
        )
        if name in chosen or name in ("muster", "inputs") or keyword.iskeyword(name):
            raise SpecError(
                f"--inputs {text}: the variable {name} is taken; give another, --inputs NAME={address}"
            )
        found = open_store().resolve(address)
        chosen[name] = {"addresses": [version.address for version in found], "many": wanted.many}
        note(f"{name}: {', '.join(version.address for version in found[-3:])}")
    return chosen


def _prepare(folder: Path, *, server: Path, python: Path, image: str) -> None:
    """Write the kernel for Jupyter, and check that it can start. :raises ImageError: it cannot; the message says why."""
    from muster.ext.notebook import kernel

    links, spec = folder / "links", folder / "kernels" / KERNEL
    links.mkdir()
    spec.mkdir(parents=True)
    _link_packages(links, _site(server))
    command = python_command(str(Path(kernel.__file__).resolve()), str(links), of=python)
    done = subprocess.run([*command, "--check"], capture_output=True, text=True, check=False, cwd="/")
    try:
        known = json.loads(done.stdout)
    except ValueError:
        known = {
            "error": (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1],
            "lacks": [],
        }
    if known["error"]:
        raise ImageError(
            f"image {image!r}: no notebook can run in it, since one of its packages does not go with the kernel's "
            f"({known['error']}): lock another version of that package, or take another --image"
        )
    if known["lacks"]:
        note(
            f"image {image} has no {', '.join(known['lacks'])}: a cell that imports it fails, as a job would. "
            f"{kernel.advice(image)}"
        )
    programs = folder / "bin"
    programs.mkdir()
    for name in _INSTALLERS:
        refusal = (
            f"{name} cannot install into image {image}, whose lock says what it holds. {kernel.advice(image)}"
        )
        (programs / name).write_text(f"#!/bin/sh\necho {shlex.quote(refusal)} >&2\nexit 1\n")
        (programs / name).chmod(0o755)
    (spec / "kernel.json").write_text(
        json.dumps(
            {
                "argv": [*command, "-f", "{connection_file}"],
                "display_name": f"{image} (muster)",
                "language": "python",
                "metadata": {"debugger": True},
                "env": {
                    "PATH": os.pathsep.join([str(programs), str(python.parent), os.environ.get("PATH", "")])
                },
            }
        )
    )


def _link_packages(folder: Path, site: Path) -> None:
    """Fill `folder` with links to packages of the image `notebook`, and to muster, for a kernel that runs in another image.

    The kernel looks into the folder last, so its image's own packages win. The folder has no other packages: a cell cannot
    import what a job in the image could not.

    :param site: where the packages of the image `notebook` are.
    """
    from importlib.metadata import distribution  # slow to import, as below

    for each in _with_all_they_need(_NEEDS, site):
        _link(folder, each, _tops(each))
    (folder / "muster").symlink_to(Path(muster.__file__).parent, target_is_directory=True)
    mine = distribution("airflow-provider-muster")  # by its entry point fsspec finds volume://
    _link(folder, mine, {name for name in _tops(mine) if name.endswith(".dist-info")})


def _link(folder: Path, package: Distribution, names: Iterable[str]) -> None:
    for name in names:
        target = Path(str(package.locate_file(name))).resolve()
        if target.exists() and not (folder / name).is_symlink():  # two packages may share a folder
            (folder / name).symlink_to(target, target_is_directory=target.is_dir())


def _tops(package: Distribution) -> set[str]:
    """Return what a package installed at the top of site-packages: its modules and its metadata."""
    tops = {path.parts[0] for path in package.files or ()}
    return {name for name in tops if name not in ("..", "__pycache__") and not name.endswith(".pth")}


def _with_all_they_need(names: Sequence[str], site: Path) -> Iterator[Distribution]:
    from importlib.metadata import distributions

    known = {_plain(each.name): each for each in distributions(path=[str(site)])}
    waiting, seen = [_plain(name) for name in names], set[str]()
    while waiting:
        name = waiting.pop()
        if name in seen or name not in known:
            continue
        seen.add(name)
        yield known[name]
        waiting += [_plain(text) for text in known[name].requires or () if "extra ==" not in text]


def _plain(requirement: str) -> str:
    found = _NAME.match(requirement)
    return re.sub(r"[-_.]+", "-", found[0]).lower() if found else ""


def _site(python: Path) -> Path:
    """Return where an environment's packages are."""
    major, minor = sys.version_info[:2]
    return python.parents[1] / f"lib/python{major}.{minor}/site-packages"


def _variables(folder: Path) -> Mapping[str, str]:
    """Return what tells Jupyter of the kernel, and muster in the kernel of the same store as here."""
    from muster.ext.notebook import kernel

    settings = Settings.load()
    return {
        kernel.DAGS: str(project_folder() / "dags"),
        "JUPYTER_PATH": str(folder),
        "JUPYTER_RUNTIME_DIR": str(folder / "run"),
        "JUPYTER_PREFER_ENV_PATH": "0",
        **settings.variables,
    }


def _execute(server: str, path: Path, variables: Mapping[str, str]) -> None:
    done = subprocess.run(
        python_command(str(Path(execution.__file__).resolve()), str(path.absolute()), of=server),
        env=os.environ | dict(variables),
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    lines = done.stderr.rstrip().splitlines()
    last = lines.pop() if done.returncode and lines else f"exit code {done.returncode}"
    for line in filter(None, lines):  # what cells wrote to stderr
        note(safe(line))
    if done.returncode:
        raise ImageError(f"{path}: {last}")
    note(f"{safe(path)} ran" + (", and is saved" if path.suffix != SCRIPT else ""))


def _open(server: str, folder: Path, *, port: int, browser: bool, variables: Mapping[str, str]) -> None:
    (folder / "settings").mkdir()
    (folder / "settings" / "overrides.json").write_text(json.dumps(_SETTINGS))
    token = secrets.token_urlsafe(16)
    say(f"http://127.0.0.1:{port}/lab?token={token}   Ctrl-C ends it")
    options = [
        "--ServerApp.ip=127.0.0.1",
        f"--ServerApp.port={port}",
        "--ServerApp.port_retries=0",
        f"--ServerApp.open_browser={browser}",
        "--ServerApp.root_dir=" + str(Path.cwd()),
        "--ServerApp.allow_root=True",  # it answers on this machine alone, with a token
        f"--KernelSpecManager.allowed_kernelspecs={{'{KERNEL}'}}",
        "--KernelSpecManager.ensure_native_kernel=False",
        f"--MultiKernelManager.default_kernel_name={KERNEL}",
        f"--LabApp.app_settings_dir={folder / 'settings'}",
        "--Application.log_level=WARN",
        f"--KernelManager.transport={TRANSPORT}",
    ]
    serve(
        "JupyterLab",
        python_command("-m", "jupyterlab", *options, of=server),
        variables={**variables, "JUPYTER_TOKEN": token},
    )


def add(groups: Mapping[str, typer.Typer]) -> None:
    """Add the commands of this extension to those of ``muster``."""
    groups[""].command(
        "notebook",
        epilog=example(
            "muster notebook --image train --inputs flights/features@latest",
            "muster notebook --inputs rows=flights/features@2013-03 --execute report.ipynb",
        ),
    )(notebook)
