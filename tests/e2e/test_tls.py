"""A whole job over TLS with a token; and peers that do not trust each other say so."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import ssl
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import numpy as np
import pytest
import trustme

import pydownpour as dp
from pydownpour import limits
from pydownpour.coordinator.places import Places
from pydownpour.coordinator.service import serve_coordinator
from pydownpour.errors import ConfigError, DownpourError
from pydownpour.net import process
from pydownpour.net.access import Access, Bind, Tls
from pydownpour.net.client import Client
from pydownpour.net.server import Call, Route, Server
from pydownpour.shard.service import serve_shard
from pydownpour.wire.messages import HeartbeatAnswer, ShardAssigned, ShardHello, ShardMap, Status
from tests.chaos.processes import ByHand, Command
from tests.e2e.stage import Stage, ones

TOKEN = "open sesame"


class Certificates:
    """An authority, a server's certificate of it, and an authority that signed nothing."""

    def __init__(self, folder: Path, name: str = "127.0.0.1") -> None:
        authority, self.stranger = trustme.CA(), str(folder / "stranger.pem")
        issued = authority.issue_cert(name)
        self.cert, self.key, self.ca = (str(folder / f) for f in ("cert.pem", "key.pem", "ca.pem"))
        issued.cert_chain_pems[0].write_to_path(self.cert)
        issued.private_key_pem.write_to_path(self.key)
        authority.cert_pem.write_to_path(self.ca)
        trustme.CA().cert_pem.write_to_path(self.stranger)

    @property
    def options(self) -> list[str]:
        """On the command line of a server."""
        return ["--tls-cert", self.cert, "--tls-key", self.key, "--tls-ca", self.ca]

    @property
    def access(self) -> Access:
        """Of a server."""
        return Access(token=TOKEN, tls=Tls(cert=self.cert, key=self.key, ca=self.ca))


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


QUICK = limits.Limits(heartbeat_s=0.05)
"""The end of a job is heard of sooner."""


def counting_job() -> dp.Job:
    job = dp.Job(
        # Three fragments a shard, so that frames do not end where TLS records do.
        parameters={"w": np.zeros(300_000, np.float32)},
        optimizer=dp.SGD(lr=1.0),
        data=dp.Work(12, unit=2),
    )

    @job.replica
    async def train(replica: dp.Replica) -> None:
        async for unit in replica.work():
            for _ in unit.batches(1):
                await replica.step(ones(job, -1.0))
        await replica.fetch()
        assert not replica.statistics().fallback

    @job.evaluate
    def counted(parameters: dict[str, np.ndarray]) -> dict[str, float]:
        return {"least": float(parameters["w"].min()), "most": float(parameters["w"].max())}

    return job


async def test_a_job_over_tls_joins_pushes_fetches_and_ends(
    tmp_path: Path, certificates: Certificates
) -> None:
    async with Stage(
        counting_job(), tmp_path / "run", access=certificates.access, limits=QUICK
    ) as stage:
        assert stage.url.startswith("https://")
        await asyncio.gather(stage.replica(), stage.replica(own_thread=True))
    np.testing.assert_array_equal(stage.parameters()["w"], 12.0)
    assert stage.report["metrics"] == {"least": 12.0, "most": 12.0}
    assert all(shard["url"].startswith("https://") for shard in stage.report["shards"])


async def test_a_server_of_another_authority_is_refused_at_once_and_gets_no_token(
    tmp_path: Path, certificates: Certificates
) -> None:
    heard: list[bytes] = []

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.read())
        writer.close()

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.cert, certificates.key)
    server = await asyncio.start_server(listen, "127.0.0.1", 0, ssl=context)
    url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    words = "certificate we do not trust .*; pass the authority with --tls-ca"
    with pytest.raises(ConfigError, match=words):
        async with dp.join(url, token=TOKEN, ca=certificates.stranger):
            pass
    with pytest.raises(ConfigError, match=words):
        async with dp.join(url, token=TOKEN):
            pass
    server.close()
    assert b"".join(heard) == b""


async def test_a_certificate_of_another_host_is_refused(tmp_path: Path) -> None:
    elsewhere = Certificates(tmp_path, "10.1.2.3")
    job = counting_job()
    with pytest.raises(ConfigError, match="IP address mismatch"):
        async with Stage(job, tmp_path / "run", shards=1, access=elsewhere.access) as stage:
            await stage.replica()


async def test_a_shard_the_coordinator_cannot_read_is_refused_when_it_registers(
    tmp_path: Path, certificates: Certificates
) -> None:
    """Its certificate is another authority's: at the end of the job nobody could read it."""
    (tmp_path / "elsewhere").mkdir()
    elsewhere = Certificates(tmp_path / "elsewhere")
    heard: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    coordinator = asyncio.create_task(
        serve_coordinator(
            counting_job(), shards=1, bind=Bind(), access=certificates.access, run_folder=None,
            announce=heard.set_result, random=random.Random(0),
        )
    )  # fmt: skip
    tls = Tls(cert=elsewhere.cert, key=elsewhere.key, ca=certificates.ca)
    words = r"must be able to read from a shard, and at https://.*a certificate we do not trust"
    with pytest.raises(ConfigError, match=words):
        await serve_shard(
            coordinator=await heard, bind=Bind(), access=Access(token=TOKEN, tls=tls),
            announce=lambda url: None,
        )  # fmt: skip
    coordinator.cancel()
    assert (await coordinator)["state"] == "stopped"


