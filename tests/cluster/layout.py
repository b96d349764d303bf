"""Where one test cluster lives: its folder, the names it goes by in the kernel, its addresses.

Everything outside the folder carries the cluster's name, which is made from the folder's path: so two
clusters live side by side, and a process that knows only its folder can clear one away.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path

from muster.core.errors import SpecError
from muster.core.settings import Settings

CONTROL_ADDRESS = "10.77.0.1"
API_PORT = 6443
API_URL = f"https://{CONTROL_ADDRESS}:{API_PORT}"
SERVICE_RANGE = "10.96.0.0/16"
SERVICE_ADDRESS = "10.96.0.1"  # of the API server itself: the first of the range
POD_RANGE = "10.78.0.0/16"

HIDDEN_FROM_NODES = ("/run", "/var/lib", "/var/log")  # each node has its own, empty at every boot
# Where a node sees its disk and the shared folder, as if the one were its own and the other mounted from
# a server. Short, too: the path of a socket has room for 107 bytes.
DISK = Path("/run/muster/disk")
CLAIM = Path("/run/muster/claim")


@dataclass(frozen=True, kw_only=True)
class Node:
    """One machine of the cluster.

    :param number: from 1; its addresses are made from it.
    :param gpu_class: the value of its label ``muster.dev/gpu-class``.
    :param cpus: what it says to have; all nodes share the machine's.
    """

    name: str
    number: int
    gpu_class: str
    cpus: int = 16
    gpus: int = 0

    @property
    def address(self) -> str:
        return f"10.77.0.{10 + self.number}"

    @property
    def pod_range(self) -> str:
        return f"10.78.{self.number}.0/24"


NODES = (
    Node(name="cpu-0", number=1, gpu_class="cpu"),
    Node(name="a100-0", number=2, gpu_class="gpu-a100", gpus=8),
    Node(name="a100-1", number=3, gpu_class="gpu-a100", gpus=8),
    Node(name="k80-0", number=4, gpu_class="gpu-k80", gpus=4),
)


def node_called(name: str) -> Node:
    """Return a node by its name."""
    for node in NODES:
        if node.name == name:
            return node
    raise SpecError(f"no node {name}; there are {', '.join(node.name for node in NODES)}")


@dataclass(frozen=True, kw_only=True)
class Layout:
    """One cluster's folder and names.

    :param root: an absolute path; whatever is in it belongs to the cluster.
    :param programs: where the programs are that were built (:mod:`tests.cluster.programs`).
    """

    root: Path
    programs: Path

    def __post_init__(self) -> None:
        text = str(self.root)
        if not self.root.is_absolute() or len(self.root.parts) < 3:
            raise SpecError(f"{text!r:.120} cannot hold a cluster: an absolute path, not directly below /")
        if any(self.root.is_relative_to(hidden) for hidden in HIDDEN_FROM_NODES):
            raise SpecError(
                f"{text} cannot hold a cluster: nodes have their own {', '.join(HIDDEN_FROM_NODES)}. "
                "Name another folder with --root or MUSTER_CACHE"
            )

    @classmethod
    def at(cls, root: Path | None = None) -> Layout:
        """Return the layout of a folder; without one, of that in the cache."""
        cache = Settings.load().cache / "cluster"
        return cls(root=(root or cache / "run").resolve(), programs=cache / "bin")

    def beside(self, number: int) -> Layout:
        """The layout of one more cluster, whose folder lies beside this one's: the second, the third."""
        return replace(self, root=self.root.with_name(f"{self.root.name}-{number}"))

    @property
    def name(self) -> str:
        """What its namespaces and control groups are called."""
        return f"muster-{hashlib.sha256(str(self.root).encode()).hexdigest()[:6]}"

    @property
    def lock(self) -> Path:
        """The lock of the process that changes the cluster; outside the folder, which ``down`` removes."""
        return self.root.with_name(f".{self.root.name}.lock")

    @property
    def kubeconfig(self) -> Path:
        """The administrator's."""
        return self.credentials / "admin.kubeconfig"

    @property
    def credentials(self) -> Path:
        return self.root / "credentials"

    @property
    def logs(self) -> Path:
        """What the programs say, a file each."""
        return self.root / "logs"

    @property
    def claim(self) -> Path:
        """The folder behind the shared claim."""
        return self.root / "claim"

    def folder(self, node: Node) -> Path:
        """What is on a node's disk, which outlives its power; the node itself sees it as :data:`DISK`."""
        return self.root / "nodes" / node.name

    def network(self, node: Node | None = None) -> Path:
        """The network namespace of a node, or that of the control plane."""
        return Path("/run/netns") / (f"{self.name}-{node.name}" if node else self.name)

    def mounts(self, node: Node) -> Path:
        """The mount namespace of a node."""
        return self.root / "mounts" / node.name

    def group(self, part: str = "") -> str:
        """The control group of a part, a program's or a node's pods'; without one, that of all."""
        return f"{self.name}/{part}" if part else self.name
