"""The document of teams: what it must say, whose something is, and what a team's jobs may do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from muster.airflow.teams import DagFacts
from muster.core.data import UNKNOWN, Input, OutputTarget, Pinned
from muster.core.errors import SpecError
from muster.core.job import JobSpec, Role, SecretRef
from muster.ext.teams.document import Document, read

DIGEST = "b3:" + "0" * 64
TEAMS = """
shared = ["common", "hearing/public"]
[teams.vision]
queue = "vision"
volumes = "sight"
folder = "eyes/"
secrets = ["connection:vision_*", "kubernetes:vision-*"]
users = {ana = "vision-ana"}
weight = 2
[teams.speech]
queue = "speech"
volumes = "hearing"
secrets = ["connection:speech"]
"""


@pytest.fixture
def teams(tmp_path: Path) -> Document:
    return written(tmp_path, TEAMS)


def written(folder: Path, text: str) -> Document:
    file = folder / "teams.toml"
    file.write_text(text)
    return read(file)


def of(team: str, user: str = "ana") -> DagFacts:
    file = "eyes/seeing/dag.py" if team == "vision" else "seeing/dag.py"
    return DagFacts(dag_id="seeing", tags=(f"team:{team}",) * bool(team), file=file, user=user)


def job(**given: Any) -> JobSpec:
    reads = given.pop("reads", ())
    writes = given.pop("writes", "sight/model")
    inputs = {f"r{n}": Input(versions=(Pinned(address=each, digest=DIGEST),)) for n, each in enumerate(reads)}
    return JobSpec(
        name="seeing.train",
        image="train",
        image_digest=DIGEST,
        roles=(Role(entrypoint="a:b"),),
        inputs=inputs,
        outputs={"model": OutputTarget(volume=writes)},
        **given,
    )


class TestWhose:
    @pytest.mark.parametrize(
        "facts",
        [
            {"bundle_team": "vision"},
            {"tags": ("late", "team:vision"), "file": "eyes/dag.py"},
            {"file": "eyes/seeing/dag.py"},
        ],
    )
    def test_a_bundle_a_tag_or_a_folder_tells(self, teams: Document, facts: dict[str, Any]) -> None:
        assert teams.of_dag(DagFacts(dag_id="seeing", **facts)) == "vision"

    def test_a_tag_makes_no_dag_outside_of_a_teams_folder_its_own(self, teams: Document) -> None:
        with pytest.raises(SpecError, match=r"its file 'mine/dag\.py' is not in that team's folder 'eyes/'"):
            teams.of_dag(DagFacts(dag_id="x", tags=("team:vision",), file="mine/dag.py"))
        assert teams.of_dag(DagFacts(dag_id="x", tags=("team:speech",), file="mine/dag.py")) == "speech"

    @pytest.mark.parametrize("pattern", ["kubernetes:db", "kubernetes:db/password", "kubernetes:d*/*"])
    @pytest.mark.parametrize("name", ["db/password", "db/user"])
    def test_a_secret_is_a_teams_with_all_its_keys(self, tmp_path: Path, pattern: str, name: str) -> None:
        teams = written(tmp_path, f"[teams.a]\nqueue = 'a'\nvolumes = 'a'\nsecrets = ['{pattern}']\n")
        spec = job(writes="a/b", secrets={"A": SecretRef(source="kubernetes", name=name)})
        assert teams.admit(of("a"), spec).queue == "a"
        with pytest.raises(SpecError, match="which is of team 'a'"):
            teams.admit(of(""), replace(spec, outputs={"b": OutputTarget(volume="b")}))

    def test_a_dag_that_nothing_claims_is_of_no_team(self, teams: Document) -> None:
        assert teams.of_dag(DagFacts(dag_id="x", tags=("teams", "late"), file="eyesight/dag.py")) == ""

    @pytest.mark.parametrize(
        "facts",
        [
            {"bundle_team": "vision", "tags": ("team:speech",)},
            {"tags": ("team:speech", "team:vision")},
            {"tags": ("team:speech",), "file": "eyes/dag.py"},
        ],
    )
    def test_one_of_two_teams_is_refused(self, teams: Document, facts: dict[str, Any]) -> None:
        with pytest.raises(SpecError, match=r"Dag x is of two teams: .*(vision|speech).*: leave it to one"):
            teams.of_dag(DagFacts(dag_id="x", **facts))

    @pytest.mark.parametrize("name", ["robots", "", "../vision", "vision\n", "VISION", "x" * 400, "<b>"])
    def test_a_name_that_the_document_lacks_is_refused(self, teams: Document, name: str) -> None:
        with pytest.raises(SpecError, match="names no such team; it names vision, speech") as refused:
            teams.of_dag(DagFacts(dag_id="x", tags=(f"team:{name}",)))
        assert len(str(refused.value)) < 500
        assert "\n" not in str(refused.value)

    def test_volumes_and_queues(self, teams: Document, tmp_path: Path) -> None:
        volumes = ("sight/a/b", "sight", "sightings/a", "hearing/public/a", "common/x")
        assert [teams.of_volume(each) for each in volumes] == ["vision", "", "", "speech", ""]
        assert [teams.of_queue(each) for each in ("vision-ana", "speech", "else")] == ["vision", "speech", ""]
        assert teams.may_read("vision", "hearing/public/a")
        assert not teams.may_read("vision", "hearing/publications")
        assert not teams.may_read("vision", "mine/a")


class TestJobs:
    def test_a_team_writes_below_its_prefix_in_its_queue(self, teams: Document) -> None:
        reads = ["volume://sight/a@1", "volume://common/a@2", "volume://hearing/public/x@1"]
        secrets = {"A": SecretRef(source="connection", name="vision_db#password")}
        spec = job(reads=reads, secrets=secrets)
        assert teams.admit(of("vision", "ben"), spec).queue == "vision"
        assert teams.admit(of("vision", "ana"), spec).queue == "vision-ana"
        assert teams.admit(of("vision", "ben"), job(queue="vision-ana")).queue == "vision-ana"

    @pytest.mark.parametrize(
        ("team", "given", "said"),
        [
            (
                "vision",
                {"writes": "hearing/x"},
                "writes volume hearing/x, which is of team 'speech'; team 'vision' has sight/",
            ),
            ("vision", {"writes": "other/x"}, "which is of no team"),
            ("vision", {"writes": "common/x"}, "writes volume common/x"),
            ("vision", {"reads": ["volume://hearing/a@1"]}, "reads volume hearing/a"),
            ("vision", {"reads": ["volume://mine/a@1"]}, "reads volume mine/a, which is of no team"),
            (
                "vision",
                {"queue": "speech"},
                "names the queue 'speech', which is of team 'speech'; team 'vision' has vision, vision-ana",
            ),
            ("vision", {"queue": "else"}, "names the queue 'else'"),
            (
                "vision",
                {"secrets": {"A": SecretRef(source="connection", name="speech#x")}},
                "takes the secret 'connection:speech#x'",
            ),
            (
                "vision",
                {"secrets": {"A": SecretRef(source="environment", name="vision_x")}},
                "'environment:vision_x'",
            ),
            (
                "vision",
                {
                    "pod_override": {
                        "spec": {
                            "containers": [
                                {
                                    "env": [
                                        {
                                            "name": "A",
                                            "valueFrom": {"secretKeyRef": {"name": "speech-db", "key": "k"}},
                                        }
                                    ]
                                }
                            ]
                        }
                    }
                },
                "'kubernetes:speech-db/k'",
            ),
            (
                "vision",
                {"pod_override": {"spec": {"volumes": [{"name": "a", "secret": {"secretName": "speech"}}]}}},
                "'kubernetes:speech/'",
            ),
            (
                "vision",
                {"pod_override": {"spec": {"imagePullSecrets": [{"name": "speech"}]}}},
                "'kubernetes:speech/'",
            ),
            (
                "vision",
                {"pod_override": {"metadata": {"labels": {"kueue.x-k8s.io/queue-name": "vision"}}}},
                "in pod_override",
            ),
            ("", {}, "a Dag of no team has what no team has"),
            ("", {"writes": "a/b", "reads": ["volume://sight/a@1"]}, "reads volume sight/a"),
            ("", {"writes": "a/b", "queue": "vision"}, "a Dag of no team has what no team has"),
            (
                "",
                {"writes": "a/b", "secrets": {"A": SecretRef(source="kubernetes", name="vision-db/key")}},
                "which is of team 'vision'",
            ),
        ],
    )
    def test_what_is_not_the_teams_is_refused(
        self, teams: Document, team: str, given: dict[str, Any], said: str
    ) -> None:
        with pytest.raises(SpecError) as refused:
            teams.admit(of(team), job(**given))
        assert said in str(refused.value)

    def test_a_dag_of_no_team_keeps_what_no_team_has(self, teams: Document) -> None:
        spec = job(writes="a/b", queue="else", reads=["volume://a/c@1", "volume://common/x@1"])
        assert teams.admit(of("", ""), spec) == spec

    def test_a_draft_is_judged_by_what_the_dag_file_tells(self, teams: Document) -> None:
        begins = {"before": Input(versions=(Pinned(address="volume://stand-in@1", digest=DIGEST),))}
        told = OutputTarget(volume="sight/raw", base="before", after=0)
        draft = replace(job(), inputs=begins, outputs={"a": told, "b": OutputTarget(volume=UNKNOWN)})
        teams.admit_drafts(of("vision"), [None, draft])
        with pytest.raises(SpecError, match="writes volume sight/raw"):
            teams.admit_drafts(of("speech"), [draft])

    def test_the_whole_store_is_for_dags_of_no_team(self, teams: Document) -> None:
        teams.admit_use(of(""), "task clean", reads=["deployment://x"], writes=["*"])
        with pytest.raises(SpecError, match="task clean writes volume \\*"):
            teams.admit_use(of("vision"), "task clean", reads=[], writes=["*"])


class TestDocument:
    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("teams = 1", "expected an object"),
            ("[teams.vision]\nvolumes = 'a'", "queue"),
            ("[teams.vision]\nqueue = 'a'", "volumes"),
            ("[teams.vision]\nqueue = 'a'\nvolumes = 'a'\ncolour = 'red'", "colour"),
            ("[teams.vision]\nqueue = 'A b'\nvolumes = 'a'", "queue 'A b'"),
            ("[teams.vision]\nqueue = ''\nvolumes = 'a'", "queue ''"),
            ("[teams.vision]\nqueue = 'a'\nvolumes = '../a'", "volume '../a'"),
            ("[teams.vision]\nqueue = 'a'\nvolumes = 'a'\nweight = 0", "weight is 0"),
            ("[teams.vision]\nqueue = 'a'\nvolumes = 'a'\nfolder = '../b'", "folder '../b'"),
            ("[teams.'../x']\nqueue = 'a'\nvolumes = 'a'", "team '../x'"),
            (
                "[teams.a]\nqueue = 'q'\nvolumes = 'a'\n[teams.b]\nqueue = 'q'\nvolumes = 'b'",
                "queues of the teams 'a' and 'b' are 'q' and 'q'",
            ),
            (
                "[teams.a]\nqueue = 'q'\nvolumes = 'v'\n[teams.x]\nqueue = 'x'\nvolumes = 'v-x'\n[teams.b]\nqueue = 'r'\nvolumes = 'v/w'",
                "neither may hold the other",
            ),
            ("shared = ['*']\n[teams]", "volume '*'"),
            ("[teams", "names teams wrongly"),
        ],
    )
    def test_what_is_wrong_is_named(self, tmp_path: Path, text: str, said: str) -> None:
        with pytest.raises(SpecError) as refused:
            written(tmp_path, text)
        assert said in str(refused.value)
        assert "teams.toml names teams wrongly" in str(refused.value)

    def test_one_that_is_not_there_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(SpecError, match=r"none\.toml cannot be read \(No such file"):
            read(tmp_path / "none.toml")

    def test_a_change_is_seen(self, tmp_path: Path) -> None:
        assert "robots" not in written(tmp_path, TEAMS).teams
        text = TEAMS + "[teams.robots]\nqueue = 'robots'\nvolumes = 'robots'\n"
        (tmp_path / "new").write_text(text)
        (tmp_path / "new").replace(tmp_path / "teams.toml")
        assert "robots" in read(tmp_path / "teams.toml").teams
