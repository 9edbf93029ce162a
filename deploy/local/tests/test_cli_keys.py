import json
import re
import tomllib
from pathlib import Path

import pytest
from catenary_cli.__main__ import main
from catenary_frontend.core.keys import KeyRing, Policy, hash_of, read_keys

ROOT = Path(__file__).parents[3]


def test_a_key_is_told_once_and_its_entry_lets_it_in(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["keys", "new", "--tenant", 'a "quoted" tenant']) == 0
    said = capsys.readouterr()
    key = said.err.split()[-1]
    assert key not in said.out
    ring = KeyRing(read_keys(said.out))
    found = ring.find(key)
    assert found is not None
    assert found.tenant == 'a "quoted" tenant'
    assert tomllib.loads(said.out)["keys"] == [{"hash": hash_of(key), "tenant": found.tenant}]


def test_keys_differ_and_come_as_json_too(capsys: pytest.CaptureFixture[str]) -> None:
    made = []
    for _ in range(2):
        assert main(["keys", "new", "-o", "json"]) == 0
        made.append(json.loads(capsys.readouterr().out))
    assert made[0]["key"] != made[1]["key"]
    assert made[0]["hash"] == hash_of(made[0]["key"])


def test_the_page_about_keys_tells_every_entry_and_its_examples_are_right() -> None:
    page = (ROOT / "docs" / "how-to" / "api-keys.md").read_text()
    blocks = re.findall(r"^```toml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert [len(read_keys(block)) for block in blocks] == [1]
    rows = re.findall(r"^\| (`[a-z_`, ]+`) \|", page, re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == set(Policy.__struct_fields__)
    (command,) = re.findall(r"^\$ \.venv/bin/catenary (.*?) >> keys.toml$", page, re.MULTILINE)
    assert main(command.split()) == 0
