"""Every example of docs/ does what the page says, typed in a folder of its own."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from tests.docs.page import DOCS, ROOT, File, Typed, missing, pages, steps
from tests.e2e.author import MUSTER, Author

PAGES = {str(page.relative_to(DOCS)): page for page in pages()}
RUN = [
    name
    for name, page in PAGES.items()
    if any(isinstance(s, Typed) and not s.note.startswith("not") for s in steps(page))
]


@pytest.mark.slow
@pytest.mark.parametrize("name", RUN)
def test_the_examples_run(name: str, tmp_path: Path) -> None:
    with Author(tmp_path) as author:
        for step in steps(PAGES[name]):
            if isinstance(step, File):
                (tmp_path / step.path).parent.mkdir(parents=True, exist_ok=True)
                (tmp_path / step.path).write_text(step.text)
            elif not step.note.startswith("not run"):
                type_in(author, step)


def type_in(author: Author, step: Typed) -> None:
    done = subprocess.run(
        ["bash", "-e", "-c", step.commands],
        cwd=author.folder,
        env=author.environment | {"PATH": f"{MUSTER.parent}:{author.environment['PATH']}"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
        check=False,
    )
    assert (done.returncode != 0) == (step.note == "fails"), f"{step.commands}\n{done.stdout[-4000:]}"
    assert missing(step.prints, done.stdout) == [], f"{step.commands}\n{done.stdout[-4000:]}"


@pytest.mark.parametrize("expected", ["three", "two\none", "o…x", "one two"])
def test_a_line_that_is_not_printed_is_missed(expected: str) -> None:
    said = "one\n  two   words\n"
    assert missing(expected, said) != []
    assert missing("o…\ntwo words", said) == []


@pytest.mark.parametrize("name", PAGES)
def test_every_link_leads_somewhere(name: str) -> None:
    page = PAGES[name]
    links = [link for link in re.findall(r"\]\(([^)#]+)", page.read_text()) if "://" not in link]
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_every_page_is_in_the_index() -> None:
    index = (DOCS / "index.md").read_text()
    assert [name for name in PAGES if name != "index.md" and f"]({name})" not in index] == []
    assert "docs/index.md" in (ROOT / "README.md").read_text()
