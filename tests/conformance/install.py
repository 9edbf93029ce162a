"""Coding agents from npm, each version in a folder of its own under the cache, which outlives runs."""

import os
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

CACHE = Path(os.environ.get("CATENARY_CLIENTS") or Path.home() / ".cache" / "catenary" / "clients")
TRIES = 3
INSTALL_S = 600
OLDEST_NODE = 22


class NotRunError(Exception):
    """What a client needs is not there; its text says what."""


@dataclass(frozen=True)
class Package:
    """One on npm, and the program it brings."""

    name: str
    version: str
    program: str

    def bin(self) -> Path:
        """The folder of its programs, installed if it is not yet. Raises `NotRunError`."""
        folder = CACHE / f"{self.name.strip('@').replace('/', '-')}-{self.version}"
        if not (folder / "installed").exists():
            self._install(folder)
        return folder / "node_modules" / ".bin"

    def _install(self, folder: Path) -> None:
        npm = shutil.which("npm")
        if npm is None:
            raise NotRunError("npm is not installed")
        folder.mkdir(parents=True, exist_ok=True)
        command = [npm, "install", "--prefix", str(folder), "--no-audit", "--no-fund", "--no-package-lock"]
        for attempt in range(1, TRIES + 1):
            try:
                done = subprocess.run(
                    [*command, f"{self.name}@{self.version}"],
                    capture_output=True,
                    text=True,
                    timeout=INSTALL_S,
                    check=False,
                )
                why = done.stderr.strip()[-300:]
            except subprocess.TimeoutExpired:
                why = f"not done in {INSTALL_S} s"
            else:
                if done.returncode == 0:
                    (folder / "installed").touch()
                    return
            if attempt < TRIES:
                time.sleep(5 * attempt)
        raise NotRunError(f"npm could not install {self.name}@{self.version}: {why}")


NODE = Package("node", "22.23.3", "node")
CLAUDE_CODE = Package("@anthropic-ai/claude-code", "2.1.332", "claude")
CODEX = Package("@openai/codex", "0.171.0", "codex")
OPENCODE = Package("opencode-ai", "1.18.33", "opencode")
QWEN_CODE = Package("@qwen-code/qwen-code", "0.24.4", "qwen")


def node() -> Path:
    """The folder of a Node.js that is new enough: this machine's, or one from npm."""
    found = shutil.which("node")
    if found:
        version = subprocess.run([found, "--version"], capture_output=True, text=True, check=True).stdout
        if int(version.lstrip("v").partition(".")[0]) >= OLDEST_NODE:
            return Path(found).parent
    return NODE.bin()
