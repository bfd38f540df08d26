"""The build files agree with each other: lock, dependencies, version, Makefile, licence."""

from __future__ import annotations

import importlib.metadata
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import pydownpour

ROOT = Path(__file__).resolve().parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
CARGO: dict[str, Any] = tomllib.loads((ROOT / "Cargo.toml").read_text())


def lock() -> dict[str, str]:
    """Package -> exact version."""
    pins: dict[str, str] = {}
    for line in (ROOT / "requirements" / "lock.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            name, _, version = line.partition(" ;")[0].partition("==")
            pins[canonicalize_name(name)] = version.strip()
    return pins


def declared() -> list[Requirement]:
    """Every requirement of pyproject.toml."""
    found = [*PROJECT["project"]["dependencies"], *PROJECT["build-system"]["requires"]]
    for group in PROJECT["dependency-groups"].values():
        found += [entry for entry in group if isinstance(entry, str)]
    return [Requirement(line) for line in found]


@pytest.mark.parametrize("requirement", declared(), ids=str)
def test_the_lock_has_every_requirement(requirement: Requirement) -> None:
    version = lock().get(canonicalize_name(requirement.name))
    assert version is not None, "run `make lock`"
    assert requirement.specifier.contains(version), f"{version} is locked; run `make lock`"


def test_the_lock_pins_exactly() -> None:
    assert [line for line in lock().values() if not re.fullmatch(r"[\w.]+", line)] == []


def test_one_version() -> None:
    version = CARGO["workspace"]["package"]["version"]
    assert pydownpour.__version__ == version
    assert importlib.metadata.version("pydownpour") == version
    assert PROJECT["project"]["dynamic"] == ["version"]
    for crate in CARGO["workspace"]["members"]:
        package = tomllib.loads((ROOT / crate / "Cargo.toml").read_text())["package"]
        assert package["version"] == {"workspace": True}


def test_every_crate_obeys_the_lints() -> None:
    for crate in CARGO["workspace"]["members"]:
        assert (
            tomllib.loads((ROOT / crate / "Cargo.toml").read_text())["lints"]["workspace"] is True
        )


def test_make_targets_are_described_and_phony() -> None:
    text = (ROOT / "Makefile").read_text()
    phony = re.findall(r"^\.PHONY: (\S+)$", text, re.MULTILINE)
    targets = re.findall(r"^([a-z][a-z-]*):(?!=)", text, re.MULTILINE)
    assert sorted(phony) == sorted(targets)
    described = re.findall(r"^([a-z][a-z-]*):.* ## ", text, re.MULTILINE)
    assert {"demo", "test", "lint", "bench", "help"} <= set(described)


def test_licence_is_whole() -> None:
    text = (ROOT / "LICENSE").read_text()
    assert "Apache License" in text
    assert "END OF TERMS AND CONDITIONS" in text
    assert PROJECT["project"]["license"] == CARGO["workspace"]["package"]["license"] == "Apache-2.0"


@pytest.mark.parametrize("name", ["digits.py", "mlp.py"])
def test_the_demo_that_ships_is_the_example(name: str) -> None:
    shipped = (ROOT / "pydownpour" / "demo" / name).read_text()
    assert shipped == (ROOT / "examples" / name).read_text()
