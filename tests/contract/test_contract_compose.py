"""The Compose file: all six services, each with a health check, nothing open to the network; valid where Compose is there."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from catenary_cli.plan import MODULES
from catenary_runtime.testing import nats_binary

from tests.contract.workspace import ROOT

FILE = ROOT / "deploy" / "compose.yaml"


def compose() -> list[str] | None:
    """The command, in the version that is installed."""
    plugin = ["docker", "compose"]
    if shutil.which("docker") and not subprocess.run([*plugin, "version"], capture_output=True, check=False).returncode:
        return plugin
    return ["docker-compose"] if shutil.which("docker-compose") else None


@pytest.fixture
def services() -> dict[str, Any]:
    found = yaml.safe_load(FILE.read_text())["services"]
    assert isinstance(found, dict)
    return found


def test_compose_accepts_the_file() -> None:
    command = compose()
    if command is None:
        pytest.skip("NOT RUN: neither docker compose nor docker-compose is installed")
    done = subprocess.run([*command, "-f", str(FILE), "config", "-q"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_service_is_built_from_its_folder_and_watched(services: dict[str, Any]) -> None:
    for name, module in MODULES.items():
        service = services[name]
        arguments = service["build"]["args"]
        assert (ROOT / "services" / arguments["SERVICE"] / module / "__main__.py").is_file()
        assert arguments["MODULE"] == module
        assert (ROOT / "requirements" / f"{arguments['SERVICE']}.txt").is_file()
        assert "healthcheck" in service
        assert service["depends_on"] == {"provision": {"condition": "service_completed_successfully"}}


def test_ports_are_on_loopback_and_images_are_pinned(services: dict[str, Any]) -> None:
    for service in services.values():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
        assert re.search(r":\d+\.\d+", service.get("image", "x:0.0"))


def test_the_brokers_configuration_is_one_nats_takes(tmp_path: Path) -> None:
    config = tmp_path / "nats.conf"
    text = (ROOT / "deploy" / "nats" / "nats.conf").read_text().replace('"/data"', f'"{tmp_path}/data"')
    config.write_text(text)
    environment = {"CATENARY_BROKER_PASSWORD": "secret", "PATH": "/usr/bin"}
    command = [nats_binary(), "-t", "-c", str(config)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert "max_payload: 8MB" in text
