"""Every example of docs/ does what the page says, typed in a folder of its own."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

import pytest
from tests.docs.page import DOCS, ROOT, Typed, missing, pages, steps
from tests.docs.terminal import follow, read_on
from tests.e2e.author import WARM, Author

PAGES = {str(page.relative_to(DOCS)): page for page in pages()}
RUN = [
    name
    for name, page in PAGES.items()
    if name != "tutorial.md"  # test_tutorial.py does what it says, and goes on in its folder
    and any(isinstance(s, Typed) and not s.note.startswith("not") for s in steps(page))
]

LONG = {  # seconds of CPU each; what they type is run by these tests, too, and `make test-nightly` types it
    "howto/ask.md": "serving/test_http.py, serving/test_grpc.py, unit/client/test_deployments.py",
    "howto/cache.md": "airflow/test_cache.py, unit/cli/test_cache.py",
    "howto/check-the-store.md": "contract/test_store.py, unit/cli/test_volumes.py",
    "howto/elastic.md": "contract/test_elastic.py",
    "howto/from-csv.md": "docs/test_tutorial.py, dags/flights/test_etl.py, serving/test_nulls.py, serving/test_predictors.py",
    "howto/functions.md": "airflow/test_authoring.py, airflow/test_decorators.py",
    "howto/gangs.md": "contract/test_backend.py, airflow/test_run.py, unit/worker/test_torch.py",
    "howto/gate-and-deploy.md": "airflow/test_gate.py, contract/test_deployments.py",
    "howto/install.md": "cli/test_readme.py, unit/cli/test_init.py, e2e/test_wheel.py",
    "howto/jobs.md": "cli/test_readme.py, cli/test_run.py",
    "howto/keep-and-delete.md": "airflow/test_retention.py, unit/cli/test_volumes.py",
    "howto/mirrors.md": "contract/test_mirrors.py, airflow/test_mirror.py",
    "howto/mlflow.md": "cli/test_mlflow.py",
    "howto/models.md": "dags/flights/test_train.py, contract/test_deployments.py",
    "howto/python.md": "unit/client/test_versions.py, cli/test_notebook.py",
    "howto/release.md": "airflow/test_releases.py, unit/cli/test_deployments.py",
    "howto/resume.md": "airflow/test_run.py, cli/test_run.py",
    "howto/runs.md": "cli/test_run.py, unit/cli/test_runs.py",
    "howto/schedules.md": "airflow/test_backfill.py",
    "howto/search.md": "contract/test_search.py, airflow/test_search_results.py",
    "howto/secrets.md": "contract/test_backend.py, airflow/test_run.py",
    "howto/validate.md": "airflow/test_cache.py, airflow/test_validate.py, dags/flights/test_validate.py",
}


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Author]:
    """Of one page after the other; one process waits for the runs of all of them."""
    with Author(tmp_path_factory.mktemp("page"), **WARM) as author:
        yield author


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.nightly] if name in LONG else []) for name in RUN],
)
def test_the_examples_run(name: str, reader: Author) -> None:
    try:
        follow(reader, PAGES[name])
    finally:
        reader.begin_anew()


@pytest.fixture(scope="module")
def commands() -> dict[str, set[str]]:
    """Every command of muster with its options, as `--help` says them."""
    parts = re.split(r"^## (muster.*)$", (DOCS / "command.md").read_text(), flags=re.MULTILINE)[1:]
    return {
        name: {"--help", *re.findall(r"(?<![\w-])--[a-z][\w-]*", text)}
        for name, text in zip(parts[::2], parts[1::2], strict=True)
    }


@pytest.mark.parametrize("name", PAGES)
def test_each_command_of_muster_that_a_page_types_exists(name: str, commands: dict[str, set[str]]) -> None:
    """Also on the pages that only `make test-nightly` follows, and in blocks that are not run."""
    typed = "\n".join(each.commands for each in steps(PAGES[name]) if isinstance(each, Typed))
    for words in re.findall(r"(?:^|[\s/])(muster(?= [a-z][a-z-]*(?:\s|$))(?: [^\s#|;&)]+)+)", typed):
        found = max((each for each in commands if f"{words} ".startswith(f"{each} ")), key=len)
        rest = words.removeprefix(found).split()
        assert rest or found != "muster", words
        group = any(each.startswith(f"{found} ") for each in commands)
        assert not group or rest[0].startswith("-"), f"{words}: no such command"
        own = takewhile(lambda word: word != "--", rest)  # after it stands another program's command
        options = {word.partition("=")[0] for word in own if word.startswith("--")}
        assert options <= commands[found], words


def test_commands_after_a_sentence_that_begins_with_a_name_are_typed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("`fsck` finds it, the mirror has the same bytes:\n```sh\ntrue\n```\n")
    assert list(steps(page)) == [Typed("true\n", "", "")]


def test_a_shell_that_says_nothing_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.docs.terminal.LONGEST_SECONDS", 0.1)
    with (
        subprocess.Popen(
            ["sleep", "600"], stdout=subprocess.PIPE, text=True, start_new_session=True
        ) as shell,
        pytest.raises(AssertionError, match="'something' was not said"),
    ):
        read_on(shell, "something")
    assert shell.returncode == -signal.SIGKILL


@pytest.mark.parametrize("expected", ["three", "two\none", "o…x", "one two"])
def test_a_line_that_is_not_printed_is_missed(expected: str) -> None:
    said = "one\n  two   words\n"
    assert missing(expected, said) != []
    assert missing("o…\ntwo words", said) == []


def anchors(page: Path) -> set[str]:
    """What links to headings of a page may say after the #, as GitHub makes it."""
    headings = re.findall(
        r"^#+ (.*)$",
        re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE),
        re.MULTILINE,
    )
    return {
        re.sub(r"[^\w -]", "", re.sub(r"\]\(.*?\)", "", text).lower()).replace(" ", "-") for text in headings
    }


@pytest.mark.parametrize(
    "page", [*DOCS.rglob("*.md"), *ROOT.glob("*.md")], ids=lambda page: str(page.relative_to(ROOT))
)
def test_every_link_leads_somewhere(page: Path) -> None:
    links = [
        link.partition("#") for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()) if "://" not in link
    ]
    targets = [(page.parent / file if file else page, anchor) for file, _, anchor in links]
    assert [file for file, _ in targets if not file.exists()] == []
    assert [(file.name, anchor) for file, anchor in targets if anchor and anchor not in anchors(file)] == []


def test_the_long_pages_are_pages_and_what_runs_their_ways_is_there() -> None:
    assert LONG.keys() <= {*RUN}
    places = {place for words in LONG.values() for place in words.split(", ")}
    assert [place for place in places if not (ROOT / "tests" / place).exists()] == []


def test_every_page_is_in_the_index() -> None:
    index = (DOCS / "index.md").read_text()
    assert [name for name in PAGES if name != "index.md" and f"]({name})" not in index] == []
    assert "docs/index.md" in (ROOT / "README.md").read_text()
