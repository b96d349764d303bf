"""muster on a real Kubernetes: gangs beside JobSets applied by hand, 40 that arrive, 1,000 that wait, 500 of 2,000 runs of an Airflow, and ``muster gpus``;
a store service that is killed.

``python -m benchmarks.cluster [--pairs N] [--arrivals N] [--waiting N] [--runs N] [--kills N] [--root FOLDER] [--json]``

It runs in the test cluster (tests/cluster), which it starts if needed; its requirements are that cluster's, and where the
machine lacks one, it says which and measures nothing. Where the promise is a number of seconds, megabytes or calls, the
column "by hand" is that number, and the promised ratio is 1.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.cluster import cluster, machine
from tests.cluster.layout import Layout

from benchmarks import cluster_arrivals, cluster_gangs, cluster_runs, cluster_store, cluster_waiting
from benchmarks.cluster_site import site
from benchmarks.pairs import LEFT_OUT, show
from muster.core.errors import MusterError


def main(arguments: Sequence[str]) -> int:
    """Measure, print, and return 1 if a promise is missed, LEFT_OUT if this machine cannot hold a cluster."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cluster")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument(
        "--arrivals", type=int, default=40, help="number of gangs that arrive; 0 skips this part"
    )
    parser.add_argument(
        "--waiting", type=int, default=1000, help="number of waiting gangs; 0 skips this part"
    )
    parser.add_argument(
        "--runs",
        type=int,
        default=500,
        help="number of waiting gangs below a whole Airflow; 0 skips this part",
    )
    parser.add_argument(
        "--kills", type=int, default=10, help="number of kills of the store; 0 skips this part"
    )
    parser.add_argument("--root", type=Path, help="the cluster's folder (below MUSTER_CACHE unless given)")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    try:
        if not cluster.is_up(Layout.at(options.root)):
            machine.check()
    except MusterError as error:
        print(f"left out: {error}", file=sys.stderr)
        return LEFT_OUT
    missed = 0
    try:
        with site(options.root) as made:
            if options.pairs:
                ratios = cluster_gangs.measure(made, pairs=options.pairs)
                missed |= show("gangs beside JobSets", ratios, as_json=options.json)
            if options.arrivals:
                ratios = cluster_arrivals.measure(made, gangs=options.arrivals)
                missed |= show(f"{options.arrivals} gangs that arrive", ratios, as_json=options.json)
            if options.waiting:
                ratios = cluster_waiting.measure(made, waiting=options.waiting)
                missed |= show(f"{options.waiting} gangs that wait", ratios, as_json=options.json)
            if options.runs:
                made.clear()
                ratios = cluster_runs.measure(made, waiting=options.runs)
                missed |= show(f"{options.runs} gangs of 2,000 runs", ratios, as_json=options.json)
            if options.kills:
                ratios = cluster_store.measure(made, count=options.kills)
                missed |= show("a store that is killed", ratios, as_json=options.json)
    except MusterError as error:
        print(f"benchmarks.cluster: {error}", file=sys.stderr)
        return 1
    return missed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
