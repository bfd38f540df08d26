"""A job behind a real nginx: the documented configuration, and one that knows nothing of us."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from tests.chaos.processes import ROOT, ByHand, Command, until
from tests.e2e.test_tls import Certificates

pytestmark = pytest.mark.timeout(180)

TOKEN = "behind a reverse proxy"
NGINX = shutil.which("nginx", path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")
DOCUMENT = ROOT / "docs" / "security.md"
COUNTED = ROOT / "tests" / "e2e" / "counted_job.py"


@pytest.fixture(autouse=True)
def _nginx_is_there() -> None:
    if NGINX is None:
        assert "CI" not in os.environ, "CI must have nginx: .ci/run installs Debian's nginx-light"
        pytest.skip("there is no nginx on this machine (Debian: nginx-light)")


def own_address() -> str:
    """A loopback address that is nobody else's: then ports can be the documented ones."""
    a, b, c = uuid.uuid4().bytes[:3]
    return f"127.{a % 200 + 20}.{b}.{c % 250 + 2}"


def documented(address: str, certificates: Certificates) -> str:
    """The server block of docs/security.md, at this test's address, port and certificate."""
    block = re.search(r"```nginx\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    assert block is not None
    changes = {
        "listen 443 ssl": f"listen {address}:8443 ssl",
        "/etc/ssl/train.example.org.pem": certificates.cert,
        "/etc/ssl/train.example.org.key": certificates.key,
        "http://127.0.0.1:": f"http://{address}:",
    }
    text = block[1]
    for old, new in changes.items():
        assert old in text, f"docs/security.md no longer says {old!r}"
        text = text.replace(old, new)
    return text


def plain(address: str) -> str:
    """What somebody writes who has never heard of us: no Upgrade, a body limit of 1 MB."""
    return f"""
server {{
    listen {address}:8443;
    location /coordinator/ {{ proxy_pass http://{address}:7000/; }}
    location /shard-0/     {{ proxy_pass http://{address}:7001/; }}
    location /shard-1/     {{ proxy_pass http://{address}:7002/; }}
}}
"""


@contextlib.contextmanager
def nginx(folder: Path, server: str) -> Iterator[None]:
    """An nginx of its own in a folder, gone afterwards."""
    folder.mkdir()
    paths = "".join(
        f"{kind}_temp_path {folder}/{kind};\n"
        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    config = folder / "nginx.conf"
    # Its workers would be somebody else, who may not enter this folder.
    user = "user root;" if os.geteuid() == 0 else ""
    config.write_text(
        f"{user} daemon off; worker_processes 1; pid {folder}/pid; error_log {folder}/error.log;\n"
        f"events {{}}\nhttp {{\naccess_log off;\n{paths}{server}\n}}\n"
    )
    assert NGINX is not None
    process = subprocess.Popen(
        [NGINX, "-p", str(folder), "-e", str(folder / "error.log"), "-c", str(config)]
    )
    try:
        until(lambda: (folder / "pid").exists() or process.poll() is not None, "nginx")
        assert process.poll() is None, (folder / "error.log").read_text()
        yield
    finally:
        process.terminate()
        process.wait(30)


@contextlib.contextmanager
def job_at(address: str, folder: Path, url: str, *options: str) -> Iterator[ByHand]:
    """Coordinator and two shards on their documented ports, known to replicas under ``url``."""
    job = ByHand(
        COUNTED,
        folder,
        shards=0,
        env={"PYDOWNPOUR_TOKEN": TOKEN},
        options=options,
        bind=f"{address}:7000",
    )
    with job:
        for index in (0, 1):
            job.shard(
                "--bind", f"{address}:{7001 + index}", "--index", str(index),
                "--advertise", f"{url}/shard-{index}",
            )  # fmt: skip
        yield job


def ends_exact(job: ByHand, replicas: list[Command], *, fallback: bool) -> None:
    """Every sample was counted once, by way of the proxy."""
    for replica in replicas:
        assert replica.wait() == 0, replica.said
    report = job.finish()
    assert report["state"] == "done"
    assert (report["metrics"]["least"], report["metrics"]["most"]) == (12.0, 12.0)
    assert [replica["fallback"] for replica in report["replicas"]] == [fallback] * len(replicas)


def test_a_job_behind_the_documented_configuration_streams_over_tls(tmp_path: Path) -> None:
    address = own_address()
    certificates = Certificates(tmp_path, address)
    url = f"https://{address}:8443"
    trust = ("--tls-ca", certificates.ca)
    with (
        nginx(tmp_path / "nginx", documented(address, certificates)),
        job_at(address, tmp_path, url, *trust) as job,
    ):
        replicas = [job.replica(*trust, coordinator=f"{url}/coordinator") for _ in range(2)]
        ends_exact(job, replicas, fallback=False)


def test_a_job_behind_a_proxy_that_knows_nothing_of_us_is_only_slower(tmp_path: Path) -> None:
    address = own_address()
    url = f"http://{address}:8443"
    with nginx(tmp_path / "nginx", plain(address)), job_at(address, tmp_path, url) as job:
        ends_exact(job, [job.replica(coordinator=f"{url}/coordinator")], fallback=True)


def test_a_replica_that_does_not_trust_the_proxy_sends_it_no_token(tmp_path: Path) -> None:
    address = own_address()
    certificates = Certificates(tmp_path, address)
    stranger = tmp_path / "other.pem"
    trustme.CA().cert_pem.write_to_path(stranger)
    url = f"https://{address}:8443"
    with (
        nginx(tmp_path / "nginx", documented(address, certificates)),
        job_at(address, tmp_path, url, "--tls-ca", certificates.ca) as job,
    ):
        replica = job.replica("--tls-ca", str(stranger), coordinator=f"{url}/coordinator")
        assert replica.wait() != 0
        assert "certificate" in replica.said
