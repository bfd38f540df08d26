"""What the package shows: names, docstrings, errors, limits."""

from __future__ import annotations

import ast
import copy
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from types import ModuleType

import pytest

import pydownpour
import pydownpour.policy
import pydownpour.testing
from pydownpour import errors, limits

MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(pydownpour.__path__, "pydownpour.")
    if not module.name.endswith("__main__")
)


def test_all_is_what_dir_shows() -> None:
    public = sorted(name for name in dir(pydownpour) if not name.startswith("_"))
    assert sorted(n for n in pydownpour.__all__ if n != "__version__") == public
    assert len(set(pydownpour.__all__)) == len(pydownpour.__all__)


def test_every_exported_name_exists() -> None:
    for name in pydownpour.__all__:
        assert getattr(pydownpour, name) is not None


def test_unknown_names_are_refused() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        pydownpour.no_such_name  # noqa: B018


def test_every_error_is_exported() -> None:
    ours = {n for n, v in vars(errors).items() if isinstance(v, type) and issubclass(v, Exception)}
    assert ours <= set(pydownpour.__all__)


def public_things(module: ModuleType) -> Iterator[tuple[str, object]]:
    """(dotted name, thing) for each public class and function that a module defines."""
    for name, thing in vars(module).items():
        if not name.startswith("_") and getattr(thing, "__module__", None) == module.__name__:
            if inspect.isclass(thing) or inspect.isroutine(thing):
                yield f"{module.__name__}.{name}", thing


def methods(kind: type) -> Iterator[tuple[str, object]]:
    """(dotted name, thing) for each public method and property of a class, inherited ones too."""
    for name in dir(kind):
        thing = inspect.getattr_static(kind, name)
        method = thing.__func__ if isinstance(thing, classmethod | staticmethod) else thing
        if not name.startswith("_") and (inspect.isroutine(method) or isinstance(method, property)):
            yield f"{kind.__name__}.{name}", getattr(kind, name)


def test_modules_classes_and_functions_are_documented() -> None:
    modules = [importlib.import_module(name) for name in MODULES]
    assert [module.__name__ for module in modules if not inspect.getdoc(module)] == []
    # The stub documents the core; stubtest keeps the two together.
    ours = [module for module in modules if module.__name__ != "pydownpour._core"]
    assert [n for m in ours for n, thing in public_things(m) if not inspect.getdoc(thing)] == []


def test_every_method_that_users_call_is_documented() -> None:
    faces = (pydownpour, pydownpour.policy, pydownpour.testing)
    things = [getattr(face, name) for face in faces for name in face.__all__]
    found = {pair for thing in things if isinstance(thing, type) for pair in methods(thing)}
    assert len(found) > 100
    assert sorted(name for name, thing in found if not inspect.getdoc(thing)) == []


def test_all_names_exist() -> None:
    assert [
        f"{module.__name__}.{name}"
        for module in map(importlib.import_module, MODULES)
        for name in getattr(module, "__all__", ())
        if not hasattr(module, name)
    ] == []


def leaves() -> list[type[Exception]]:
    """Every error class that is raised on purpose, bases included."""
    found: list[type[Exception]] = [errors.InternalError]
    queue: list[type[Exception]] = [errors.DownpourError]
    while queue:
        kind = queue.pop()
        found.append(kind)
        queue += kind.__subclasses__()
    return sorted(set(found), key=lambda kind: kind.__name__)


def through_a_process_pool(error: Exception) -> Exception:
    """What a pool does to an error on its way back to the parent."""
    twin = ForkingPickler.loads(ForkingPickler.dumps(error))
    assert isinstance(twin, Exception)
    return twin


COPIERS: list[Callable[[Exception], Exception]] = [
    copy.copy,
    copy.deepcopy,
    through_a_process_pool,
]


@pytest.mark.parametrize("copier", COPIERS, ids=lambda copier: copier.__name__)
def test_errors_survive_travel(copier: Callable[[Exception], Exception]) -> None:
    for kind in leaves():
        details = {"peer": "shard 1", "limit": 3} if kind is not errors.InternalError else {}
        error = kind("three of two; raise `limit`", **details)
        twin = copier(error)
        assert type(twin) is kind
        assert str(twin) == str(error)
        assert vars(twin) == vars(error)
        assert {name: getattr(twin, name) for name in details} == details


def test_errors_say_what_to_do() -> None:
    for kind in leaves():
        assert kind.__doc__ is not None, kind
        if kind is not errors.InternalError:
            assert isinstance(kind.retryable, bool)  # type: ignore[attr-defined]
            assert kind.__name__ in (errors.__doc__ or ""), "draw it in the tree at the top"


def documented(body: list[ast.stmt]) -> dict[str, bool]:
    """Whether a string follows each annotated name."""
    return {
        statement.target.id: isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
        for statement, after in zip(body, [*body[1:], None], strict=True)
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
    }


def limit_lines() -> dict[str, bool]:
    """Whether each constant and each field of limits.py has its reason."""
    module = ast.parse(Path(limits.__file__).read_text()).body
    (value,) = (node for node in module if isinstance(node, ast.ClassDef))
    fields, constants = documented(value.body), documented(module)
    return fields | {name: said for name, said in constants.items() if name.lower() not in fields}


def test_every_limit_has_a_reason() -> None:
    units = {"KIB", "MIB"}  # not limits
    assert [name for name, said in limit_lines().items() if not said and name not in units] == []


def test_every_limit_is_a_positive_number() -> None:
    for name in limit_lines().keys() - {"DEFAULT"}:
        value = getattr(limits if name.isupper() else limits.DEFAULT, name)
        for number in value.values() if isinstance(value, dict) else (value,):
            assert number > 0, name


@pytest.mark.parametrize("wrong", [-1.0, float("nan")])
def test_limits_below_nothing_are_refused_in_words(wrong: float) -> None:
    with pytest.raises(errors.ConfigError, match=f"limits: lease_s={wrong}, it must be 0 or more"):
        limits.Limits(lease_s=wrong)
