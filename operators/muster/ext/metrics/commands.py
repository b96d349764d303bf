"""``muster metrics``: what Prometheus is told; and the alerts and the dashboard for it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing, suppress
from typing import Annotated

import typer

from muster.cli.command import example
from muster.cli.screen import note
from muster.client.place import check_home
from muster.core.forking import end_at_sigterm
from muster.core.settings import Settings

PORT = 9470
ALERTS, DASHBOARD = "alerts.yaml", "dashboard.json"


def metrics(
    *,
    serve: Annotated[
        bool, typer.Option("--serve", help="Serve them at /metrics until Ctrl-C, and do not print them.")
    ] = False,
    host: Annotated[str, typer.Option(help="With --serve: the address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="With --serve: the port.")] = PORT,
    airflow: Annotated[
        str, typer.Option(metavar="URL", help="Tell how this Airflow stands, too, such as http://HOST:8080.")
    ] = "",
    keeper: Annotated[
        str,
        typer.Option(metavar="HOST:PORT", help="And the keepers there: muster deployments keep --port PORT."),
    ] = "",
    alerts: Annotated[
        bool, typer.Option("--alerts", help="Print Prometheus's alert rules for them.")
    ] = False,
    dashboard: Annotated[
        bool, typer.Option("--dashboard", help="Print the dashboard for Grafana, as JSON.")
    ] = False,
) -> None:
    """Show metrics for Prometheus, or serve them.

    They tell how jobs, queues, GPUs, the store, deployments and releases stand. muster up serves them beside Airflow, and the chart on a cluster. Counters begin at 0 with the process that
    serves them, so what is printed once has none.
    """
    if alerts or dashboard:
        from muster.core.shipped import shipped

        file = shipped("helm") / "muster" / "files" / (ALERTS if alerts else DASHBOARD)
        typer.echo(file.read_text(encoding="utf-8"), nl=False)
        return
    settings = Settings.load()
    if not serve:  # what serves may begin before the first job
        check_home(settings)
    from muster.ext.metrics.collector import listening, page
    from muster.ext.metrics.sources import collector_of

    with closing(collector_of(settings, airflow=airflow, keeper=keeper)) as collector:
        if not serve:
            typer.echo(page(collector), nl=False)
            return
        end_at_sigterm()
        with listening(collector, host=host, port=port) as server, suppress(KeyboardInterrupt):
            note(f"metrics are at http://{host}:{port}/metrics   Ctrl-C ends it")
            server.serve_forever()


def add(groups: Mapping[str, typer.Typer]) -> None:
    """Add the commands of this extension to those of ``muster``."""
    groups[""].command(
        "metrics",
        epilog=example("muster metrics", "muster metrics --serve --port 9471", "muster metrics --alerts"),
    )(metrics)
