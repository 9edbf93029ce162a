"""How each coding agent is told where the mesh is, as its users are told, and to keep to itself; where its answer is."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.conformance import install
from tests.mesh.harness import MODEL

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "use-agents.md"


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


def documented(section: str, language: str, desk: Desk) -> str:
    """The block under this title of the page that tells users how, with the address of this mesh."""
    page = PAGE.read_text().partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    block = re.search(rf"^```{language}\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert block, f"{PAGE.name} has no {language} under {section}"
    return block[1].replace("http://127.0.0.1:8000", desk.url)


def exported(section: str, desk: Desk) -> dict[str, str]:
    return dict(re.findall(r"^export (\w+)=(\S+)$", documented(section, "bash", desk), re.MULTILINE))


def claude_code(desk: Desk, _: str) -> Start:
    alone = {
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CODE_DISABLE_NONSTREAMING_FALLBACK": "1",  # it would hide a broken stream
        "CLAUDE_CODE_MAX_RETRIES": "1",
        "DISABLE_AUTOUPDATER": "1",
        "DISABLE_TELEMETRY": "1",
        "DISABLE_ERROR_REPORTING": "1",
    }
    program = str(install.CLAUDE_CODE.bin() / install.CLAUDE_CODE.program)
    flags = ["--model", MODEL, "--allowedTools", "Bash Read", "--output-format", "json", "-p"]
    environment = exported("Claude Code", desk) | alone
    return Start([program, *flags], environment, lambda out: str(json.loads(out)["result"]))


CODEX_ALONE = """
approval_policy = "never"
sandbox_mode = "danger-full-access"
check_for_update_on_startup = false
web_search = "disabled"
analytics.enabled = false
features.plugins = false
otel.exporter = "none"
"""
CODEX_ONCE = """
supports_websockets = false
request_max_retries = 1
stream_max_retries = 1
"""


def codex(desk: Desk, _: str) -> Start:
    desk.at_home(".codex/config.toml", CODEX_ALONE + documented("Codex", "toml", desk) + CODEX_ONCE)
    said = desk.folder / "answer.txt"
    program = str(install.CODEX.bin() / install.CODEX.program)
    command = [program, "exec", "--skip-git-repo-check", "--json", "-o", str(said)]
    return Start(command, {"CATENARY_KEY": "none"}, lambda _: said.read_text())


def opencode(desk: Desk, api: str) -> Start:
    package = {"chat": "openai-compatible", "messages": "anthropic", "responses": "openai"}[api]
    config = json.loads(documented("opencode", "json", desk))
    config["provider"]["catenary"]["npm"] = f"@ai-sdk/{package}"
    config |= {"autoupdate": False, "share": "disabled", "permission": "allow", "enabled_providers": ["catenary"]}
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
    environment = exported("qwen-code", desk) | {"NO_UPDATE_NOTIFIER": "1"}
    program = str(install.QWEN_CODE.bin() / install.QWEN_CODE.program)
    command = [program, "--auth-type", kind, "--yolo", "-o", "json"]
    return Start(command, environment, lambda out: str(json.loads(out)[-1]["result"]))
