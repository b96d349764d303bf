"""Counts of the source itself, for each named checkout: ``python -m benchmarks.house [--json] [FOLDER …]``.

Each count is a function, and its docstring defines it. No code of a checkout runs: the counts come from its
files, its syntax trees and its import graph, so that an earlier commit can be counted beside this one.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path

import grimp

SOURCE = Path("operators/muster")
DIALECT = re.compile(
    r"\b(?:who(?:m|so)?ever|nobody|somebody|anybody|everybody|no one|someone)\b", re.IGNORECASE
)
PROSE = {".md", ".py", ".toml", ".yaml", ".yml", ".js", ".html", ".txt"}
GANG = {
    "one machine": (
        "airflow.operators.job",
        "backends.local.backend",
        "backends.local.supervisor",
        "worker.replica",
    ),
    "a cluster": (
        "airflow.operators.job",
        "backends.kubernetes.backend",
        "volumes.service.app",
        "worker.pod",
    ),
}
"""Per place: the modules in which the processes of a gang begin."""


class Checkout:
    """A checkout's tracked files, and what its modules import.

    :param folder: a git work tree of muster.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @cached_property
    def files(self) -> list[Path]:
        """Tracked files, relative to the folder."""
        listed = ["git", "-C", str(self.folder), "ls-files", "-z"]
        names = subprocess.run(listed, check=True, capture_output=True, text=True).stdout.split("\0")
        return [Path(name) for name in names if name and (self.folder / name).is_file()]

    @cached_property
    def modules(self) -> dict[str, ast.Module]:
        """The syntax tree of each module of muster, by its dotted name below the package."""
        found = {}
        for path in self.files:
            if path.is_relative_to(SOURCE) and path.suffix == ".py":
                parts = path.relative_to(SOURCE).with_suffix("").parts
                name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
                found[name] = ast.parse((self.folder / path).read_text())
        return found

    @cached_property
    def imports(self) -> dict[str, set[str]]:
        """The modules that each module imports anywhere, except for the type checker only."""
        sys.path.insert(0, str(self.folder / SOURCE.parent))
        try:
            graph = grimp.build_graph("muster", exclude_type_checking_imports=True, cache_dir=None)
        finally:
            sys.path.pop(0)
        short = {name: name.removeprefix("muster").removeprefix(".") for name in graph.modules}
        return {
            short[name]: {short[each] for each in graph.find_modules_directly_imported_by(name)}
            for name in short
        }

    def reached(self, starts: Iterable[str]) -> set[str]:
        """Return the modules that are imported by `starts`, directly or not, and `starts`."""
        found, waiting = set[str](), [name for name in starts if name in self.imports]
        while waiting:
            if (name := waiting.pop()) not in found:
                found.add(name)
                waiting += self.imports[name]
        return found


def lines_by_room(checkout: Checkout) -> dict[str, int]:
    """Count lines of Python, blank ones and comments too, by room: the folder below operators/muster, or the top's."""
    found = Counter[str]()
    for path in checkout.files:
        if path.suffix == ".py":
            inside = path.parts[2:] if path.is_relative_to(SOURCE) else path.parts
            rooms = inside[:-1][:2] if path.is_relative_to(SOURCE) else inside[:1]
            found["/".join(rooms) or "muster"] += len((checkout.folder / path).read_text().splitlines())
    return dict(sorted(found.items()))


def lines_of_source(checkout: Checkout) -> int:
    """Count lines of Python below operators/ and serving/."""
    return sum(_lines(checkout, "operators", "serving"))


def lines_of_tests(checkout: Checkout) -> int:
    """Count lines of Python below tests/."""
    return sum(_lines(checkout, "tests"))


def lines_of_core(checkout: Checkout) -> int:
    """Count lines of Python below operators/muster/ but those of extensions, ``ext/``."""
    return sum(_lines(checkout, "operators")) - sum(
        lines for room, lines in lines_by_room(checkout).items() if f"{room}/".startswith("ext/")
    )


def names_in_1000_lines(checkout: Checkout) -> int:
    """Count classes and functions at the top of a module without an underscore, in 1,000 lines of the package."""
    named = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    public = sum(
        isinstance(node, named) and not node.name.startswith("_")
        for tree in checkout.modules.values()
        for node in tree.body
    )
    return round(1000 * public / sum(_lines(checkout, "operators")))


def words_of_docs(checkout: Checkout) -> int:
    """Count words below docs/, without the two pages that are generated and decisions of the past."""
    return sum(
        len((checkout.folder / path).read_text().split())
        for path in checkout.files
        if path.parts[0] == "docs"
        and path.suffix == ".md"
        and path.name not in ("reference.md", "command.md")
        and "past" not in path.parts
    )


