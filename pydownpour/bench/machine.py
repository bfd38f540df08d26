"""What the figures were taken on."""

from __future__ import annotations

import os
import platform
import socket

from pydownpour import _core
from pydownpour.cli.loop import loop_factory
from pydownpour.net import sockets


def machine() -> dict[str, str]:
    """CPU, kernels, congestion control, loop, versions."""
    build = _core.build_info()
    return {
        "cpu": _cpu(),
        "processors": str(os.cpu_count()),
        "kernels": build["simd"],
        "crc32c": build["crc32c"],
        "profile": build["profile"],
        "congestion control": _congestion(),
        "loop": "uvloop" if loop_factory() is not None else "asyncio",
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
    }


def _cpu() -> str:
    try:
        with open("/proc/cpuinfo") as info:
            for line in info:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _congestion() -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        default = sockets.congestion(sock)
        sockets.tune(sock, "127.0.0.1")
        return f"{sockets.congestion(sock) or 'unknown'} on loopback (default {default or '?'})"
