"""Style that can be checked by reading the files: lengths, names, leftovers, unsafe code."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LINE_LEN_MAX = 100
FUNCTION_LINES_MAX = 70
"""Without the docstring: what must fit on a screen is the code."""

BANNED_NAMES = {"util", "utils", "helper", "helpers", "misc", "common"}
"""A file is named after what it holds; these hold anything."""

# Put together here so that this file does not find itself.
NOT_WRITTEN = re.compile(r"\braise " + "NotImple" + r"mentedError\b")
MACHINE_PATHS = re.compile(r"(?<![\w./])/(" + "|".join(["work", "root", "farm"]) + r")/")

UNSAFE_ALLOWED = (
    re.compile(r"rust/downpour/src/kernel/(avx512|avx2|bypass|neon)\.rs"),
    re.compile(r"rust/downpour/src/store/block\w*(/\w+)?\.rs"),
    re.compile(r"rust/downpour-py/src/buffer\.rs"),
)
SAFETY_WITHIN_LINES = 8
"""How far above an unsafe line its reason may begin."""


def project_files() -> list[Path]:
    """Files that are or will be in the repository, sorted."""
    command = ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.run(command, capture_output=True, text=True, check=False)
    if listing.returncode == 0:
        paths = [ROOT / line for line in listing.stdout.splitlines()]
    else:  # an unpacked archive, which holds nothing else
        built = {".venv", "target", "runs", "dist", "__pycache__"}
        paths = [p for p in ROOT.rglob("*") if not built & set(p.relative_to(ROOT).parts)]
    return sorted({path for path in paths if path.is_file()})


FILES = project_files()
PYTHON = [path for path in FILES if path.suffix in {".py", ".pyi"}]
RUST = [path for path in FILES if path.suffix == ".rs"]
MARKDOWN = [path for path in FILES if path.suffix == ".md"]
CODE = PYTHON + RUST
TEXT = [
    path
    for path in FILES
    if path.suffix in {".py", ".pyi", ".rs", ".md", ".toml", ".txt", ".sh", ".html", ".js", ".css"}
    or path.name in {"Makefile", "run"}
]


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_there_is_something_to_check() -> None:
    assert len(PYTHON) > 20
    assert len(RUST) > 5
    assert {"README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"} <= {name(p) for p in MARKDOWN}


def test_line_length() -> None:
    assert [
        f"{name(path)}:{number}: {len(line)} columns"
        for path in [*CODE, *(path for path in TEXT if path.name in {"Makefile", "run"})]
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if len(line) > LINE_LEN_MAX
    ] == []


def code_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function without its docstring."""
    first = node.body[0]
    docstring = 0
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
        docstring = (first.end_lineno or 0) - first.lineno + 1
    return (node.end_lineno or 0) - node.lineno + 1 - docstring


def test_function_length() -> None:
    assert [
        f"{name(path)}:{node.lineno}: {node.name} has {code_lines(node)} lines of code"
        for path in PYTHON
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if code_lines(node) > FUNCTION_LINES_MAX
    ] == []


def test_file_names_say_what_they_hold() -> None:
    assert [name(path) for path in CODE if path.stem in BANNED_NAMES] == []


def test_nothing_left_over() -> None:
    assert [
        f"{name(path)}:{number}: {match[0]}"
        for path in TEXT
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if (match := MACHINE_PATHS.search(line))
        or ("tests" not in path.relative_to(ROOT).parts and (match := NOT_WRITTEN.search(line)))
    ] == []


def rust_code(text: str) -> list[str]:
    """The lines of a Rust file without comments and string contents, lines kept in place."""
    pattern = re.compile(
        r'//[^\n]*|/\*.*?\*/|r(#*)".*?"\1|b?"(?:\\.|[^"\\])*"|b?\'(?:\\.|[^\'\\\n])\'', re.DOTALL
    )
    return pattern.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), text).split("\n")


def unsafe_problems(where: str, text: str) -> list[str]:
    """Each unsafe outside the allowed files, or without its reason."""
    lines = text.split("\n")
    allowed = any(pattern.fullmatch(where) for pattern in UNSAFE_ALLOWED)
    found = []
    for number, line in enumerate(rust_code(text), 1):
        if not re.search(r"\bunsafe\b", line):
            continue
        above = "\n".join(lines[max(0, number - 1 - SAFETY_WITHIN_LINES) : number])
        if not allowed:
            found.append(f"{where}:{number}: unsafe code belongs in one of the allowed files")
        elif "SAFETY:" not in above and "# Safety" not in above:
            found.append(f"{where}:{number}: unsafe without a SAFETY comment")
    return found


def test_unsafe_is_fenced() -> None:
    assert [p for path in RUST for p in unsafe_problems(name(path), path.read_text())] == []


@pytest.mark.parametrize(
    ("where", "text", "words"),
    [
        ("rust/downpour/src/frame/mod.rs", "// SAFETY: no\nunsafe {}", ["allowed files"]),
        ("rust/downpour/src/kernel/avx2.rs", "fn f() { unsafe {} }", ["without a SAFETY"]),
        ("rust/downpour/src/kernel/avx2.rs", "// SAFETY: owned token\nunsafe {}", []),
        ("rust/downpour/src/store/mod.rs", '// unsafe\nlet a = "unsafe"; /* unsafe */', []),
        ("rust/downpour/src/store/block.rs", "/// # Safety\npub unsafe fn f() {}", []),
        ("rust/downpour/src/store/mod.rs", "#![deny(unsafe_code)]", []),
    ],
)
def test_the_unsafe_rule(where: str, text: str, words: list[str]) -> None:
    problems = unsafe_problems(where, text)
    assert len(problems) == len(words)
    assert all(word in problem for word, problem in zip(words, problems, strict=True))


def headings(text: str) -> list[tuple[int, str]]:
    """(level, title) of a Markdown file, code blocks left out."""
    text = re.sub(r"^(```|~~~).*?^\1", "", text, flags=re.DOTALL | re.MULTILINE)
    return [(len(m[1]), m[2]) for m in re.finditer(r"^(#+) (.+)$", text, re.MULTILINE)]


def test_one_title() -> None:
    levels = {name(path): [level for level, _ in headings(path.read_text())] for path in MARKDOWN}
    assert {file: found for file, found in levels.items() if found.count(1) != 1} == {}
    assert {file: found for file, found in levels.items() if found[0] != 1} == {}


def dead_links(path: Path) -> list[str]:
    """Links of a Markdown file to files or headings that are not there."""
    found = []
    for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
        if "://" in target or target.startswith("mailto:"):
            continue
        file, _, anchor = target.partition("#")
        there = (path.parent / file) if file else path
        slugs = {
            re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
            for _, title in (headings(there.read_text()) if there.exists() and anchor else ())
        }
        if not there.exists() or (anchor and anchor not in slugs):
            found.append(f"{name(path)} links to {target}")
    return found


def test_links_lead_somewhere() -> None:
    assert [link for path in MARKDOWN for link in dead_links(path)] == []
