"""Roles that only pretend: what the engine starts in its own tests.

The first positional argument of a coordinator or replica, FAKE_ROLES for a shard, is a JSON file::

    {"replica-0": [["exit", 3], ["work"]], "coordinator-0": [["serve"]]}

Each title has a list of acts, one for each start; the last is repeated. Every start is written to
``<file>.starts/<title>`` as "pid arguments", so that a test can see who lived.

    serve [count]     coordinator: say the URL, end with a report when count replicas have worked
    work              replica: note that it worked, exit 0
    tell              print the token it was given, then work
    stay              until SIGTERM, then exit 0
    stubborn          ignore SIGTERM
    raise words       say that the user's function raised, exit 3
    skipped words     the same, at a unit of a job that sets such units aside
    refuse words      say that a setting is wrong, exit 2
    exit code         exit
    kill number       end by a signal
    mute              coordinator: never say the URL
    noise             print to standard output, then work
    chatter           write lines to the log until it was cut, then work
    family            start a grandchild that would live on, then stay
    report state      coordinator: say the URL, report this state, exit 1 if it is "failed"
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydownpour.engines.child import Channel, adopt


def main() -> None:
    arguments = sys.argv[1:]
    role = arguments[0]
    script = Path(os.environ["FAKE_ROLES"])
    title = f"{role}-{_index(role, arguments)}"
    channel = adopt()
    assert channel is not None
    acts: list[list[Any]] = json.loads(script.read_text()).get(title, [["stay"]])
    starts = _note(script.with_suffix(".starts") / title, f"{os.getpid()} {' '.join(arguments)}")
    act, *values = acts[min(starts, len(acts)) - 1]
    worked = script.with_suffix(".worked")
    _ACTS[act](channel, worked, title, *values)


def _index(role: str, arguments: list[str]) -> int:
    if role == "coordinator":
        return 0
    option = {"shard": "--index", "replica": "--name"}[role]
    return int(arguments[arguments.index(option) + 1].rpartition("-")[2])


def _note(path: Path, line: str) -> int:
    """Append a line; returns how many there are now."""
    path.parent.mkdir(exist_ok=True)
    with path.open("a+") as file:
        file.write(line + "\n")
        file.flush()
        file.seek(0)
        return len(file.readlines())


def _listen(channel: Channel) -> None:
    channel.emit({"event": "loaded"})
    url = os.environ.get("FAKE_URL", "http://127.0.0.1:1")
    channel.emit({"event": "listening", "role": "coordinator", "url": url})


def _serve(channel: Channel, worked: Path, title: str, count: int = 1) -> None:
    _listen(channel)
    while not worked.exists() or len(worked.read_text().split()) < count:
        time.sleep(0.01)
    channel.emit({"job": "fake", "state": "done", "reason": "all work is done", "samples": 7})


def _work(channel: Channel, worked: Path, title: str) -> None:
    with worked.open("a") as file:
        file.write(f"{title}\n")
    channel.emit({"event": "finished"})


def _stay(channel: Channel, worked: Path, title: str) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    if title.startswith("coordinator"):
        _listen(channel)
    while True:
        time.sleep(0.01)


def _stubborn(channel: Channel, worked: Path, title: str) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if title.startswith("coordinator"):
        _listen(channel)
    while True:
        time.sleep(0.01)


def _raise(channel: Channel, worked: Path, title: str, words: str) -> None:
    lines = ["Traceback (most recent call last):", '  File "user.py", line 7', words]
    channel.emit({"event": "error", "code": 3, "message": words, "traceback": lines})
    sys.exit(3)


def _skipped(channel: Channel, worked: Path, title: str, words: str) -> None:
    channel.emit({
        "event": "error", "code": 3, "message": words, "unit": "at unit 5 of pass 1",
        "cured_by_skipping": True,
    })  # fmt: skip
    sys.exit(3)


def _refuse(channel: Channel, worked: Path, title: str, words: str) -> None:
    channel.emit({"event": "error", "code": 2, "message": words})
    sys.exit(2)


def _exit(channel: Channel, worked: Path, title: str, code: int) -> None:
    print(f"last words of {title}", file=sys.stderr)
    sys.exit(code)


def _kill(channel: Channel, worked: Path, title: str, number: int) -> None:
    print(f"last words of {title}", file=sys.stderr, flush=True)
    os.kill(os.getpid(), number)
    time.sleep(60)


def _mute(channel: Channel, worked: Path, title: str) -> None:
    channel.emit({"event": "loaded"})
    signal.pause()


def _noise(channel: Channel, worked: Path, title: str) -> None:
    print('{"state": "failed", "reason": "this is only the user\'s own output"}', flush=True)
    subprocess.run([sys.executable, "-c", 'print(\'{"event": "listening"}\')'], check=True)
    _work(channel, worked, title)


def _tell(channel: Channel, worked: Path, title: str) -> None:
    print(f"my token is {os.environ['PYDOWNPOUR_TOKEN']}", flush=True)
    _work(channel, worked, title)


def _chatter(channel: Channel, worked: Path, title: str) -> None:
    log = Path(os.readlink("/proc/self/fd/2"))
    older = log.with_name(log.name + ".1")
    number = 0
    while not (older.exists() and log.stat().st_size < older.stat().st_size):
        print(f"line {number}", file=sys.stderr, flush=True)
        number += 1
    print("the last line", file=sys.stderr, flush=True)
    _work(channel, worked, title)


def _family(channel: Channel, worked: Path, title: str) -> None:
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    child = subprocess.Popen([sys.executable, "-c", code])
    _note(Path(os.environ["FAKE_ROLES"]).with_suffix(".starts") / "grandchild", f"{child.pid} .")
    _stay(channel, worked, title)


def _report(channel: Channel, worked: Path, title: str, state: str) -> None:
    _listen(channel)
    channel.emit({"job": "fake", "state": state, "reason": "the shards ran away", "samples": 3})
    sys.exit(1 if state == "failed" else 0)


_ACTS: dict[str, Callable[..., None]] = {
    "serve": _serve, "work": _work, "stay": _stay, "stubborn": _stubborn, "raise": _raise,
    "skipped": _skipped, "refuse": _refuse, "exit": _exit, "kill": _kill, "mute": _mute,
    "noise": _noise, "tell": _tell, "chatter": _chatter, "family": _family, "report": _report,
}  # fmt: skip

if __name__ == "__main__":
    main()
