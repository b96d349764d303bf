"""What a deployment with tokens promises: who may ask, from when on, and what is kept of a token."""

from __future__ import annotations

import http.client
import json
import secrets
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.contract.test_deployments import WHOLE, Lines, OnThisMachine, tensor
from tests.contract.test_deployments_in_memory import TestMemoryDeployments as InMemory
from tests.contract.test_keepers import kill_keeper
from tests.waiting import GUARD_SECONDS, eventually, promptly

from muster.backends.local.serving.folder import DeploymentFolder
from muster.backends.releases.decision import Ending
from muster.backends.releases.plan import Plan, Rules
from muster.backends.releases.tokens import (
    ENDED_KEPT,
    MOST_CLIENTS,
    ClientToken,
    Tokens,
    digest_of,
    ended,
    made,
)
from muster.backends.request_log import Predictions
from muster.core.deployment import RequestLimits, RequestLog
from muster.core.errors import BackendError, NotFound, SpecError
from muster.core.prediction import PredictionId
from muster.core.settings import Settings
from muster.volumes.folder import FolderStore

pytestmark = pytest.mark.slow


class TokensContract(Lines):
    """Give `deployments`, and whatever else :class:`Lines` wants."""

    def test_a_token_is_told_once_and_kept_as_its_digest(
        self, deployments: Any, spec: Any, name: str
    ) -> None:
        self.serve(deployments, spec(2))
        assert deployments.tokens(name).tokens == ()
        first, second = (deployments.make_token(name, client) for client in ("shop", "bank"))
        assert len({first, second}) == 2
        assert min(len(first), len(second)) >= 43  # 256 bits
        found = deployments.tokens(name)
        assert {each.client: each.digest for each in found.tokens} == {
            "shop": digest_of(first),
            "bank": digest_of(second),
        }
        assert first not in repr(found)

    def test_those_of_a_deployment_that_was_written_down_count_again(
        self, deployments: Any, spec: Any, name: str
    ) -> None:
        self.serve(deployments, spec(2))
        token = deployments.make_token(name, "shop")
        saved = deployments.saved(name)
        assert not saved.tokens.key
        deployments.retire(name)
        deployments.make_again(saved)
        (found,) = deployments.tokens(name).tokens
        assert (found.client, found.digest) == ("shop", digest_of(token))

    def test_those_of_one_whose_servers_cannot_be_made_are_not_lost(
        self, deployments: Any, spec: Any, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Another import leaves the deployment as it is; a repair brings its servers up."""
        self.serve(deployments, spec(2))
        deployments.make_token(name, "shop")
        saved = deployments.saved(name)
        deployments.retire(name)

        def full(book: Any, entry: Any) -> None:
            raise BackendError("the quota is used up")

        monkeypatch.setattr(deployments.platform, "bring_up", full)
        with pytest.raises(BackendError, match="quota"):
            deployments.make_again(saved)
        assert [each.client for each in deployments.tokens(name).tokens] == ["shop"]

    def test_there_is_a_most_of_clients_and_a_digest_is_one(
        self, deployments: Any, spec: Any, name: str
    ) -> None:
        several = tuple(
            ClientToken(client=f"client-{number}", digest=digest_of(str(number)), made=1.0)
            for number in range(MOST_CLIENTS)
        )
        with pytest.raises(
            SpecError, match=f"{MOST_CLIENTS} clients have a token, and more cannot: end one first"
        ):
            made(Tokens(tokens=several), "shop", "word", now=2.0)
        with pytest.raises(SpecError, match="expected a SHA-256 in hexadecimal"):
            ClientToken(client="shop", digest="zz", made=1.0)
        self.serve(deployments, spec(2))
        deployments.make_token(name, "shop")
        before = deployments.tokens(name).writes
        assert made(Tokens(), "shop", "word", now=time.time() + 1).writes > before, (
            "as after a file that was deleted"
        )

    def test_a_client_has_one_token_and_may_have_a_new_one_after_it(
        self, deployments: Any, spec: Any, name: str
    ) -> None:
        self.serve(deployments, spec(2))
        first = deployments.make_token(name, "shop")
        with pytest.raises(SpecError, match=r"client shop has a token: end it first, or make one .* shop-2"):
            deployments.make_token(name, "shop")
        deployments.end_token(name, "shop")
        with pytest.raises(NotFound, match="client 'shop' has no token; those that count are of: none"):
            deployments.end_token(name, "shop")
        assert deployments.make_token(name, "shop") != first
        old, new = deployments.tokens(name).tokens
        assert (old.client, new.client, new.ended) == ("shop", "shop", None)
        assert old.ended is not None
        assert old.made <= old.ended <= new.made

    def test_tokens_go_with_their_deployment(self, deployments: Any, spec: Any, name: str) -> None:
        with pytest.raises(NotFound, match="no deployment"):
            deployments.make_token(name, "shop")
        self.serve(deployments, spec(2))
        with pytest.raises(SpecError, match="need lower-case letters"):
            deployments.make_token(name, "The Shop")
        deployments.make_token(name, "shop")
        deployments.retire(name)
        with pytest.raises(NotFound, match="no deployment"):
            deployments.tokens(name)
        self.serve(deployments, spec(3))
        assert deployments.tokens(name).tokens == ()


class TestInMemory(TokensContract):
    """The book of tokens alone."""

    store, image, deployments = InMemory.store, InMemory.image, InMemory.deployments
    begin, finish, infer = InMemory.begin, InMemory.finish, InMemory.infer  # type: ignore[assignment]


Post = Callable[..., tuple[int, Any, str]]


@pytest.mark.data
class TestOnThisMachine(OnThisMachine):
    """Real servers, on an address beyond loopback too."""

    @pytest.fixture
    def post(self, deployments: Any, name: str) -> Post:
        """Asks for one row; returns the status, the answer and the prediction's id."""

        def post(token: str = "", *, x: float = 3, host: str = "127.0.0.1") -> tuple[int, Any, str]:
            port = int(deployments.deployment(name).url.rpartition(":")[2])
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            with closing(http.client.HTTPConnection(host, port, timeout=GUARD_SECONDS)) as connection:
                connection.request("POST", f"/v2/models/{name}/infer", json.dumps(tensor(x)), headers)
                response = connection.getresponse()
                return (
                    response.status,
                    json.loads(response.read()),
                    response.getheader("muster-prediction") or "",
                )

        return post

    def test_another_address_of_loopback_needs_no_token(
        self, deployments: Any, spec: Any, post: Post
    ) -> None:
        assert self.release(deployments, spec(2, host="127.0.0.2"), WHOLE).ending is Ending.DONE
        assert eventually(lambda: post(host="127.0.0.2"))[0] == 200

    def test_others_reach_it_with_a_token_that_counts(
        self, deployments: Any, spec: Any, name: str, post: Post, settings: Settings, store: FolderStore
    ) -> None:
        wanted = spec(2, host="0.0.0.0", tokens=True, log=RequestLog())
        # its smoke requests carry muster's own key
        assert self.release(deployments, wanted, WHOLE).ending is Ending.DONE
        eventually(lambda: deployments.deployment(name).ready)
        assert post()[0] == post(secrets.token_urlsafe(32))[0] == 401
        shop, bank = (deployments.make_token(name, client) for client in ("shop", "bank"))
        promptly(lambda: post(bank)[0] == 200, seconds=2)
        status, answer, identity = post(shop, host="127.0.0.2")  # an address that only 0.0.0.0 listens on
        assert (status, answer["outputs"][0]["data"]) == (200, [6.0])
        predictions = Predictions(settings, store)
        (row,), _ = eventually(lambda: _found(predictions, identity))
        assert row["client"] == "shop"
        predictions.commit(name)
        (row,), version = eventually(lambda: _found(predictions, identity))
        assert (row["client"], version is not None) == ("shop", True)
        assert deployments.counts(name)["r1"].requests == 2  # no refusal is the revision's

        deployments.end_token(name, "shop")
        promptly(lambda: post(shop)[0] == 401, seconds=2)
        assert "the token of shop was ended on" in post(shop)[1]["error"]
        folder = DeploymentFolder(settings.home, name)
        killed = kill_keeper(folder)
        eventually(lambda: folder.keeper() != killed and deployments.deployment(name).ready)
        assert (post(shop)[0], post(bank)[0], post()[0]) == (401, 200, 401)
        _nothing_tells(folder.path, shop, bank)
        with pytest.raises(SpecError, match=f"{name} listens on 0.0.0.0 for as long as it lives"):
            deployments.prepare(spec(3), by="test")

    def test_a_release_brings_tokens_and_limits_once_it_has_ended_and_a_rollback_takes_them_back(
        self, deployments: Any, spec: Any, name: str, post: Post
    ) -> None:
        self.serve(deployments, spec(2))
        token = deployments.make_token(name, "shop")  # ahead of the release
        limits = RequestLimits(rate=1e-6, burst=3)
        half = Plan(steps=(50,), hold_seconds=(0.0,), rules=Rules(max_error_share=0.01))
        second = spec(3, tokens=True, limits=limits)
        assert self.release(deployments, second, half).ending is Ending.HELD
        asked = [post() for _ in range(40)]
        assert {status for status, *_ in asked} == {200}
        assert {answer["model_version"] for _, answer, _ in asked} == {"r1", "r2"}

        assert self.release(deployments, second, WHOLE).ending is Ending.DONE
        promptly(lambda: post()[0] == 401, seconds=2)
        assert [post(token)[0] for _ in range(5)] == [200, 200, 200, 429, 429]
        third = self.release(deployments, spec(4, tokens=True), Plan(rules=Rules(max_error_share=0.0)))
        assert (
            third.ending is Ending.DONE
        )  # its smoke requests are not limited, and users' refusals not its errors
        promptly(lambda: post(token)[0] == 200, seconds=2)
        assert deployments.counts(name)["r3"].failed == 0


def _found(predictions: Predictions, identity: str) -> Any:
    try:
        return predictions.find(PredictionId.parse(identity))
    except NotFound:
        return None


def _nothing_tells(folder: Path, *tokens: str) -> None:
    """Fail where a token stands anywhere in a deployment's folder, or others may read its digests."""
    assert (folder / "tokens.json").stat().st_mode & 0o777 == 0o600
    for file in filter(Path.is_file, folder.rglob("*")):
        assert not any(token.encode() in file.read_bytes() for token in tokens), file


def test_only_the_latest_tokens_that_were_ended_are_remembered() -> None:
    tokens = Tokens()
    for number in range(ENDED_KEPT + 5):
        tokens = ended(made(tokens, "shop", f"{number}", now=number), "shop", now=number)
    tokens = made(tokens, "shop", "live", now=1e9)
    assert len(tokens.tokens) == ENDED_KEPT + 1
    assert tokens.tokens[0].digest == digest_of("5")
    assert tokens.live["shop"].digest == digest_of("live")
