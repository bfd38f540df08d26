"""The rooms of the package: who may import whom, and who may touch the world.

The source is parsed, never imported, so a violation is found even where an import is lazy or only
for type checkers. ARCHITECTURE.md explains the rooms; this file is their definition.
"""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "pydownpour"

TIERS: tuple[tuple[str, ...], ...] = (
    ("errors",),
    ("limits",),
    ("fields", "config", "states"),
    ("histogram", "waits", "layout", "optimizers", "codecs", "sampling"),
    ("policy",),
    ("wire",),
    ("net", "storage"),
    ("shard", "replica", "coordinator"),
    ("parallel", "sandblaster", "tables"),
    ("data",),
    ("job",),
    ("jobfiles",),
    ("engines",),
    ("adapters",),
    ("sim",),
    ("testing",),
    ("dashboard",),
    ("cli",),
    ("bench", "demo"),
    ("__main__",),
)
"""Downward is earlier. Rooms of one tier do not know each other."""

LEVEL = {room: level for level, tier in enumerate(TIERS) for room in tier}

CORE = "_core"
NO_CORE = {"errors", "limits", "config", "fields", "states"}
"""The words must be importable where the extension is not built."""

PURE = (
    "states",
    "histogram",
    "waits",
    "layout",
    "optimizers",
    "policy",
    "wire",
    "replica.natural_gradient",
    "coordinator.ledger",
    "coordinator.membership",
    "coordinator.progress",
    "coordinator.report",
)
IMPURE = {"asyncio", "aiohttp", "time", "random", "os", "threading", "socket", "subprocess"}
"""What a decision must be handed as an argument, so that it can be simulated and replayed."""

TOUCHES_FILES = {"storage", "cli", "engines", "data", "jobfiles", "bench", "testing", "sim"}
"""storage/ for the services; the rest start them, or run before they do."""
FILE_METHODS = {"read_text", "read_bytes", "write_text", "write_bytes", "touch", "mkdir", "unlink"}
FILE_METHODS |= {"rmdir", "symlink_to", "hardlink_to"}
FILE_MODULES = {"tempfile", "shutil"}
OS_FILE_CALLS = {"open", "fdopen", "replace", "rename", "remove", "unlink", "mkdir", "makedirs"}

RUNS_JOB_FILE = ("jobfiles", "exec")
"""The one place that runs a file, because running it is what the user asked for."""
EXECUTES_DATA = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "yaml"}

MAY_IMPORT_SIM = {"sim", "testing", "cli", "bench"}


