"""``muster volumes`` on a real store."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.cli.conftest import make_spec, run_job

from muster.volumes.folder import FolderStore

Run = Callable[..., Any]


@pytest.mark.usefixtures("history")
class TestReading:
    def test_ls_names_each_volume_with_its_latest(self, muster: Run) -> None:
        lines = muster("volumes", "ls").out.splitlines()
        assert lines[0].split() == ["volume", "versions", "latest", "partition", "size", "made"]
        assert lines[1].split()[:4] == ["flights/features", "2", "@2", "2013-02"]
        assert lines[2].split()[:4] == ["flights/model", "2", "@2", "-"]

    def test_ls_json(self, muster: Run) -> None:
        features, model = muster("volumes", "ls", "--json").json()
        assert (features["volume"], features["versions"]) == ("flights/features", 2)
        assert model["latest"]["address"] == "volume://flights/model@2"

    def test_log_shows_the_lineage_newest_first(self, muster: Run) -> None:
        out = muster("volumes", "log", "flights/model").out
        assert out.index("flights/model@2") < out.index("flights/model@1")
        second = out[: out.index("flights/model@1")]
        for known in (
            "flights / manual-1 / train",
            "train-2 (flights.train, output model)",
            "flights.train:train",
            "features = flights/features@1 (b3:",
            "flights/features@2 (b3:",
            "epochs=2",
            "auc=0.72",
        ):
            assert known in second

    def test_log_json_holds_inputs_with_their_digests(self, muster: Run, history: FolderStore) -> None:
        newest, oldest = muster("volumes", "log", "flights/model", "--json").json()
        (features,) = oldest["record"]["inputs"]["features"]
        assert features["digest"] == history.resolve("flights/features@2013-01")[0].digest
        assert newest["record"]["params"] == {"epochs": 2}
        assert newest["record"]["metrics"] == {"auc": 0.72}

    def test_log_says_how_many_it_left_out(self, muster: Run) -> None:
        answer = muster("volumes", "log", "flights/model", "--limit", "1")
        assert "flights/model@1" not in answer.out
        assert "1 older version" in answer.err

    def test_log_reads_no_more_than_it_shows(
        self, muster: Run, history: FolderStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("versions", "resolve"):
            monkeypatch.setattr(FolderStore, name, lambda *_: pytest.fail("all versions are read"))
        (only,) = muster("volumes", "log", "flights/model", "--limit", "1", "--json").json()
        assert only["record"]["number"] == 2

    def test_log_sorts_by_a_metric_or_a_param(self, muster: Run) -> None:
        head, *rows = muster(
            "volumes", "log", "flights/model", "--sort", "auc", "--columns", "epochs,auc"
        ).out.splitlines()
        assert head.split() == ["version", "partition", "made", "epochs", "auc"]
        assert [(row.split()[0], *row.split()[-2:]) for row in rows] == [
            ("@2", "2", "0.72"),
            ("@1", "1", "0.71"),
        ]
        least = muster("volumes", "log", "flights/model", "--sort", "epochs", "--ascending", "--limit", 1)
        assert least.out.splitlines()[1].split()[0] == "@1"
        assert "1 other version" in least.err
        told = muster("volumes", "log", "flights/model", "--sort", "auc", "--ascending", "--json").json()
        assert [each["number"] for each in told] == [1, 2]
        assert told == muster("volumes", "log", "flights/model", "--json").json()[::-1]

    def test_log_with_columns_alone_stays_newest_first(self, muster: Run) -> None:
        rows = muster("volumes", "log", "flights/model", "--columns", "auc").out.splitlines()[1:]
        assert [row.split()[0] for row in rows] == ["@2", "@1"]

    @pytest.mark.parametrize("option", ["--sort", "--columns"])
    def test_log_refuses_a_name_that_no_version_has(self, muster: Run, option: str) -> None:
        answer = muster("volumes", "log", "flights/model", option, "acu")
        assert answer.code == 1
        assert (
            "no version here has a metric or param 'acu'; did you mean auc?; there are auc, epochs"
            in answer.err
        )

    def test_log_takes_a_selector(self, muster: Run) -> None:
        found = muster("volumes", "log", "flights/features@<2013-02", "--json").json()
        assert [version["number"] for version in found] == [1]

    def test_show_lists_the_files_with_hashes(self, muster: Run) -> None:
        out = muster("volumes", "show", "flights/model@1").out
        assert "model.onnx" in out
        assert "card.md" in out
        document = muster("volumes", "show", "flights/model@1", "--json").json()
        assert [entry["path"] for entry in document["entries"]] == ["card.md", "model.onnx"]
        assert Path(document["path"], "card.md").read_bytes() == b"a model"

    def test_show_traces_back_to_what_it_was_made_from(self, muster: Run) -> None:
        out = muster("volumes", "show", "flights/model@2").out
        assert out.index("made from") < out.index("flights/features@1 (b3:", out.index("made from"))
        assert "by flights.features, code -" in out
        ancestors = muster("volumes", "show", "flights/model@2", "--json").json()["ancestors"]
        assert [a["address"] for a in ancestors if a["depth"] == 1] == [
            "volume://flights/features@1",
            "volume://flights/features@2",
        ]

    def test_a_version_that_gc_deleted_still_says_where_it_came_from(self, muster: Run) -> None:
        muster("volumes", "gc", "--keep", "1", "--yes")
        out = muster("volumes", "show", "flights/model@1").out
        assert "data deleted by gc" in out
        assert "epochs=1" in out
        assert "model.onnx" in out
        assert muster("volumes", "show", "flights/model@1", "--json").json()["deleted"] is True
        assert "deleted by gc" in muster("volumes", "get", "flights/model@1", "here").err

    def test_diff_names_changed_files_and_facts(self, muster: Run) -> None:
        out = muster("volumes", "diff", "flights/model@1", "flights/model@2").out
        assert "~ model.onnx  50 B → 100 B" in out
        assert "card.md" not in out
        assert "params.epochs: 1 → 2" in out
        assert "metrics.auc: 0.71 → 0.72" in out

    def test_diff_says_in_words_what_is_not_there(self, muster: Run) -> None:
        out = muster("volumes", "diff", "flights/features@1", "flights/model@2").out
        assert "metrics.auc: none → 0.72" in out
        assert "None" not in out

    def test_diff_json(self, muster: Run) -> None:
        document = muster("volumes", "diff", "flights/model@1", "flights/model@2", "--json").json()
        assert document["files"]["changed"] == {"model.onnx": [50, 100]}
        assert document["files"]["same_files"] == 1
        assert {"name": "params.epochs", "old": 1, "new": 2} in document["record"]

    def test_diff_of_a_version_with_itself(self, muster: Run) -> None:
        answer = muster("volumes", "diff", "flights/model@1", "flights/model@1")
        assert answer.out == ""
        assert "the same" in answer.err

    def test_ls_goes_on_beside_a_volume_of_which_all_is_damaged(
        self, muster: Run, history: FolderStore
    ) -> None:
        for number in (1, 2):
            record = history.layout.version("flights/model", number) / "RECORD.json"
            record.chmod(0o644)
            record.write_text(record.read_text().replace('"job_id":"train', '"job_id":"other'))
        answer = muster("volumes", "ls")
        assert answer.code == 0
        assert [line.split()[:3] for line in answer.out.splitlines()[1:]] == [
            ["flights/features", "2", "@2"],
            ["flights/model", "2", "-"],
        ]
        assert "flights/model@1 is damaged" in " ".join(answer.err.split())


class TestCode:
    @pytest.fixture
    def trained(self, store: FolderStore, tmp_path: Path) -> list[str]:
        """The code of two versions: one file of it changed, one is new, one is the same."""
        digests = []
        for number in (1, 2):
            code = tmp_path / f"code-{number}"
            (code / "lib").mkdir(parents=True)
            (code / "train.py").write_text(f"epochs = {number}\n")
            (code / "lib" / "same.py").write_text("same\n")
            (code / f"only{number}.py").write_text("")
            digests.append(store.put(code, ["train.py", "lib/same.py", f"only{number}.py"]))
            spec = make_spec(code=digests[-1])
            run_job(store, f"train-{number}", spec, {"model": {"m": b"m"}})
        return digests

    def test_the_code_of_a_version_is_listed_and_printed(self, muster: Run, trained: list[str]) -> None:
        listed = [line.split()[-1] for line in muster("volumes", "code", "flights/model@1").out.splitlines()]
        assert listed == ["file", "lib/same.py", "only1.py", "train.py"]
        for named in ("flights/model@2", trained[1], trained[1][:11]):
            assert muster("volumes", "code", named, "train.py").out == "epochs = 2\n"
        one = muster("volumes", "code", "flights/model", "train.py", "--json").json()
        assert one == {"code": trained[1], "file": "train.py", "text": "epochs = 2\n"}
        document = muster("volumes", "code", "flights/model", "--json").json()
        assert document == {"code": trained[1], "files": {"lib/same.py": 5, "only2.py": 0, "train.py": 11}}

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            (["flights/model", "none.py"], "holds no 'none.py'; it holds lib/same.py, only2.py, train.py"),
            (["b3:0000"], "no code snapshot b3:0000"),
            (["b3:"], "is no digest: expected b3: and its first digits"),
            (["b3:../"], "is no digest"),
        ],
    )
    @pytest.mark.usefixtures("trained")
    def test_what_is_not_there_is_said(self, muster: Run, words: list[str], message: str) -> None:
        answer = muster("volumes", "code", *words)
        assert answer.code == 1
        assert message in " ".join(answer.err.split())

    @pytest.mark.usefixtures("history")
    def test_a_version_that_no_code_made_says_so(self, muster: Run) -> None:
        assert "was not made by a Dag's code" in muster("volumes", "code", "flights/features@1").err

    @pytest.mark.usefixtures("trained")
    def test_diff_names_the_files_of_the_code_that_differ(self, muster: Run) -> None:
        lines = muster("volumes", "diff", "flights/model@1", "flights/model@2").out.splitlines()
        assert lines[0].startswith("  code: b3:")
        assert lines[1:4] == ["    only1.py (gone)", "    only2.py (new)", "    train.py (changed)"]
        document = muster("volumes", "diff", "flights/model@1", "flights/model@2", "--json").json()
        assert document["code"] == ["only1.py (gone)", "only2.py (new)", "train.py (changed)"]

    def test_diff_says_where_code_is_gone(self, muster: Run, store: FolderStore, trained: list[str]) -> None:
        store.layout.delete(store.layout.code(trained[0]))
        answer = muster("volumes", "diff", "flights/model@1", "flights/model@2")
        assert answer.code == 0
        assert "the differing files of the code are unknown" in " ".join(answer.err.split())


class TestPutAndGet:
    def test_a_folder_goes_in_and_comes_out(self, muster: Run, tmp_path: Path) -> None:
        rows = tmp_path / "rows" / "deep"
        rows.mkdir(parents=True)
        (rows / "a.csv").write_text("a,b\n1,2\n")
        put = muster("volumes", "put", tmp_path / "rows", "raw/rows", "--partition", "2013-03")
        assert put.out == "volume://raw/rows@1\n"
        got = muster("volumes", "get", "raw/rows@2013-03", tmp_path / "copy")
        assert got.code == 0
        copy = tmp_path / "copy" / "deep" / "a.csv"
        assert copy.read_text() == "a,b\n1,2\n"
        assert os.access(copy, os.W_OK)
        assert sorted(path.name for path in tmp_path.iterdir()) == [".muster", "copy", "rows"]

    def test_put_records_where_it_came_from(self, muster: Run, tmp_path: Path) -> None:
        (tmp_path / "a.csv").write_text("a\n")
        version = muster("volumes", "put", tmp_path / "a.csv", "raw/a", "--json").json()
        assert version["files"] == 1
        assert f"put from {tmp_path / 'a.csv'}" in muster("volumes", "log", "raw/a").out

    @pytest.mark.usefixtures("history")
    def test_one_file_comes_out(self, muster: Run, tmp_path: Path) -> None:
        muster("volumes", "get", "flights/model@1/card.md", tmp_path / "card.md")
        assert (tmp_path / "card.md").read_bytes() == b"a model"

    @pytest.mark.parametrize("address", ["flights/model@1", "flights/model@1/card.md"])
    def test_get_gives_out_no_bytes_that_were_not_committed(
        self, muster: Run, history: FolderStore, tmp_path: Path, address: str
    ) -> None:
        card = history.path("flights/model@1") / "card.md"
        card.chmod(0o644)
        card.write_bytes(b"a mODEL")
        answer = muster("volumes", "get", address, tmp_path / "out")
        assert answer.code == 1
        assert "'card.md' differs from what was committed: nothing was copied" in " ".join(answer.err.split())
        assert not (tmp_path / "out").exists()
        assert muster("volumes", "get", "flights/model@1/model.onnx", tmp_path / "out").code == 0

    def test_get_names_a_file_that_is_none_any_more(
        self, muster: Run, history: FolderStore, tmp_path: Path
    ) -> None:
        card = history.path("flights/model@1") / "card.md"
        card.parent.chmod(0o755)
        card.rename(tmp_path / "moved")
        card.symlink_to(tmp_path / "moved")
        answer = muster("volumes", "get", "flights/model@1", tmp_path / "out")
        assert "no regular file is there ('card.md')" in " ".join(answer.err.split())

    @pytest.mark.usefixtures("history")
    def test_get_says_how_a_file_is_named(self, muster: Run, tmp_path: Path) -> None:
        answer = muster("volumes", "get", "flights/model/card.md", tmp_path / "out")
        assert "a file of it is named flights/model@latest/card.md" in " ".join(answer.err.split())
        assert muster("volumes", "get", "flights/model@latest/card.md", tmp_path / "out").code == 0

    @pytest.mark.usefixtures("history")
    def test_a_connection_is_for_an_object_store(
        self, muster: Run, history: FolderStore, tmp_path: Path
    ) -> None:
        for words in (("get", "flights/model@1"), ("put", str(tmp_path), "lab/x")):
            answer = muster("volumes", *words, "--connection", "s3")
            assert (answer.code, "name an object store" in answer.err) == (1, True)
        assert not Path("model").exists()

    def test_get_never_writes_over_what_is_there(self, muster: Run, tmp_path: Path) -> None:
        (tmp_path / "mine").write_text("mine")
        answer = muster("volumes", "get", "flights/model@1", tmp_path / "mine")
        assert answer.code == 1
        assert "already exists" in answer.err
        assert (tmp_path / "mine").read_text() == "mine"

    @pytest.mark.usefixtures("history")
    @pytest.mark.parametrize("url", ["http://127.0.0.1:9/x", "HTTPS://lake.example/x"])
    def test_get_refuses_a_web_server(self, muster: Run, url: str) -> None:
        answer = muster("volumes", "get", "flights/model@1", url)
        assert answer.code == 1
        assert "is a web server, to which nothing is copied: name a folder, s3://" in answer.err


@pytest.mark.usefixtures("history")
class TestPins:
    def test_retire_and_reinstate(self, muster: Run, history: FolderStore) -> None:
        newest = history.resolve("flights/model@latest")[0]
        said = muster("volumes", "retire", newest.address, "--reason", "torn").out
        assert "is retired: torn" in " ".join(said.split())
        assert history.resolve(newest.address)[0].retired == "torn"
        assert history.resolve("flights/model@latest")[0] != newest
        assert "is live" in muster("volumes", "reinstate", newest.address).out
        assert history.resolve("flights/model@latest")[0] == newest

    def test_pin_and_unpin(self, muster: Run, history: FolderStore) -> None:
        assert "in the paper" in muster("volumes", "pin", "flights/model@1", "--reason", "in the paper").out
        assert history.resolve("flights/model@1")[0].pins == ("in the paper",)
        assert "not pinned" in muster("volumes", "unpin", "flights/model@1", "--reason", "in the paper").out
        assert history.resolve("flights/model@1")[0].pins == ()

    def test_what_a_deployment_serves_is_not_retired_and_a_pin_that_is_not_there_is_no_success(
        self, muster: Run, history: FolderStore
    ) -> None:
        history.pin("flights/model@1", reason="deployment/flights")
        refused = muster("volumes", "retire", "flights/model@1")
        assert refused.code == 1
        assert "is served by deployment flights, or kept there for a rollback" in " ".join(
            refused.err.split()
        )
        assert not history.resolve("flights/model@1")[0].retired
        unknown = muster("volumes", "unpin", "flights/model@1", "--reason", "in the paper")
        assert unknown.code == 1
        assert "has no pin 'in the paper'; its pins are 'deployment/flights'" in " ".join(unknown.err.split())

    def test_a_hostile_reason_is_shown_harmless(self, muster: Run) -> None:
        muster("volumes", "pin", "flights/model@1", "--reason", "a\x1b]0;gone\x07\nb [red]x[/red]")
        out = muster("volumes", "show", "flights/model@1").out
        assert "\x1b" not in out
        assert r"a\x1b]0;gone\x07\nb [red]x[/red]" in out
