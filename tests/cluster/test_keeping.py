"""Deployments are kept on a real cluster, with the rights of the keeper's account: five edits, and one during a canary."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from tests.cluster import kubectl
from tests.cluster.accounts import NAMESPACE
from tests.cluster.deploying import Served
from tests.cluster.scripted import connection
from tests.cluster.test_grpc import HOSTS, OnHosts
from tests.waiting import eventually, promptly

from muster.backends.kubernetes.api.client import Client
from muster.backends.kubernetes.serving.platform import ClusterPlatform
from muster.backends.releases.deployments import Deployments
from muster.backends.releases.keeping import ROUND_SECONDS, Keeping

pytestmark = pytest.mark.cluster

PLACE = f"--namespace={NAMESPACE}"
PROMISED_SECONDS = 30.0


def keep(keeping: Keeping, over: threading.Event) -> None:
    """Do what the command does."""
    while not over.is_set():
        keeping.look()
        over.wait(ROUND_SECONDS)


class TestKeeping(OnHosts):
    """Two keepers at once, as the chart runs them."""

    @pytest.fixture
    def kept(self, served: Served, deployments: Any) -> Iterator[None]:
        over = threading.Event()
        site = replace(served.site, serving_url=HOSTS)
        threads = []
        for _ in range(2):
            client = Client(connection(served.of, "muster-keeper"), patience_seconds=5)
            platform = ClusterPlatform(
                client, site=site, store=lambda: served.store, open_spool=lambda _deployment: None
            )
            keeping = Keeping(Deployments(platform, lambda: served.store))
            threads.append(threading.Thread(target=keep, args=(keeping, over), daemon=True))
            threads[-1].start()
        yield
        over.set()
        for thread in threads:
            thread.join()

    def test_five_edits_are_put_back_and_one_during_a_canary_is_left(
        self, served: Served, deployments: Any, spec: Any, name: str, kept: None, record_property: Any
    ) -> None:
        """What the chart's accounts may do is all that the keepers have."""
        for slope in (2, 3):
            self.serve(deployments, spec(slope, grpc=True))
        of = served.of

        def delete(kind: str, called: str) -> Callable[[], str]:
            return lambda: kubectl.run(of, "delete", kind, called, PLACE)

        def change(kind: str, called: str, patch: Any) -> None:
            kubectl.run(of, "patch", kind, called, PLACE, "--type=json", f"--patch={json.dumps(patch)}")

        path = "/spec/predictor/containers/0/image"
        other = [{"op": "replace", "path": path, "value": "localhost/nothing:1"}]
        even = [
            {"op": "replace", "path": f"/spec/rules/0/backendRefs/{at}/weight", "value": 50} for at in (0, 1)
        ]

        def there() -> dict[str, str]:
            """What tells whether it is as it was: uids change where something was made again."""
            service = kubectl.get(of, "inferenceservice", f"{name}-r2", PLACE)["spec"]["predictor"]
            return {
                "image": service["containers"][0]["image"],
                "weights": str(
                    [
                        each["weight"]
                        for each in kubectl.get(of, "httproute", name, PLACE)["spec"]["rules"][0][
                            "backendRefs"
                        ]
                    ]
                ),
                "code": kubectl.get(of, "configmap", f"{name}-r2", PLACE)["metadata"]["name"],
                "grpc": str(kubectl.get(of, "service", f"{name}-r2-grpc", PLACE)["spec"]["ports"]),
            }

        before = there()

        def back() -> bool:
            try:
                now = there()
            except Exception:
                return False
            status = deployments.deployment(name)
            return now == before and status.ready and not status.drift

        edits: dict[str, Callable[[], Any]] = {
            "InferenceService deleted": delete("inferenceservice", f"{name}-r2"),
            "its image edited": lambda: change("inferenceservice", f"{name}-r2", other),
            "the route edited": lambda: change("httproute", name, even),
            "the route deleted": delete("httproute", name),
            "its ConfigMap deleted": delete("configmap", f"{name}-r2"),
            "its Service deleted": delete("service", f"{name}-r2-grpc"),
        }
        eventually(lambda: deployments.deployment(name).drift == "")
        for what, edit in edits.items():
            edit()
            began = time.monotonic()
            promptly(back, seconds=PROMISED_SECONDS)
            record_property(what, f"{time.monotonic() - began:.1f} s")
        assert eventually(lambda: self.answers(deployments, name)) == "r2"

        made = self.bring_up(deployments, spec(4, grpc=True))
        status = deployments.deployment(name)
        shares = {"r2": 75, made.name: 25}
        deployments.shift(name, shares, token=status.token, release=status.release)
        change("httproute", name, even)
        edited = kubectl.get(of, "httproute", name, PLACE)["metadata"]["generation"]
        events = kubectl.get(of, "events", PLACE, "--field-selector=reason=DeploymentMended")["items"]
        assert {each["involvedObject"]["name"] for each in events} == {name}
        over = threading.Event()
        over.wait(3 * ROUND_SECONDS)  # nothing is to happen for that long
        assert kubectl.get(of, "httproute", name, PLACE)["metadata"]["generation"] == edited