@dataclasses.dataclass(frozen=True)
class Source:
    """One module of the package. ``dotted`` leaves out the package's own name."""

    path: Path
    dotted: str
    tree: ast.Module

    @property
    def room(self) -> str:
        return self.dotted.partition(".")[0]

    def imports(self) -> Iterator[tuple[str, int]]:
        """(dotted name, line) of everything imported anywhere in the file.

        A bare ``import pydownpour`` stands for what is then used of it.
        """
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    if alias.name != "pydownpour" or alias.asname:
                        yield alias.name, node.lineno
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                if node.value.id == "pydownpour":
                    yield f"pydownpour.{node.attr}", node.lineno
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{self.path}:{node.lineno}: relative import"
                for alias in node.names:
                    yield f"{node.module}.{alias.name}", node.lineno

    def calls(self) -> Iterator[tuple[str, str, ast.Call]]:
        """(object or "", function, node) of every call by name or attribute."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Call):
                function = node.func
                if isinstance(function, ast.Name):
                    yield "", function.id, node
                elif isinstance(function, ast.Attribute):
                    owner = function.value
                    yield (owner.id if isinstance(owner, ast.Name) else "?"), function.attr, node


def parse(path: Path) -> Source:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    if parts[-1] == "__init__":
        parts = parts[:-1]
    return Source(path, ".".join(parts), ast.parse(path.read_text(), str(path)))


SOURCES = [parse(path) for path in sorted(PACKAGE.rglob("*.py"))]


def room_of(name: str) -> str | None:
    """The room an imported dotted name lies in; None if it is not ours; "" for the face."""
    head, _, rest = name.partition(".")
    if head != "pydownpour":
        return None
    return rest.partition(".")[0]


def wrong_imports(source: Source) -> list[str]:
    """The import rule, as words for each violation."""
    found = []
    for name, line in source.imports():
        target = room_of(name)
        where = f"{source.path.relative_to(ROOT)}:{line}"
        if target is None or target == source.room:
            continue
        if target in {CORE, "__version__"}:
            if source.room in NO_CORE:
                found.append(f"{where}: {source.room} must work without the extension")
        elif target not in LEVEL:
            found.append(f"{where}: {name}: import from the module that defines it, not the face")
        elif LEVEL[target] >= LEVEL[source.room]:
            found.append(f"{where}: {source.room} must not import {target}, which is not below it")
    return found


def imported(sources: Iterable[Source], forbidden: Callable[[str], bool]) -> list[str]:
    """Where some of these modules import what they must not."""
    return [
        f"{source.path.relative_to(ROOT)}:{line}: {name}"
        for source in sources
        for name, line in source.imports()
        if forbidden(name)
    ]


def test_every_module_has_a_room() -> None:
    homeless = [source.dotted for source in SOURCES if source.room not in {"", *LEVEL}]
    assert homeless == [], "add its room to TIERS"


def test_imports_point_downward() -> None:
    # The face shows names of every room; the demo is a user's file that we carry.
    inside = [source for source in SOURCES if source.room not in {"", "demo"}]
    assert [problem for source in inside for problem in wrong_imports(source)] == []


def is_pure(source: Source) -> bool:
    return any(source.dotted == p or source.dotted.startswith(p + ".") for p in PURE)


def test_decisions_are_told_the_world() -> None:
    pure = [source for source in SOURCES if is_pure(source)]
    assert len(pure) >= len(PURE)
    assert imported(pure, lambda name: name.partition(".")[0] in IMPURE) == []


def test_pure_modules_exist() -> None:
    dotted = {source.dotted for source in SOURCES}
    assert [name for name in PURE if name not in dotted] == [], "renamed? then rename it in PURE"


def test_only_net_touches_aiohttp() -> None:
    # sim runs it, bench and testing measure and disturb it
    others = [s for s in SOURCES if s.room not in {"net", "sim", "bench", "testing"}]
    assert imported(others, lambda name: name.partition(".")[0] == "aiohttp") == []


def asks_the_kernel(node: ast.Call) -> bool:
    """Whether a call of open() reads /proc, which is no disk."""
    path = node.args[0] if node.args else None
    return isinstance(path, ast.Constant) and str(path.value).startswith("/proc/")


def touches_files(owner: str, function: str, node: ast.Call) -> bool:
    """Whether a call opens, makes, moves or removes a file."""
    return (
        (owner == "" and function == "open" and not asks_the_kernel(node))
        or (owner == "os" and function in OS_FILE_CALLS)
        or (owner == "io" and function == "open")
        or (owner != "" and function in FILE_METHODS)
    )


def test_only_storage_touches_files() -> None:
    others = [source for source in SOURCES if source.room not in TOUCHES_FILES]
    assert [
        f"{source.path.relative_to(ROOT)}:{node.lineno}: {owner}.{function}"
        for source in others
        for owner, function, node in source.calls()
        if touches_files(owner, function, node)
    ] == []
    assert imported(others, lambda name: name.partition(".")[0] in FILE_MODULES) == []


def circles(sources: Iterable[Source]) -> list[frozenset[str]]:
    """Modules that import each other, directly or around, for types only too."""
    graph: dict[str, set[str]] = {source.dotted: set() for source in sources}
    for source in sources:
        for name, _ in source.imports():
            inside = name.removeprefix("pydownpour.")
            target = inside if inside in graph else inside.rpartition(".")[0]
            if name.startswith("pydownpour.") and target in graph and target != source.dotted:
                graph[source.dotted].add(target)

    def reached(start: str) -> set[str]:
        found: set[str] = set()
        to_do = [start]
        while to_do:
            new = graph[to_do.pop()] - found
            found |= new
            to_do += new
        return found

    reach = {name: reached(name) for name in graph}
    return sorted(
        {frozenset(b for b in reach[a] if a in reach[b]) for a in graph if a in reach[a]},
        key=sorted,
    )


def test_no_modules_import_in_a_circle() -> None:
    # The face imports everything and is imported for its version.
    assert circles([source for source in SOURCES if source.dotted]) == [], (
        "what both need goes below them, or a protocol does"
    )


def test_a_circle_is_noticed() -> None:
    code = {
        "net.a": "from pydownpour.net import b",
        "net.b": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n"
        "    from pydownpour.net.c import C",
        "net.c": "def f():\n    import pydownpour.net.a",
        "net.d": "from pydownpour.net.a import A",
    }
    sources = [Source(PACKAGE / "sample.py", name, ast.parse(text)) for name, text in code.items()]
    assert circles(sources) == [frozenset({"net.a", "net.b", "net.c"})]


def mapped(package: Path) -> set[str]:
    """Files that the map in a package's docstring names: a path at the beginning of a line."""
    words = ast.get_docstring(ast.parse((package / "__init__.py").read_text())) or ""
    firsts = [line.split()[0] for line in words.splitlines() if line.startswith("    ")]
    return {first for first in firsts if first.endswith(".py") and not first.startswith("/")}


def test_the_map_of_a_room_names_all_its_files() -> None:
    for package in (path.parent for path in sorted(PACKAGE.glob("*/__init__.py"))):
        files = {str(path.relative_to(package)) for path in package.rglob("*.py")}
        assert mapped(package) == {name for name in files if "__" not in name}, package.name


def test_the_package_s_map_names_all_rooms() -> None:
    words = ast.get_docstring(ast.parse((PACKAGE / "__init__.py").read_text())) or ""
    drawn = re.findall(r"^    ((?:\w+ )+)", words, re.MULTILINE)
    rooms = {source.room for source in SOURCES} - {"", "__main__"}
    assert {name for names in drawn for name in names.split()} == rooms | {CORE}


