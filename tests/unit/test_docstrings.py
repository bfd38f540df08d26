"""Prose that shows code: README, the other Markdown files, docstrings.

Every Python block compiles. A block whose fence says ``python run`` is run, in order, in one
namespace a file. In shell blocks every ``make`` target and every ``pydownpour`` command exists.
"""

from __future__ import annotations

import ast
import dataclasses
import doctest
import importlib
import pkgutil
import re
import shlex
import textwrap
from pathlib import Path

import click
import pytest

import pydownpour
from pydownpour import _core, limits
from pydownpour.layout import DTYPE_CODES
from tests.unit.test_rooms import TIERS

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted(
    {
        *ROOT.glob("*.md"),
        *(
            path
            for folder in ("docs", "examples", "tests")
            for path in (ROOT / folder).glob("*.md")
        ),
    }
)
SHELLS = {"sh", "bash", "shell", "console"}
MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(pydownpour.__path__, "pydownpour.")
    if not module.name.endswith(("__main__", "._core"))
)


@dataclasses.dataclass(frozen=True)
class Block:
    """One fenced block: where, what its fence says, its code."""

    path: Path
    line: int
    info: tuple[str, ...]
    code: str

    @property
    def language(self) -> str:
        return self.info[0] if self.info else ""

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line}"


def blocks_of(path: Path) -> list[Block]:
    text = path.read_text()
    fences = re.finditer(r"^( *)```([^\n`]*)\n(.*?)^ *```", text, re.DOTALL | re.MULTILINE)
    return [
        Block(path, text.count("\n", 0, m.start()) + 1, tuple(m[2].split()), textwrap.dedent(m[3]))
        for m in fences
    ]


BLOCKS = [block for path in DOCUMENTS for block in blocks_of(path)]
PYTHON = [block for block in BLOCKS if block.language == "python"]
SHELL = [block for block in BLOCKS if block.language in SHELLS]


def test_the_readme_shows_both() -> None:
    assert any(block.path.name == "README.md" for block in PYTHON)
    assert any(block.path.name == "README.md" for block in SHELL)


def test_fences_name_a_language() -> None:
    nameless = [str(block) for block in BLOCKS if not block.language]
    assert nameless == [], "say `text` if it is no language"


def test_python_blocks_compile() -> None:
    for block in PYTHON:
        code = compile(block.code, str(block), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        assert code.co_filename == str(block)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_marked_python_blocks_run(path: Path) -> None:
    namespace: dict[str, object] = {"__name__": "document"}
    for block in blocks_of(path):
        if block.info == ("python", "run"):
            exec(compile(block.code, str(block), "exec"), namespace)
    assert namespace["__name__"] == "document"


def commands(block: Block) -> list[list[str]]:
    """The command lines of a shell block as words: continued lines joined, prompts removed."""
    joined = block.code.replace("\\\n", " ")
    lines = (re.sub(r"^\s*\$ ", "", line) for line in joined.splitlines())
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def make_targets() -> set[str]:
    text = (ROOT / "Makefile").read_text()
    return set(re.findall(r"^([a-z][a-z-]*):(?!=)", text, re.MULTILINE))


def command_problems(block: Block) -> list[str]:
    """What a shell block names that does not exist."""
    from pydownpour.cli.app import app

    assert isinstance(app, click.Group)
    found = []
    for words in commands(block):
        if words[0] == "make":
            unknown = [w for w in words[1:] if "=" not in w and w not in make_targets()]
            found += [f"{block}: no target {word}" for word in unknown]
        if words[0] == "pydownpour" and not words[1].startswith("-"):
            command = app.commands.get(words[1])
            if command is None:
                found.append(f"{block}: no command {words[1]}")
                continue
            known = {o for p in command.params for o in (*p.opts, *p.secondary_opts)} | {"--help"}
            used = {w.partition("=")[0] for w in words[2:] if w.startswith("--")}
            found += [f"{block}: pydownpour {words[1]} lacks {word}" for word in used - known]
    return found


def test_shell_blocks_name_real_commands() -> None:
    assert [problem for block in SHELL for problem in command_problems(block)] == []


def test_docstring_examples() -> None:
    assert len(MODULES) > 50
    for module_name in MODULES:
        result = doctest.testmod(importlib.import_module(module_name), raise_on_error=False)
        assert result.failed == 0, module_name


def table_rows(path: Path, first_header: str) -> list[list[str]]:
    """The cells of the Markdown table whose first column has this header."""
    lines = iter(path.read_text().splitlines())
    for line in lines:
        if line.startswith(f"| {first_header} |"):
            break
    next(lines)
    rows = []
    for line in lines:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def test_the_frame_table_is_the_core_s() -> None:
    rows = table_rows(ROOT / "ARCHITECTURE.md", "offset")
    layout = {name: (int(offset), int(size)) for offset, size, name, _ in rows}
    end = 0
    for offset, size in layout.values():
        assert offset == end
        end += size
    assert end == limits.HEADER_SIZE == _core.HEADER_SIZE
    fields = ("flags", "codec", "dtype", "replica", "incarnation", "fragment", "seq", "version")
    values = {name: 2 + index for index, name in enumerate((*fields, "aux", "count"))}
    values |= {"flags": 0, "codec": 0, "dtype": 3}
    payload = b"abcdef"
    frame = _core.encode_frame(kind=_core.KIND_FRAGMENT, payload=payload, **values)
    values |= {"kind": 2, "wire": 1, "length": len(payload), "payload_crc": _core.crc32c(payload)}
    values |= {"header_crc": _core.crc32c(frame[:60])}
    assert frame[:4] == b"PDP1"
    assert values.keys() | {"magic"} == layout.keys()
    for name, value in values.items():
        offset, size = layout[name]
        assert int.from_bytes(frame[offset : offset + size], "little") == value, name


def test_the_kind_table_is_the_core_s() -> None:
    cells = {row[2]: row[3] for row in table_rows(ROOT / "ARCHITECTURE.md", "offset")}
    named = dict(re.findall(r"(\d+) ([A-Z]+)", cells["kind"]))
    kinds = {str(v): k[5:] for k, v in vars(_core).items() if k.startswith("KIND_")}
    assert named == kinds
    dtypes = {name: int(code) for code, name in re.findall(r"(\d) (\w+)", cells["dtype"])}
    assert dtypes == DTYPE_CODES


def test_the_map_of_rooms_is_the_tested_one() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    listing = re.search(r"```text\n(errors .*?)```", text, re.DOTALL)
    assert listing is not None
    drawn = [tuple(re.split(r"\s{2,}", line)[0].split()) for line in listing[1].splitlines()]
    assert drawn == [tier for tier in TIERS if tier != ("__main__",)]


def test_files_and_tests_that_are_named_exist() -> None:
    named = r"`((?:tests|unit|rust|pydownpour|examples|docs)/[\w./-]+)(?:::(\w+))?`"
    for path in DOCUMENTS:
        for file, test in re.findall(named, path.read_text()):
            if "NAME" in file:
                continue  # stands for a name yet to be chosen
            places = [ROOT / file, path.parent / file]
            there = next((place for place in places if place.exists()), None)
            assert there is not None, f"{path.name} names {file}"
            if test:
                assert re.search(rf"\b(def|fn) {test}\b", there.read_text()), f"{file} lacks {test}"
