"""What `catenary nats-permissions` prints is a configuration that nats-server starts with."""

import os
import re
import secrets
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from catenary_cli.__main__ import main
from catenary_runtime.bus import connect_once
from catenary_runtime.testing import nats_binary


def printed(capsys: pytest.CaptureFixture[str], *flags: str) -> str:
    assert main(["nats-permissions", *flags]) == 0
    return capsys.readouterr().out


def test_no_password_is_in_it_and_every_variable_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "--tool", "send mail", "--namespace", "shop.v1")
    used = set(re.findall(r'"password": \$(\w+)', text))
    assert used == set(re.findall(r"^#   (\w+)$", text, re.MULTILINE))
    assert {"CATENARY_PASSWORD_CATENARY", "CATENARY_PASSWORD_EXECUTOR_SEND_20MAIL"} <= used
    assert '"password": "' not in text
    assert "shop.v1.tool.result.send=20mail.*" in text
    assert "catenary.v1" not in text


@contextmanager
def broker(folder: Path, **passwords: str) -> Iterator[int]:
    """A nats-server that includes `accounts.conf`; its port."""
    ports = folder / "ports"
    ports.mkdir()
    config = folder / "nats.conf"
    config.write_text(f'listen: "127.0.0.1:-1"\nports_file_dir: "{ports}"\ninclude "accounts.conf"\n')
    process = subprocess.Popen(
        [nats_binary(), "-c", str(config), "-sd", str(folder / "js")],
        env={**os.environ, **passwords},
        stderr=subprocess.DEVNULL,
    )
    try:
        while not (found := list(ports.iterdir())) or not found[0].read_text():
            assert process.poll() is None
        yield int(re.findall(r'"nats://127.0.0.1:(\d+)"', found[0].read_text())[0])
    finally:
        process.kill()
        process.wait()


async def test_a_broker_that_includes_it_lets_each_user_in(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    text = printed(capsys, "--tool", "lookup")
    (tmp_path / "accounts.conf").write_text(text)
    passwords = {name: f"pw{secrets.token_hex(8)}" for name in re.findall(r"^#   (\w+)$", text, re.MULTILINE)}
    users = re.findall(r'"user": "([\w-]+)",\s+"password": \$(\w+)', text)
    assert len(users) == len(passwords)
    with broker(tmp_path, **passwords) as port:
        for user, variable in users:
            nc = await connect_once(f"nats://{user}:{passwords[variable]}@127.0.0.1:{port}", user)
            await nc.close()
