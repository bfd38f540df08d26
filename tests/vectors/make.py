"""Writes the golden bytes from the slow twins: ``python -m tests.vectors.make``.

They are checked in, and a change of any of them is a change of the wire: give it a new version.

``frames.txt``: one frame a line, its fields as ``name=value`` (payload in hex), then the bytes.
"""

from __future__ import annotations

import dataclasses
import struct
from pathlib import Path

from tests.reference.frames import Frame

FOLDER = Path(__file__).parent
U32, U64 = 2**32 - 1, 2**64 - 1

FRAMES = [
    Frame(
        1, replica=3, incarnation=2, seq=41, fragment=6, count=4, aux=0x3F800000,
        payload=struct.pack("<QQQ", 41, 17, 256),
    ),
    Frame(
        2, dtype=1, replica=3, incarnation=2, fragment=7, seq=41, version=12,
        payload=struct.pack("<4f", 1.0, -2.0, 0.5, 3.25),
    ),
    Frame(2, dtype=2, replica=3, incarnation=2, seq=42, payload=struct.pack("<2d", 1.0, -2.0)),
    Frame(2, dtype=3, replica=3, incarnation=2, seq=43, payload=struct.pack("<3e", 1, 2, 0.1)),
    Frame(2, dtype=4, replica=3, incarnation=2, seq=44, payload=bytes.fromhex("803f00c0")),
    Frame(
        3, flags=1, replica=3, incarnation=2, seq=41, fragment=6, count=4, version=99,
        payload=struct.pack("<QQQQQQd", 3, 5, 1, 1, 17, 5, 0.25),
    ),
    Frame(4, seq=41, count=1, aux=1, fragment=7, payload=b"2 non-finite elements"),
    Frame(5, seq=8, version=90, payload=struct.pack("<QQQ", 0, 0, 17)),
    Frame(5, seq=9, version=99, payload=struct.pack("<QQQ", 6, 15, 18)),
    Frame(5, seq=10, version=99, fragment=6, count=2, payload=struct.pack("<QQQ", 0, 0, 19)),
    Frame(6, dtype=1, fragment=7, version=13, seq=97, payload=struct.pack("<2f", 0.25, -0.0)),
    Frame(7, seq=8, version=99, count=1, payload=struct.pack("<QQQ", 1, 17, 5)),
    Frame(8, seq=1),
    Frame(9, seq=1),
    Frame(10, aux=6, payload="older incarnation \N{EM DASH} stop".encode()),
    Frame(11),
    Frame(12, flags=1, payload=struct.pack("<QQQ", 1, 17, 5) + b"round 5 waits for replica 2"),
    Frame(13, dtype=1, fragment=7, seq=5, version=0x4008000000000000,
          payload=struct.pack("<2f", 1.5, -4.0)),
    Frame(14, seq=5, payload=struct.pack("<QQQQ", 3, 96, 1, 99)),
    Frame(14, flags=1, seq=6, version=0x4022000000000000, payload=struct.pack("<QQQ", 0, 0, 0)),
    Frame(2, 0, 255, 255, U32, U32, U32, U64, U64, U32, U32, b"\xff" * 65),
]  # fmt: skip


def line(frame: Frame) -> str:
    """One golden frame as text."""
    fields = dataclasses.asdict(frame) | {"payload": frame.payload.hex()}
    return " ".join(f"{name}={value}" for name, value in fields.items() if value) + (
        f" bytes={frame.encode().hex()}"
    )


def text() -> str:
    """All of ``frames.txt``."""
    return "".join(line(frame) + "\n" for frame in FRAMES)


if __name__ == "__main__":
    (FOLDER / "frames.txt").write_text(text(), encoding="ascii")