def named_in(path: Path, name: str) -> bool:
    """Whether a file's code, not its prose, says this name."""
    if path.suffix == ".rs":
        return path.stem == name.lower() or f"\nmod {name.lower()};" in path.read_text()
    return any(
        name in (getattr(node, "id", ""), getattr(node, "name", ""), getattr(node, "value", ""))
        for node in ast.walk(ast.parse(path.read_text()))
    )


@pytest.mark.parametrize("name", ["FASGD", "StalenessAware", "ring", "Int8"])
def test_one_of_each_kind_is_known_where_contributing_says(name: str) -> None:
    """How many files a new one touches. The simulator and the bench try some by name."""
    told = (ROOT / "CONTRIBUTING.md").read_text()
    (row,) = re.findall(rf"^\| .* \| `{name}` \| (.*) \|$", told, re.MULTILINE)
    product = [s.path for s in SOURCES if s.room not in {"sim", "bench", "demo"}]
    files = [*product, *(ROOT / "rust").glob("*/src/**/*.rs")]
    known = {str(path.relative_to(ROOT)) for path in files if named_in(path, name)}
    assert known == set(re.findall(r"`(.*?)`", row))


def test_production_does_not_know_the_simulator() -> None:
    production = [source for source in SOURCES if source.room not in {"", *MAY_IMPORT_SIM}]
    assert imported(production, lambda name: room_of(name) == "sim") == []


def assigned(tree: ast.AST) -> Iterator[tuple[ast.Attribute, int]]:
    """(attribute, line) of everything that is assigned to an object."""
    for node in ast.walk(tree):
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AnnAssign | ast.AugAssign):
            targets = [node.target]
        for target in targets:
            inside = target.elts if isinstance(target, ast.Tuple) else [target]
            yield from ((t, t.lineno) for t in inside if isinstance(t, ast.Attribute))


def is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


def own_attributes(sources: Iterable[Source]) -> set[str]:
    """What the classes of these modules themselves have."""
    names = set()
    for source in sources:
        names |= {a.attr for a, _ in assigned(source.tree) if is_self(a.value)}
        for node in ast.walk(source.tree):
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                names.add(node.target.id)
    return names


def patches(sources: Sequence[Source]) -> list[str]:
    """Assignments to what other rooms' objects have. An observer's place is named on_..."""
    own = own_attributes(sources)
    return [
        f"{source.path.relative_to(ROOT)}:{line}: {ast.unparse(attribute)}"
        for source in sources
        for attribute, line in assigned(source.tree)
        if not is_self(attribute.value)
        and attribute.attr not in own
        and not attribute.attr.startswith("on_")
    ] + [
        f"{source.path.relative_to(ROOT)}:{node.lineno}: {function}"
        for source in sources
        for _, function, node in source.calls()
        if function in {"setattr", "delattr", "__setattr__"}
    ]


def test_the_simulator_and_the_proxy_patch_nothing() -> None:
    """What a check must see, production offers: a place for an observer, and a value handed in."""
    assert patches([source for source in SOURCES if source.room in {"sim", "testing"}]) == []


@pytest.mark.parametrize(
    ("code", "is_patch"),
    [
        ("session.push = recorded", True),
        ("a, service.job.complete = 1, watched", True),
        ("setattr(limits, name, value)", True),
        ("session.on_push = recorded", False),
        ("class A:\n    def f(self):\n        self.mark = 1\nA().mark = 2", False),
    ],
)
def test_a_patch_is_noticed(code: str, is_patch: bool) -> None:
    source = Source(PACKAGE / "sample.py", "sim.sample", ast.parse(code))
    assert bool(patches([source])) == is_patch


def test_data_never_executes_code() -> None:
    assert imported(SOURCES, lambda name: name.partition(".")[0] in EXECUTES_DATA) == []
    assert [
        f"{source.path.relative_to(ROOT)}:{node.lineno}: {function}()"
        for source in SOURCES
        for owner, function, node in source.calls()
        if owner == "" and function in {"eval", "exec"} and (source.room, function) != RUNS_JOB_FILE
    ] == []


@pytest.mark.parametrize(
    ("dotted", "code", "words"),
    [
        ("layout", "from pydownpour.wire import messages", "must not import wire"),
        ("net.client", "from pydownpour import storage", "must not import storage"),
        ("limits", "from pydownpour import _core", "without the extension"),
        ("replica", "import pydownpour.job", "must not import job"),
        ("shard", "from pydownpour import Job", "not the face"),
        ("net", "import pydownpour\npydownpour.Job", "not the face"),
        ("net", "import pydownpour as dp", "not the face"),
        ("net", "def f():\n    from pydownpour.cli import main", "must not import cli"),
    ],
)
def test_the_rule_notices(dotted: str, code: str, words: str) -> None:
    source = Source(PACKAGE / "sample.py", dotted, ast.parse(code))
    assert [words in problem for problem in wrong_imports(source)] == [True]


def test_the_rule_allows_what_is_below() -> None:
    code = "from pydownpour import _core, limits\nfrom pydownpour.net.client import Client\n"
    code += "import pydownpour\nprint(pydownpour.__version__)"
    assert wrong_imports(Source(PACKAGE / "sample.py", "replica.session", ast.parse(code))) == []
