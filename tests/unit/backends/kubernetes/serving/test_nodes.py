"""Which nodes model servers are kept off, and that they find one all the same."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.backends.kubernetes.serving.golden import SITE, spec
from tests.unit.backends.kubernetes.site_objects import NODES, cluster, node

from muster.backends.kubernetes.cluster.facts import Node
from muster.backends.kubernetes.serving.kinds import card_classes
from muster.backends.kubernetes.serving.server import Server, pod

CPU, *CARDS = map(Node.of, NODES)
BARE = Node.of(node("cpu-1"))
CONTROL = Node(name="control", room=BARE.room, control_plane=True)
PRESENT = {"key": "nvidia.com/gpu.present", "operator": "NotIn", "values": ["true"]}
CLASSES = {"key": "muster.dev/gpu-class", "operator": "NotIn", "values": ["gpu-a100", "gpu-k80"]}


@pytest.mark.parametrize(
    ("nodes", "expressions"),
    [
        ((CPU, *CARDS), [PRESENT, CLASSES]),
        ((CPU,), [PRESENT]),
        (None, [PRESENT]),  # the account may not look
        (CARDS, None),
        ((CONTROL, *CARDS), None),  # no pod of ours runs there
        ((CONTROL, CPU, *CARDS), [PRESENT, CLASSES]),
    ],
)
def test_servers_are_kept_off_cards_where_there_is_another_node(nodes: Any, expressions: Any) -> None:
    classes = card_classes(cluster(nodes=None if nodes is None else tuple(nodes)))
    found = pod(Server(spec=spec(), revision="r1", site=SITE, gpu_classes=classes), container="server")
    if expressions is None:
        assert "affinity" not in found
        return
    required = found["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert [each["matchExpressions"] for each in required["nodeSelectorTerms"]] == [expressions]
