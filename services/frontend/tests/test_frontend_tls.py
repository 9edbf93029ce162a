import ssl
from pathlib import Path

import httpx
import pytest
import trustme
from catenary_frontend.testing import running_frontend
from catenary_protocols.bus.subjects import Subjects
from catenary_runtime.testing import NatsServer


async def test_the_apis_speak_https_alone_once_they_have_a_certificate(
    nats_server: NatsServer, subjects: Subjects, tmp_path: Path
) -> None:
    authority = trustme.CA()
    made = authority.issue_cert("127.0.0.1")
    chain, key = tmp_path / "chain.pem", tmp_path / "key.pem"
    chain.write_bytes(b"".join(blob.bytes() for blob in made.cert_chain_pems))
    made.private_key_pem.write_to_path(key)
    known = ssl.create_default_context()
    authority.configure_trust(known)
    async with running_frontend(nats_server, subjects, tls_cert=str(chain), tls_key=str(key)) as stand:
        url = stand.url.replace("http://", "https://")
        async with httpx.AsyncClient(base_url=url, verify=known) as client:
            assert (await client.get("/v1/models")).json()["data"][0]["id"] == "org/m"
        async with httpx.AsyncClient(base_url=url) as stranger:
            with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
                await stranger.get("/v1/models")
        with pytest.raises(httpx.RemoteProtocolError):
            await stand.http.get("/v1/models")