async def test_a_client_without_tls_at_a_server_with_it_is_told(
    tmp_path: Path, certificates: Certificates
) -> None:
    job = counting_job()
    async with Stage(
        job, tmp_path / "run", shards=1, access=certificates.access, limits=QUICK
    ) as stage:
        plain = stage.url.replace("https://", "http://")
        async with Client(plain, access=Access(token=TOKEN)) as client:
            with pytest.raises(DownpourError, match=r"https|broke"):
                await client.get("/v1/status", Status)
        await stage.replica()


async def test_strangers_who_never_shake_hands_make_room_and_are_cut_off(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(process, "descriptors", lambda: (40, 0))

    async def answer(call: Call) -> HeartbeatAnswer:
        return HeartbeatAnswer(state="running")

    route = Route("GET", "/v1/answer", answer)
    access = certificates.access
    async with Server(
        [route],
        bind=Bind(),
        access=access,
        name="test",
        limits=limits.Limits(tls_handshake_timeout_s=0.5),
    ) as server:
        target = urlsplit(server.url)
        with contextlib.ExitStack() as stack:
            strangers = []
            for i in range(60):
                stranger = socket.create_connection((target.hostname, target.port))
                strangers.append(stack.enter_context(stranger))
                stranger.setblocking(False)
                if i % 3 == 0:
                    stranger.send(b"this is no handshake\r\n" if i % 2 else b"\x16\x03\x01")
                async with Client(server.url, access=access) as client:
                    await client.get("/v1/answer", HeartbeatAnswer)
            for stranger in strangers:
                with contextlib.suppress(ConnectionError):
                    said = await asyncio.get_running_loop().sock_recv(stranger, 100)
                    assert said[:1] in (b"", b"\x15"), "nothing, or an alert of TLS"
        assert len(caplog.records) == 1, "one line about one address"
        assert "no TLS handshake" in caplog.text


def test_roles_by_hand_over_tls_and_a_wrong_authority_in_one_line(
    tmp_path: Path, certificates: Certificates
) -> None:
    (tmp_path / "job.py").write_text(
        "import numpy as np\nimport pydownpour as dp\n"
        "job = dp.Job(parameters={'w': np.zeros(100, np.float32)}, optimizer=dp.SGD(lr=1.0),\n"
        "             data=dp.Work(4, unit=1))\n"
        "@job.replica\nasync def train(replica):\n"
        "    async for unit in replica.work():\n"
        "        await replica.step({'w': -np.ones(100)})\n"
    )
    env = {"PYDOWNPOUR_TOKEN": TOKEN}
    with ByHand(
        tmp_path / "job.py", tmp_path, shards=1, env=env, options=certificates.options
    ) as job:
        assert job.url.startswith("https://")
        wrong = Command(
            "replica", tmp_path / "job.py", "--coordinator", job.url,
            "--tls-ca", certificates.stranger, env=env,
        )  # fmt: skip
        with wrong:
            assert wrong.wait() == 2, wrong.said
            assert wrong.heard("certificate we do not trust")
        assert len(wrong.err) == 1
        replica = job.replica("--tls-ca", certificates.ca)
        assert replica.wait() == 0, replica.said
        assert job.finish()["samples"] == 4


def test_bind_that_others_reach_is_allowed_with_token_and_tls(certificates: Certificates) -> None:
    certificates.access.check_bind(Bind("0.0.0.0"))


async def test_a_replica_that_came_by_https_sends_no_token_to_a_plain_address(
    tmp_path: Path, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A coordinator behind a proxy takes any shard; whoever came by https does not go on to it."""
    heard: list[bytes] = []

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.read(1000))
        writer.close()

    eavesdropper = await asyncio.start_server(listen, "127.0.0.1", 0)
    plain = f"http://127.0.0.1:{eavesdropper.sockets[0].getsockname()[1]}"

    def rerouted(self: Places) -> ShardMap:
        entries = [msgspec.structs.replace(entry, url=plain) for entry in self.entries]
        return ShardMap(epoch=self.epoch, entries=entries, fragments=1)

    async with Stage(
        counting_job(), tmp_path / "run", access=certificates.access, limits=QUICK
    ) as stage:
        with monkeypatch.context() as patch:
            patch.setattr(Places, "shard_map", property(rerouted))
            with pytest.raises(ConfigError, match="token would travel in the clear"):
                async with dp.join(stage.url, token=TOKEN, ca=certificates.ca):
                    pass
        await stage.replica()
    eavesdropper.close()
    assert heard == []


async def test_a_job_over_tls_refuses_a_shard_without(
    tmp_path: Path, certificates: Certificates
) -> None:
    only_token = Access(token=TOKEN, tls=Tls(ca=certificates.ca))
    async with Stage(
        counting_job(), tmp_path / "run", access=certificates.access, limits=QUICK
    ) as stage:
        with pytest.raises(ConfigError, match="token would travel in the clear"):
            await serve_shard(
                coordinator=stage.url, bind=Bind(), access=only_token, announce=lambda url: None
            )
        async with Client(stage.url, access=only_token) as client:
            hello = ShardHello(url="http://127.0.0.1:1")
            with pytest.raises(ConfigError, match="token would travel in the clear"):
                await client.post("/v1/shard", hello, ShardAssigned)
        await stage.replica()
