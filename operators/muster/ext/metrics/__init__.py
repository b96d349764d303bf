"""What Prometheus is told of jobs, queues, GPUs, the store and deployments; the same on one machine and a cluster.

``table`` lists every metric; ``looks`` and ``jobs`` make its samples of what the store, the capacity and the deployments
answer; ``collector`` asks them and remembers what they said; ``sources`` opens them; ``serve`` answers HTTP.
"""

from __future__ import annotations

from muster.core.extensions import Extension

EXTENSION = Extension(
    commands="muster.ext.metrics.commands:add",
)
