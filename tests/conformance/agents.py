"""How each coding agent is told where the mesh is, what to do, and to keep to itself; and where it leaves its answer."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.conformance import install
from tests.mesh.harness import MODEL

KEY = "none"


@dataclass(frozen=True)
class Desk:
    """One client's own home and work folders, and the mesh it talks to."""

    folder: Path
    url: str

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def work(self) -> Path:
        return self.folder / "work"

    @property
    def v1(self) -> str:
        return f"{self.url}/v1"

    def at_home(self, name: str, text: str) -> None:
        path = self.home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@dataclass(frozen=True)
class Start:
    """A command line without its prompt, which comes last, what it needs in its environment, and how its output is read."""

    command: list[str]
    environment: Mapping[str, str]
    answer: Callable[[str], str]


def claude_code(desk: Desk, _: str) -> Start:
    environment = {
        "ANTHROPIC_BASE_URL": desk.url,
        "ANTHROPIC_API_KEY": KEY,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CODE_DISABLE_NONSTREAMING_FALLBACK": "1",  # it would hide a broken stream
        "CLAUDE_CODE_MAX_RETRIES": "1",
        "DISABLE_AUTOUPDATER": "1",
        "DISABLE_TELEMETRY": "1",
        "DISABLE_ERROR_REPORTING": "1",
    }
    program = str(install.CLAUDE_CODE.bin() / install.CLAUDE_CODE.program)
    flags = ["--model", MODEL, "--allowedTools", "Bash Read", "--output-format", "json", "-p"]
    return Start([program, *flags], environment, lambda out: str(json.loads(out)["result"]))


CODEX_CONFIG = """
model = "{model}"
model_provider = "mesh"
approval_policy = "never"
sandbox_mode = "danger-full-access"
check_for_update_on_startup = false
web_search = "disabled"
analytics.enabled = false
features.plugins = false
otel.exporter = "none"
[model_providers.mesh]
name = "mesh"
base_url = "{url}"
env_key = "MESH_KEY"
wire_api = "responses"
supports_websockets = false
request_max_retries = 1
stream_max_retries = 1
"""


def codex(desk: Desk, _: str) -> Start:
    desk.at_home(".codex/config.toml", CODEX_CONFIG.format(model=MODEL, url=desk.v1))
    said = desk.folder / "answer.txt"
    program = str(install.CODEX.bin() / install.CODEX.program)
    command = [program, "exec", "--skip-git-repo-check", "--json", "-o", str(said)]
    return Start(command, {"MESH_KEY": KEY}, lambda _: said.read_text())


def opencode(desk: Desk, api: str) -> Start:
    package = {"chat": "openai-compatible", "messages": "anthropic", "responses": "openai"}[api]
    limits = {"context": 131072, "output": 16384}
    model = {"name": MODEL, "reasoning": True, "tool_call": True, "limit": limits}
    provider = {
        "npm": f"@ai-sdk/{package}",
        "name": "mesh",
        "options": {"baseURL": desk.v1, "apiKey": KEY},
        "models": {MODEL: model},
    }
    config = {
        "autoupdate": False,
        "share": "disabled",
        "permission": "allow",
        "model": f"mesh/{MODEL}",
        "small_model": f"mesh/{MODEL}",
        "enabled_providers": ["mesh"],
        "provider": {"mesh": provider},
    }
    desk.at_home(".config/opencode/opencode.json", json.dumps(config))
    flags = ("AUTOUPDATE", "MODELS_FETCH", "LSP_DOWNLOAD")
    program = str(install.OPENCODE.bin() / install.OPENCODE.program)
    return Start([program, "run", "--format", "json"], {f"OPENCODE_DISABLE_{flag}": "1" for flag in flags}, _last_text)


def _last_text(out: str) -> str:
    events = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    texts = [str(event["part"]["text"]) for event in events if event["type"] == "text"]
    return texts[-1] if texts else ""


def qwen_code(desk: Desk, api: str) -> Start:
    kind = {"chat": "openai", "messages": "anthropic", "responses": "openai-responses"}[api]
    config = {
        "security": {"auth": {"selectedType": kind}},
        "privacy": {"usageStatisticsEnabled": False},
        "telemetry": {"enabled": False},
        "general": {"enableAutoUpdate": False},
        "model": {"name": MODEL},
    }
    desk.at_home(".qwen/settings.json", json.dumps(config))
    environment = {
        "OPENAI_API_KEY": KEY,
        "OPENAI_BASE_URL": desk.v1,
        "OPENAI_MODEL": MODEL,
        "ANTHROPIC_API_KEY": KEY,
        "ANTHROPIC_BASE_URL": desk.url,
        "ANTHROPIC_MODEL": MODEL,
        "NO_UPDATE_NOTIFIER": "1",
    }
    program = str(install.QWEN_CODE.bin() / install.QWEN_CODE.program)
    command = [program, "--auth-type", kind, "--yolo", "-o", "json"]
    return Start(command, environment, lambda out: str(json.loads(out)[-1]["result"]))