def modules(checkout: Checkout) -> int:
    """Count modules of the package that have more than a docstring."""
    return sum(len(tree.body) > 1 for tree in checkout.modules.values())


def public_classes(checkout: Checkout) -> int:
    """Count classes at the top of a module whose name begins without an underscore."""
    return len(_classes(checkout))


def names_with_two_meanings(checkout: Checkout) -> int:
    """Count class names that public classes in two or more modules share."""
    return sum(count > 1 for count in Counter(name for name, _ in _classes(checkout)).values())


def file_names_in_two_rooms(checkout: Checkout) -> int:
    """Count file names, without ``__init__`` and ``__main__``, that modules of two or more packages share."""
    packages = defaultdict(set)
    for name in checkout.modules:
        package, _, last = name.rpartition(".")
        packages[last].add(package)
    return sum(len(found) > 1 for last, found in packages.items() if last not in ("", "__main__"))


def single_importers(checkout: Checkout) -> int:
    """Count modules, without packages, that exactly one other module imports."""
    importers = Counter(name for found in checkout.imports.values() for name in found)
    packages = {name.rpartition(".")[0] for name in checkout.imports}
    return sum(count == 1 for name, count in importers.items() if name not in packages)


def gang_modules(place: str) -> Callable[[Checkout], int]:
    """Return the count of modules that a gang's processes may load at `place`: all that :data:`GANG` reaches."""

    def count(checkout: Checkout) -> int:
        return len(checkout.reached(GANG[place]))

    count.__doc__ = f"Count modules that the processes of a gang on {place} may load."
    return count


def circles(checkout: Checkout) -> int:
    """Count circles of imports: groups of modules that all reach each other, without imports for the type checker."""
    reach = {name: checkout.reached(checkout.imports[name]) for name in checkout.imports}
    inside = {name for name in reach if name in reach[name]}
    groups = {
        frozenset(each for each in inside if each in reach[name] and name in reach[each]) for name in inside
    }
    return len(groups)


def dialect_lines(checkout: Checkout) -> int:
    """Count lines of text files, without this one, that have *whoever*, *nobody*, *somebody* or a similar word."""
    texts = [path for path in checkout.files if path.suffix in PROSE and path.name != Path(__file__).name]
    return sum(
        bool(DIALECT.search(line))
        for path in texts
        for line in (checkout.folder / path).read_text(errors="replace").splitlines()
    )


COUNTS: dict[str, Callable[[Checkout], int]] = {
    "lines of source": lines_of_source,
    "lines of the core": lines_of_core,
    "lines of tests": lines_of_tests,
    "words of docs": words_of_docs,
    "public names in 1,000 lines": names_in_1000_lines,
    "modules": modules,
    "public classes": public_classes,
    "class names with two meanings": names_with_two_meanings,
    "file names in two packages": file_names_in_two_rooms,
    "modules with one importer": single_importers,
    **{f"modules of a gang, {place}": gang_modules(place) for place in GANG},
    "circles of imports": circles,
    "lines in dialect": dialect_lines,
}


def count(folder: Path) -> dict[str, int]:
    """Return all counts of the checkout in `folder`, by title, the lines of each room last."""
    checkout = Checkout(folder)
    found = {title: make(checkout) for title, make in COUNTS.items()}
    return found | {f"lines of {room}/": lines for room, lines in lines_by_room(checkout).items()}


def _lines(checkout: Checkout, *tops: str) -> Iterator[int]:
    for path in checkout.files:
        if path.suffix == ".py" and path.parts[0] in tops:
            yield len((checkout.folder / path).read_text().splitlines())


def _classes(checkout: Checkout) -> list[tuple[str, str]]:
    return [
        (node.name, module)
        for module, tree in checkout.modules.items()
        for node in tree.body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    ]


def main(arguments: Sequence[str]) -> int:
    """Print a column for each checkout."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.house", description=__doc__)
    parser.add_argument("folders", nargs="*", type=Path, default=[Path()], metavar="FOLDER")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    found = [count(folder.resolve()) for folder in options.folders]
    if options.json:
        print(json.dumps(dict(zip(map(str, options.folders), found, strict=True)), indent=2))
        return 0
    titles = list(dict.fromkeys(title for column in found for title in column))
    width = max(map(len, titles))
    for title in titles:
        cells = (f"{column[title]:>10,}" if title in column else f"{'':>10}" for column in found)
        print(f"{title:<{width}}", *cells)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
