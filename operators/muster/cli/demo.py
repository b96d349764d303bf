"""``muster demo``: the reference pipeline, from real rows to a served prediction."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from muster.cli.run import execute, finish
from muster.cli.screen import program, safe, say, seconds
from muster.core.settings import Settings, project_folder
from muster.core.shipped import copy_whole, shipped

DAG = "flights"
IMAGES = ("etl", "validate", "train", "serve")
PARAMS: dict[str, Any] = {}
CACHE_GIB = 6.5

INTRO = """muster demo: will a flight arrive late?

A year of flights from New York, 336,776 rows with weather, planes and airports, becomes a
model that answers over HTTP. Five stages run under Airflow, each a process in an environment
of its own:

  features   joins and windows in DuckDB, one version for each month
  validate   Great Expectations
  train      a gang of two ranks, January to September
  gate       October to December, against a baseline and what is served now
  deploy     a model server on this machine, asked before it takes traffic
"""

NEXT = """
Next:
  {muster} volumes log flights/model    where the model comes from
  {muster} jobs ls                      what ran; {muster} jobs logs JOB
  {muster} tensorboard flights/model    how it learned
  {muster} run flights --resume=strict  after a change: runs what it touches
  {muster} deployments retire flights   end the model server
"""


def demo() -> None:
    """Run the reference pipeline, from rows to a prediction.

    It first prints its plan. The Dag is the one in ./dags, or else a copy of the shipped one.
    """
    from muster.airflow.embedded.runner import Wanted

    settings = Settings.load()
    say(INTRO)
    _build(settings)
    say(f"Versions and jobs are kept in {safe(settings.home)}.\n")
    finish(execute(DAG, Wanted(params=PARAMS), dags=dags_folder()))
    say(NEXT.format(muster=program("muster")).rstrip())


def _build(settings: Settings) -> None:
    """Build the environments first, so that the run shows its stages and not their installation."""
    from muster.cli.images import build_image
    from muster.images.folders import images_of

    wanted = [image for image in images_of(settings, project_folder()) if image.name in IMAGES]
    missing = [image for image in wanted if not image.built]
    if not missing:
        say("Its environments are built.")
        return
    say(
        f"First its environments are built: {len(missing)} of {len(wanted)}, some minutes and about "
        f"{CACHE_GIB} GiB in {safe(settings.cache)}. This happens once."
    )
    for image in missing:
        took = build_image(settings, image)
        say(f"  {safe(image.name).ljust(9)} {seconds(took)}")


def dags_folder() -> Path:
    """Return ``./dags``; if it lacks the Dag, copy the shipped one there."""
    here = Path("dags").absolute()
    if not (here / DAG).is_dir():
        copy_whole(shipped("dags") / DAG, here / DAG)
        say(f"The Dag is copied to {safe(here / DAG)}: read it and change it.")
    return here
