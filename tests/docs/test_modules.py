"""The modules that the pages on a job's and a release's life name are there, on the page and in its picture."""

from __future__ import annotations

import re

import pytest
from tests.docs.page import DOCS, ROOT

ROOMS = "airflow|backends|cli|core|images|volumes|worker"
MODULE = re.compile(rf"(?<![\w./])((?:{ROOMS})(?:\.[a-z_]+)+)(?![\w/])")
PACKAGE = ROOT / "operators" / "muster"


@pytest.mark.parametrize("name", ["life-of-a-job", "life-of-a-release"])
def test_every_module_that_a_page_names_is_there(name: str) -> None:
    page, picture = DOCS / f"{name}.md", DOCS / "images" / f"{name}.svg"
    for text in (page.read_text(), picture.read_text()):
        named = set(MODULE.findall(text))
        assert len(named) > 10
        assert sorted(module for module in named if not is_module(module)) == []


def is_module(name: str) -> bool:
    path = PACKAGE.joinpath(*name.split("."))
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()
