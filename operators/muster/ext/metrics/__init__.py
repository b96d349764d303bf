"""What Prometheus is told of jobs, queues, GPUs, the store and deployments; the same on one machine and a cluster.

``table`` lists every metric; ``sources`` makes its samples of what jobs, the store, the capacity and the deployments answer,
and opens them; ``collector`` asks them, remembers what they said, and answers HTTP.
"""

from __future__ import annotations

from muster.core.extensions import Extension

EXTENSION = Extension(
    commands="muster.ext.metrics.commands:add",
)
