"""Container images of a few kilobytes: links into the machine's ``/usr``, which the runtime mounts.

One for every environment in the image cache, called ``localhost/NAME:DIGEST`` by its lock's digest, and:

======================= ==========================================================================
``localhost/pause:1``   holds a pod's namespaces
``localhost/python3:1`` the Python that made the environments, and nothing else
``localhost/muster:1``  this checkout, for the store service
``localhost/shell:1``   no Python: ``/bin/sh``, and nothing in its path
======================= ==========================================================================
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
import sys
import sysconfig
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cluster.layout import NODES, Layout, Node
from tests.cluster.runtime import ENVIRONMENTS, OURS, SOURCE, ctr

from muster.core.errors import BackendError
from muster.core.settings import Settings

USER = 10001  # of the images; a pod may say another
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}  # as Go calls them
_PATH = "/usr/local/bin:/usr/bin:/bin"
_LINKS = {name: f"usr/{name}" for name in ("bin", "sbin", "lib", "lib64")}
_FOLDERS = ("usr", "proc", "sys", "dev", "etc", "tmp", "root", "run", "home")
_FILES = {
    "etc/passwd": f"root:x:0:0::/root:/bin/sh\nmuster:x:{USER}:{USER}::/home:/bin/sh\n",
    "etc/group": f"root:x:0:\nmuster:x:{USER}:\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
}


@dataclass(frozen=True, kw_only=True)
class Image:
    """One image of one layer.

    :param layer: a tar archive of its files.
    :param command: what runs where a pod names no command.
    :param modules: where Python looks for further modules.
    """

    reference: str
    layer: bytes
    path: str = _PATH
    command: str = "/bin/sh"
    modules: str = ""

    def config(self) -> bytes:
        """Return its configuration (OCI image specification, v1)."""
        document: dict[str, Any] = {
            "architecture": _ARCHITECTURES[platform.machine()],
            "os": "linux",
            "config": {"Env": self._environment(), "Cmd": [self.command], "User": str(USER)},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{_digest(self.layer)}"]},
        }
        return json.dumps(document).encode()

    def _environment(self) -> list[str]:
        return [f"PATH={self.path}", *([f"PYTHONPATH={self.modules}"] if self.modules else [])]


def images(layout: Layout) -> tuple[Image, ...]:
    """Return the images that can be had now."""
    cache = Settings.load().cache / "images"
    links = _tar(_links())
    pause = _tar([_regular("pause", (layout.programs / "pause").read_bytes(), mode=0o755)])
    return (
        Image(reference="localhost/pause:1", layer=pause, command="/pause"),
        Image(reference="localhost/shell:1", layer=links, path="/nowhere"),
        Image(reference="localhost/python3:1", layer=links, path=f"{sys.base_prefix}/bin:{_PATH}"),
        Image(
            reference="localhost/muster:1",
            layer=links,
            path=f"{OURS}/bin:{_PATH}",
            modules=str(SOURCE / "operators"),
        ),
        *(_environment(marker.parent, links) for marker in sorted(cache.glob("*/.muster-complete"))),
    )


def earlier(folder: Path) -> Image:
    """An earlier release, ``localhost/muster:earlier``, in the environment of this one. :param folder: what its wheel holds."""
    files = [*_links()]
    for path in sorted(folder.rglob("*")):
        inside = tarfile.TarInfo(f"released/{path.relative_to(folder)}")
        if path.is_dir():
            inside.type, inside.mode = tarfile.DIRTYPE, 0o755
            files.append((inside, b""))
        else:
            files.append(_regular(inside.name, path.read_bytes()))
    return Image(
        reference="localhost/muster:earlier",
        layer=_tar(files),
        path=f"{OURS}/bin:{_PATH}",
        modules="/released",
    )


def airflow(reference: str, programs: Path) -> Image:
    """Airflow with this checkout in it, as `muster images build airflow` makes it. :param programs: as containers see them."""
    (told,) = Path(sysconfig.get_path("purelib")).glob("airflow_provider_muster-*.dist-info")
    names = ("METADATA", "entry_points.txt")  # by which Airflow finds muster
    files = (_regular(f"installed/{told.name}/{name}", (told / name).read_bytes()) for name in names)
    return Image(
        reference=reference,
        layer=_tar([*_links(), *files]),
        path=f"{programs}:{_PATH}",
        modules=f"/installed:{SOURCE / 'operators'}",
    )


def folder(reference: str, held: Path, *, at: str) -> Image:
    """An image with a copy of a folder, and what copies it further. :param at: where it is in the image, such as opt/dags."""
    paths = [path for path in sorted(held.rglob("*")) if path.is_file() and path.suffix != ".pyc"]
    files = (_regular(f"{at}/{path.relative_to(held)}", path.read_bytes()) for path in paths)
    return Image(reference=reference, layer=_tar([*_links(), *files]))


def give(layout: Layout, *made: Image) -> None:
    """Give all nodes some more images."""
    write_archive(layout, made)
    for node in NODES:
        import_all(layout, node)


def write_archive(layout: Layout, made: Iterable[Image] | None = None) -> Path:
    """Write images into one archive, as Docker saves them, and return it. :param made: all that can be had if not given."""
    files: dict[str, bytes] = {}
    manifest = []
    for image in images(layout) if made is None else made:
        config, layer = f"{_digest(image.config())}.json", f"{_digest(image.layer)}.tar"
        files |= {config: image.config(), layer: image.layer}
        manifest.append({"Config": config, "RepoTags": [image.reference], "Layers": [layer]})
    files["manifest.json"] = json.dumps(manifest).encode()
    archive = layout.root / "images.tar"
    archive.write_bytes(_tar(_regular(name, data) for name, data in files.items()))
    return archive


def import_all(layout: Layout, node: Node) -> None:
    """Give a node the images of the archive."""
    done = ctr(layout, node, "--namespace=k8s.io", "images", "import", str(layout.root / "images.tar"))
    if done.returncode:
        raise BackendError(f"images on {node.name}: {done.stderr.strip()}")


def _environment(home: Path, links: bytes) -> Image:
    name, digest, _python = home.name.rsplit("-", 2)
    return Image(
        reference=f"localhost/{name}:{digest}",
        layer=links,
        path=f"{ENVIRONMENTS / home.name / 'bin'}:{_PATH}",
    )


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _links() -> Iterator[tuple[tarfile.TarInfo, bytes]]:
    for name in _FOLDERS:
        folder = tarfile.TarInfo(name)
        folder.type, folder.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
        yield folder, b""
    for name, target in _LINKS.items():
        link = tarfile.TarInfo(name)
        link.type, link.linkname = tarfile.SYMTYPE, target
        yield link, b""
    for name, text in _FILES.items():
        yield _regular(name, text.encode())
    yield _regular("etc/ld.so.cache", Path("/etc/ld.so.cache").read_bytes())


def _regular(name: str, data: bytes, *, mode: int = 0o644) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(data), mode
    return info, data


def _tar(files: Iterable[tuple[tarfile.TarInfo, bytes]]) -> bytes:
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w") as tar:
        for info, data in files:
            tar.addfile(info, io.BytesIO(data))
    return whole.getvalue()
