"""TLS to the broker: both sides are who they say they are, and nothing is said to a broker that does not encrypt."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import trustme
from catenary_protocols.bus.subjects import Subjects
from catenary_protocols.errors import TransportError
from catenary_runtime.bus import Bus, connect_once
from catenary_runtime.config import ConfigError, Settings
from catenary_runtime.testing import NatsServer
from catenary_runtime.tls import broker_tls, server_tls


@dataclass
class Pki:
    """An authority of the test's own, a broker's certificate of it, and a client's."""

    folder: Path

    def __post_init__(self) -> None:
        authority = trustme.CA()
        self.ca = self._written("ca", authority.cert_pem)
        self.broker, self.broker_key = self._pair("broker", authority.issue_cert("127.0.0.1", "localhost"))
        self.client, self.client_key = self._pair("client", authority.issue_cert("worker@mesh.example"))

    def _pair(self, name: str, made: trustme.LeafCert) -> tuple[str, str]:
        chain = self.folder / f"{name}.pem"
        chain.write_bytes(b"".join(blob.bytes() for blob in made.cert_chain_pems))
        return str(chain), self._written(f"{name}.key", made.private_key_pem)

    def _written(self, name: str, blob: trustme.Blob) -> str:
        path = self.folder / name
        blob.write_to_path(path)
        return str(path)


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return Pki(Path(tmp_path_factory.mktemp("pki")))


@pytest.fixture(scope="module")
def server(pki: Pki, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    tls = {"cert_file": pki.broker, "key_file": pki.broker_key, "ca_file": pki.ca, "verify": True}
    one = NatsServer(Path(tmp_path_factory.mktemp("tls")), more={"tls": tls})
    one.start()
    yield one
    one.kill()


def settings(server: NatsServer, **files: str) -> Settings:
    return Settings(nats=server.url.replace("nats://", "tls://"), **files)  # type: ignore[arg-type]  # all are texts


async def test_messages_travel_encrypted_between_two_that_know_each_other(server: NatsServer, pki: Pki) -> None:
    known = settings(server, nats_ca=pki.ca, nats_cert=pki.client, nats_key=pki.client_key)
    bus = Bus(known.nats, Subjects(), "tls", death_limit=1e9, tls=broker_tls(known))
    await bus.connect()
    try:
        got: asyncio.Queue[bytes] = asyncio.Queue()
        await bus.subscribe("a", lambda msg: got.put_nowait(msg.data))
        bus.publish("a", b"hello")
        assert await got.get() == b"hello"
    finally:
        await bus.close()


async def test_a_broker_that_comes_back_is_spoken_to_encrypted_again(pki: Pki, tmp_path: Path) -> None:
    server = NatsServer(tmp_path, more={"tls": {"cert_file": pki.broker, "key_file": pki.broker_key}})
    server.start()
    known = settings(server, nats_ca=pki.ca)
    bus = Bus(known.nats, Subjects(), "back", death_limit=1e9, tls=broker_tls(known))
    back = asyncio.Event()
    bus.on_back = back.set
    await bus.connect()
    try:
        server.restart()
        async with asyncio.timeout(15):
            await back.wait()
        assert bus.connected
    finally:
        await bus.close()
        server.kill()


@pytest.mark.parametrize("files", [("nats_ca",), ()], ids=["without a certificate", "an authority nobody knows"])
async def test_strangers_are_refused(server: NatsServer, pki: Pki, files: tuple[str, ...]) -> None:
    stranger = settings(server, **dict.fromkeys(files, pki.ca))
    with pytest.raises(TransportError):
        await connect_once(stranger.nats, "stranger", tls=broker_tls(stranger))


async def test_a_broker_that_does_not_encrypt_is_told_nothing(pki: Pki) -> None:
    said = asyncio.get_running_loop().create_future()

    async def broker(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"server_id":"x","version":"2.12.0","max_payload":8388608,"auth_required":true}\r\n')
        said.set_result(await reader.read())
        writer.close()
        await writer.wait_closed()

    listener = await asyncio.start_server(broker, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    try:
        wanted = Settings(nats=f"tls://me:secret@127.0.0.1:{port}", nats_ca=pki.ca)
        with pytest.raises(TransportError, match="does not encrypt") as caught:
            await connect_once(wanted.nats, "careful", tls=broker_tls(wanted))
        assert "secret" not in caught.value.message
        assert await said == b""
    finally:
        listener.close()
        await listener.wait_closed()


def test_plain_text_is_wanted_only_without_any_word_of_tls(pki: Pki) -> None:
    assert broker_tls(Settings()) is None
    assert broker_tls(Settings(nats="tls://broker:4222")) is not None
    assert broker_tls(Settings(nats_ca=pki.ca)) is not None
    assert server_tls("", "") is None


def test_files_that_do_not_fit_are_named(pki: Pki) -> None:
    with pytest.raises(ConfigError, match="go together"):
        broker_tls(Settings(nats_cert=pki.client))
    with pytest.raises(ConfigError, match="no-such-file"):
        broker_tls(Settings(nats_ca="no-such-file"))
    with pytest.raises(ConfigError, match="tls_cert"):
        server_tls(pki.broker, pki.client_key)
