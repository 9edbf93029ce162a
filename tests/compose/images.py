"""The images that compose.yaml and the Dockerfile name, made here: nothing is pulled.

The one of Python is a Debian root with Debian's Python, which has the same minor version; that of NATS is the same root
with the `nats-server` that the tests use, which has the same version. Both have the certificates that this machine trusts.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import yaml
from catenary_runtime.testing import nats_binary

from tests.compose.engine import Engine, NotRun

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
PACKAGES = "python3,python3-venv,ca-certificates,wget"
BUNDLE = Path("etc/ssl/certs/ca-certificates.crt")
TRUST = ("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE")
PROXIES = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")


def make(engine: Engine, folder: Path) -> None:
    """Put both under the tags that are asked for; raises `NotRun` where Debian's packages cannot be had."""
    root = folder / "root"
    command = ["debootstrap", "--variant=minbase", f"--include={PACKAGES}", "bookworm", str(root)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        raise NotRun(f"debootstrap: {done.stdout.strip().splitlines()[-1]}")
    if (Path("/") / BUNDLE).exists():
        shutil.copy(Path("/") / BUNDLE, root / BUNDLE)
    (root / "usr/local/bin/python").symlink_to("/usr/bin/python3")
    shutil.copy(nats_binary(), root / "usr/local/bin/nats-server")
    archive = folder / "root.tar"
    subprocess.run(["tar", "-C", str(root), "-cf", str(archive), "."], check=True)
    shutil.rmtree(root)
    python = [word for name in TRUST for word in ("--change", f"ENV {name}=/{BUNDLE}")]
    engine.docker("import", *python, "--change", 'CMD ["python"]', str(archive), python_tag())
    engine.docker("import", "--change", 'ENTRYPOINT ["nats-server"]', str(archive), nats_tag())
    archive.unlink()


def python_tag() -> str:
    """As the Dockerfile names it."""
    tags = set(re.findall(r"^FROM (python:\S+)", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE))
    assert len(tags) == 1, tags
    return str(tags.pop())


def nats_tag() -> str:
    """As compose.yaml names it."""
    return str(yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["nats"]["image"])


def override(path: Path) -> Path:
    """A second Compose file: what is built is built over this machine's network, by its proxies if it has any."""
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    proxies: Mapping[str, str] = {name: os.environ[name] for name in PROXIES if name in os.environ}
    built = {
        name: {"build": {"network": "host", **({"args": proxies} if proxies else {})}}
        for name, one in services.items()
        if "build" in one and "gpu" not in one.get("profiles", ())
    }
    path.write_text(yaml.safe_dump({"services": built}))
    return path
