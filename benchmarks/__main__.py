"""Runs every benchmark, one after the other, each in a process of its own: ``python -m benchmarks [--json]``.

``python -m benchmarks NAME …`` runs the named ones only. The exit code is 1 if a promise is missed. What cannot run on
this machine is left out, and a line at the end says so; that is a failure only of those that were named.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence

from benchmarks.pairs import LEFT_OUT

BENCHMARKS = {
    "stages": "a stage's cost above its bare process; resume; parse time",
    "stages_peers": "five stages in one run, muster cold and warm, against dag.test() and beside kfp and Metaflow",
    "many_stages": "CPU of a further stage among 300, against one among 150; 500 mapped jobs, and all kept (some minutes)",
    "gang": "time to rank 0's first line and of the whole run, against torchrun",
    "throughput": "training through GangOperator, against bare torchrun",
    "volumes": "commits, against DVC and a raw read",
    "ingest": "an ingest from S3, against fsspec with as many streams; what nothing new costs beyond the list",
    "kafka": "a topic as Parquet, against a bare consumer that writes the same; a job's start to its version",
    "mirrors": "a mirror into a folder, against rsync and sync; with nothing to do at 10,000 versions; what a change moves",
    "big_volumes": "CPU of a partition in a commit of 2,000, of looks at as many versions, and of a page of a million files",
    "series": "CPU of a line of numbers and of a look at what a replica uses, against plain lines",
    "page": "muster's page with 10,000 versions and 1,000 jobs, against a bare route",
    "up": "muster up on PostgreSQL beside SQLite: clicks beside 60 tasks, seven stages, start, rest, memory",
    "waiting": "memory and CPU of 200 waiting jobs, against sleeping triggers and inline waits",
    "hand_over": "seconds until a job is cancelled whose task ends at the hand-over to the triggerer, ten times",
    "forecast": "when jobs start, as forecast and as it was, on a replay of arrivals; CPU of one forecast",
    "serving": "server CPU per request, against KServe's default, a bare loop and itself without metrics",
    "serving_workers": "CPU of a model in workers over its bare call; batches at 64 connections",
    "serving_peers": "models of scikit-learn and XGBoost in workers beside MLServer: requests a CPU second, p99",
    "predictions": "CPU of a request log, of a scoring beside a loop by hand, and which of 400 windows drift is found in",
    "scoring": "peak of memory of a ScoreOperator's job, and its predictions beside the endpoint's answers",
    "serving_memory": "memory of two loaded versions, against their files and two bare sessions",
    "hostile": "latency of well-behaved clients beside hostile ones, against without them",
    "search": "the best that a search ends with and what it trains, against a full grid; 64 simulated workers; CPU of 10,000 trials",
    "search_peers": "a search beside Ray Tune's ASHA on the same curves, orders and slots (half an hour)",
    "engines": "features on a gang of Spark beside a cluster by hand, on DuckDB beside its script, and its memory (some minutes)",
    "cluster": "gangs beside JobSets applied by hand, 40 that arrive, 1,000 that wait (root; brings the test cluster up)",
}


def main(arguments: Sequence[str]) -> int:
    """Run them; return 1 if one misses a promise or fails."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(BENCHMARKS))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    unknown = sorted(set(options.names) - set(BENCHMARKS))
    if unknown:
        parser.error(f"no benchmark {unknown[0]!r}; there are {', '.join(BENCHMARKS)}")
    missed, left_out = [], []
    for name in options.names or BENCHMARKS:
        if not options.json:
            print(f"\n== {name}: {BENCHMARKS[name]}", flush=True)
        command = [sys.executable, "-m", f"benchmarks.{name}", *(["--json"] if options.json else [])]
        code = subprocess.run(command, check=False).returncode
        if code == LEFT_OUT:
            left_out.append(name)
        elif code:
            missed.append(name)
    if left_out:
        print(f"left out, since this machine lacks what they need: {', '.join(left_out)}", file=sys.stderr)
    if missed:
        print(f"missed or failed: {', '.join(missed)}", file=sys.stderr)
    return 1 if missed or (options.names and left_out) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
