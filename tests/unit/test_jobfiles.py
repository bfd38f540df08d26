"""How a job file is loaded, and how others find what is in it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pydownpour.errors import ConfigError
from pydownpour.jobfiles import load_job, module_name
from pydownpour.optimizers import SGD

GOOD = """
import numpy as np
import pydownpour as dp

job = dp.Job(parameters={"w": np.zeros(4, np.float32)}, optimizer=dp.SGD(lr=0.1))

@job.replica
async def train(replica):
    pass

if __name__ == "__main__":
    raise SystemExit("the main part ran")
"""


def write(folder: Path, text: str, name: str = "my_job.py") -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


def test_a_job_file_is_loaded_without_its_main_part(tmp_path: Path) -> None:
    job = load_job(write(tmp_path, GOOD))
    assert job.name == "my_job"
    assert job.train.__name__ == "train"


def test_the_name_a_job_gives_itself_stays(tmp_path: Path) -> None:
    text = GOOD.replace("optimizer=", "name='mine', optimizer=")
    assert load_job(write(tmp_path, text)).name == "mine"


def test_odd_file_names_become_job_names(tmp_path: Path) -> None:
    assert load_job(write(tmp_path, GOOD, "digits v2 (é).py")).name == "digits_v2____"


def test_one_of_several_jobs_is_named(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD + "\nother = dp.Job(parameters={'v': [1.0]}, optimizer=dp.SGD(1))")
    with pytest.raises(ConfigError, match=r"has 2 jobs \(job, other\); say which: .*my_job.py:job"):
        load_job(path)
    assert load_job(f"{path}:other").layout.arrays[0].name == "v"
    with pytest.raises(ConfigError, match=r"no 'missing' in .*its jobs are job, other"):
        load_job(f"{path}:missing")
    with pytest.raises(ConfigError, match=r"'train' in .* is a function, not a dp\.Job"):
        load_job(f"{path}:train")


def test_one_job_under_two_names_is_one(tmp_path: Path) -> None:
    assert load_job(write(tmp_path, GOOD + "\nagain = job")).name == "my_job"


def test_no_job(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no job in .*my_job\.py: it must build one"):
        load_job(write(tmp_path, "x = 1"))


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no job file '.*absent.py' \(current folder"):
        load_job(str(tmp_path / "absent.py"))
    with pytest.raises(ConfigError, match="is a folder; name the job file in it"):
        load_job(str(tmp_path))


def test_a_syntax_error_keeps_the_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        load_job(write(tmp_path, "x = 1\njob = = 2\n"))
    assert "is not valid Python" in str(refused.value)
    assert "job = = 2" in str(refused.value)
    assert "line 2" in str(refused.value)


def test_an_exception_keeps_the_files_own_traceback(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        load_job(write(tmp_path, "def f():\n    return 1 / 0\n\njob = f()\n", "raises.py"))
    words = str(refused.value)
    assert "failed while it was loaded: ZeroDivisionError: division by zero" in words
    assert "line 4, in <module>" in words
    assert "line 2, in f" in words
    assert "pydownpour/jobfiles" not in words
    assert module_name(tmp_path / "raises.py") not in sys.modules


def test_a_setting_of_ours_that_is_refused_is_shown_with_its_line(tmp_path: Path) -> None:
    text = GOOD.replace("np.float32", "np.int32")
    with pytest.raises(ConfigError, match=r"(?s)integers have no gradient.*line 5, in <module>"):
        load_job(write(tmp_path, text))


def test_sys_exit_in_a_job_file_is_said_and_does_not_end_us(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"called sys\.exit"):
        load_job(write(tmp_path, "import sys\nsys.exit(4)"))


def test_files_beside_the_job_can_be_imported(tmp_path: Path) -> None:
    write(tmp_path, "LR = 0.25", "beside_the_job.py")
    text = "import beside_the_job\n" + GOOD.replace("lr=0.1", "lr=beside_the_job.LR")
    assert load_job(write(tmp_path, text)).optimizer == SGD(lr=0.25)
    del sys.modules["beside_the_job"]


def test_classes_of_a_job_file_find_their_module(tmp_path: Path) -> None:
    text = GOOD + (
        "\nimport dataclasses\n@dataclasses.dataclass\nclass Point:\n    x: 'int' = 0\n"
        "job.point = dataclasses.asdict(Point(3))\n"
    )
    assert load_job(write(tmp_path, text)).point == {"x": 3}  # type: ignore[attr-defined]


def test_a_name_that_holds_no_path_is_no_module() -> None:
    for name in ("digits", "_2f_nowhere_ffffffffff_", "_2e_"):
        with pytest.raises(ModuleNotFoundError):
            __import__(f"pydownpour.jobfiles.{name}")


def test_a_job_s_folder_comes_behind_the_standard_library_and_before_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    write(tmp_path, "raise ImportError('shadowed')", "colorsys.py")
    write(tmp_path, "MINE = True", "psutil.py")
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    monkeypatch.delitem(sys.modules, "psutil", raising=False)
    text = "import colorsys, psutil\nassert psutil.MINE\n" + GOOD
    assert load_job(write(tmp_path, text)).name == "my_job"
