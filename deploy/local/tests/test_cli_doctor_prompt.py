"""`catenary doctor prompt`: where and why a request's prompt leaves the one before, for the bodies of every API."""

import json
from pathlib import Path
from typing import Any

import pytest
from catenary_cli.__main__ import main

TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}]
SYSTEM, ASK, ANSWER = "Be brief. " * 40, "Weather in Zürich?", "It is sunny."


def chat(system: str = SYSTEM, ask: str = ASK, *more: dict[str, Any], **fields: Any) -> dict[str, Any]:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": ask}, *more]
    return {"model": "m", "messages": messages, "tools": TOOLS, **fields}


def messages(system: str = SYSTEM, ask: str = ASK, *more: dict[str, Any]) -> dict[str, Any]:
    tools = [{"name": "get_weather", "input_schema": {"type": "object"}}]
    asked = [{"role": "user", "content": ask}, *more]
    return {"model": "m", "max_tokens": 9, "system": system, "messages": asked, "tools": tools}


def responses(system: str = SYSTEM, ask: str = ASK, *more: dict[str, Any]) -> dict[str, Any]:
    tools = [{"type": "function", "name": "get_weather", "parameters": {"type": "object"}}]
    return {"model": "m", "instructions": system, "input": [{"role": "user", "content": ask}, *more], "tools": tools}


def told(
    capsys: pytest.CaptureFixture[str], folder: Path, first: dict[str, Any], second: dict[str, Any]
) -> tuple[int, dict[str, Any]]:
    for name, body in (("a", first), ("b", second)):
        (folder / f"{name}.json").write_text(json.dumps(body))
    code = main(["doctor", "prompt", str(folder / "a.json"), str(folder / "b.json"), "-o", "json"])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return code, found


@pytest.mark.parametrize("body", [chat, messages, responses])
def test_a_next_turn_goes_on_and_another_text_is_named(
    body: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    more = ({"role": "assistant", "content": ANSWER}, {"role": "user", "content": "And tomorrow?"})
    code, found = told(capsys, tmp_path, body(), body(SYSTEM, ASK, *more))
    assert (code, found["extends"], found["tokens"][1] > found["tokens"][0]) == (0, True, True)
    code, found = told(capsys, tmp_path, body(), body("Now. " + SYSTEM, ASK, *more))
    assert (code, found["divergence"]["cause"], found["divergence"]["message"]) == (1, "system", 0)
    assert found["divergence"]["blocks_lost"] == found["blocks"] - found["divergence"]["token"] // 16
    code, found = told(capsys, tmp_path, body(), body(SYSTEM, "Weather in Bergen?", *more))
    assert (code, found["divergence"]["message"], found["divergence"]["role"]) == (1, 1, "user")
    assert "Bergen" in found["second"]


def test_one_conversation_has_one_prompt_whatever_the_api(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for other in (messages(), responses()):
        code, found = told(capsys, tmp_path, chat(), other)
        assert (code, found["tokens"][0]) == (0, found["tokens"][1])


def test_it_is_said_in_words(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    told(capsys, tmp_path, chat(), chat(tools=[]))
    assert main(["doctor", "prompt", str(tmp_path / "a.json"), str(tmp_path / "b.json")]) == 1
    said = capsys.readouterr().out
    assert "the tools are others" in said
    assert "blocks lost" in said
    assert main(["doctor", "prompt", str(tmp_path / "a.json"), str(tmp_path / "a.json")]) == 0
    assert "it goes on" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "said"), [("{", "not JSON"), ("[]", "not a JSON object"), ('{"messages": 1}', "array")]
)
def test_what_is_no_request_is_named(text: str, said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    assert main(["doctor", "prompt", str(path), str(path)]) == 2
    error = capsys.readouterr().err
    assert str(path) in error
    assert said in error
    assert main(["doctor", "prompt", str(tmp_path / "none.json"), str(path)]) == 2
    assert main(["doctor", "prompt", str(path), str(path), "--model", str(tmp_path / "none")]) == 2
