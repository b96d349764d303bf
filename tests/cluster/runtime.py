"""containerd on one node: a store of images and a state of its own, reached only from inside the node.

Every container sees the machine's ``/usr``, the environments of the image cache and this checkout, all
read-only: these mounts are part of the runtime's base specification and of no pod's, so images are of a few kilobytes,
nothing is copied, and pods stay within Pod Security's ``restricted``, which knows no folder of the host. The cache
and the checkout are seen in places of their own: where they are on the machine may be below a pod's ``/tmp``.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.cluster.daemons import Daemon
from tests.cluster.layout import DISK, Layout, Node

from muster.core.settings import Settings

# Where containers see the environments of the cache, this checkout, and the environment it runs in.
ENVIRONMENTS, SOURCE, OURS = Path("/opt/images"), Path("/opt/source"), Path("/opt/environment")
STATE = Path("/run/containerd")  # the node's own, empty at every boot
SOCKET = STATE / "containerd.sock"
CHECKOUT = Path(__file__).parents[2]
_CNI_PLUGINS = "/usr/lib/cni"
_TOML = """version = 2
root = "{disk}"
state = "{state}"
[grpc]
address = "{socket}"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "localhost/pause:1"
restrict_oom_score_adj = true
netns_mounts_under_state_dir = true
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{plugins}"
conf_dir = "{networks}"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
base_runtime_spec = "{base}"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
SystemdCgroup = false
"""


def prepare(layout: Layout, node: Node) -> None:
    """Write the configuration of a node's containerd."""
    folder = layout.folder(node)
    networks = folder / "networks"
    networks.mkdir(parents=True, exist_ok=True)
    (networks / "10-bridge.conflist").write_text(json.dumps(_network(node)))
    (folder / "base.json").write_text(json.dumps(_base()))
    (folder / "containerd.toml").write_text(
        _TOML.format(
            disk=DISK / "containerd",
            state=STATE,
            socket=SOCKET,
            plugins=_CNI_PLUGINS,
            networks=DISK / "networks",
            base=DISK / "base.json",
        )
    )


def runtime(layout: Layout, node: Node, *, namespaces: tuple[str, ...]) -> Daemon:
    """Return a node's containerd."""
    return Daemon(
        name=f"{node.name}.containerd",
        command=("containerd", "--config", DISK / "containerd.toml"),
        namespaces=namespaces,
        ready=lambda: ctr(layout, node, "version").returncode == 0,
    )


def ctr(layout: Layout, node: Node, *words: str) -> subprocess.CompletedProcess[str]:
    """Ask a node's containerd."""
    command = ["nsenter", f"--mount={layout.mounts(node)}", "ctr", "--address", str(SOCKET), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def _network(node: Node) -> dict[str, Any]:
    bridge = {
        "type": "bridge",
        "bridge": "cni0",
        "isDefaultGateway": True,
        "hairpinMode": True,
        "ipMasq": False,
        "ipam": {"type": "host-local", "ranges": [[{"subnet": node.pod_range}]]},
    }
    return {"cniVersion": "0.4.0", "name": "pods", "plugins": [bridge, {"type": "portmap"}]}


def _base() -> dict[str, Any]:
    made = subprocess.run(["ctr", "oci", "spec"], capture_output=True, text=True, check=True).stdout
    base: dict[str, Any] = json.loads(made)
    base["mounts"] += [
        {"destination": str(seen), "source": str(path), "type": "bind", "options": ["rbind", "ro"]}
        for seen, path in _seen_by_all().items()
    ]
    return base


def _seen_by_all() -> dict[Path, Path]:
    """Where containers see what of the machine: its programs, the environments and the Pythons they were made from."""
    images = Settings.load().cache / "images"
    images.mkdir(parents=True, exist_ok=True)
    pythons = {Path(sys.base_prefix)}
    for config in images.glob("*/pyvenv.cfg"):
        settings = dict(line.split(" = ", 1) for line in config.read_text().splitlines() if " = " in line)
        pythons.add(Path(settings["home"]).parent)
    usr = Path("/usr")
    further = sorted(path for path in pythons if path.is_dir() and not path.is_relative_to(usr))
    ours = {ENVIRONMENTS: images, SOURCE: CHECKOUT, OURS: Path(sys.prefix)}
    return {usr: usr, **{path: path for path in further}, **ours}
