"""The model a worker serves: its formats as told or detected, and a card that is named by all that changes tokens."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from catenary_protocols.errors import RequestError
from catenary_tokenizers import embedded_path
from catenary_worker.engines.base import EngineInfo
from catenary_worker.engines.llamacpp.testing import write_tiny_gguf
from catenary_worker.model import open_model
from catenary_worker.settings import WorkerSettings

INFO = EngineInfo(
    model_context=4096,
    block_size=16,
    total_blocks=256,
    max_batch=8,
    max_batched_tokens=512,
    features=frozenset(),
    events="exact",
)
PLAIN = "{% for message in messages %}{{ message.content }}{% endfor %}"
KIMI = "<|tool_calls_section_begin|><|tool_call_begin|><|tool_call_argument_begin|><|tool_call_end|>"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A model directory of the test's own."""
    path = tmp_path / "model"
    shutil.copytree(embedded_path(), path)
    return path


def settings(directory: Path, **more: object) -> WorkerSettings:
    return replace(WorkerSettings(), model_path=str(directory), **more)  # type: ignore[arg-type]  # a table of fields


def bare(directory: Path, template: str) -> None:
    """A vocabulary without markers, and this template."""
    vocabulary = directory / "tokenizer.json"
    text = vocabulary.read_text(encoding="utf-8")
    for marker in ("tool_call", "tool_response", "think"):
        text = text.replace(f"<{marker}>", f"<unused_{marker}>").replace(f"</{marker}>", f"</unused_{marker}>")
    vocabulary.write_text(text, encoding="utf-8")
    (directory / "chat_template.jinja").write_text(template, encoding="utf-8")


def test_without_a_path_the_embedded_model_is_served() -> None:
    model = open_model(WorkerSettings())
    assert (model.name, model.directory, model.context) == ("catenary-sim", embedded_path(), 131_072)
    assert (model.parser, model.reasoning) == ("hermes", "basic")


@pytest.mark.parametrize(("template", "formats"), [(PLAIN, ("default", "none")), (PLAIN + KIMI, ("kimi_k2", "none"))])
def test_formats_are_read_from_the_template(directory: Path, template: str, formats: tuple[str, str]) -> None:
    bare(directory, template)
    model = open_model(settings(directory))
    assert (model.parser, model.reasoning) == formats


@pytest.mark.parametrize(
    ("said", "formats"),
    [
        ({"parser": "qwen3_coder"}, ("qwen3_coder", "auto")),
        ({"reasoning": "none"}, ("hermes", "none")),
        ({"parser": "kimi_k2", "reasoning": "basic"}, ("kimi_k2", "basic")),
    ],
)
def test_what_is_said_goes_before_what_is_read(
    directory: Path, said: dict[str, object], formats: tuple[str, str]
) -> None:
    model = open_model(settings(directory, **said))
    assert (model.parser, model.reasoning) == formats


def test_a_gguf_file_is_a_model(tmp_path: Path) -> None:
    file = write_tiny_gguf(tmp_path / "tiny.gguf")
    model = open_model(settings(file, instance="worker-1", data_dir=str(tmp_path / "data")))
    assert (model.file, model.directory) == (file, tmp_path / "data/models/worker-1")
    assert (model.parser, model.reasoning, model.context) == ("hermes", "basic", 4096)
    assert set(model.card(INFO).artifacts) == {"tokenizer.json", "tokenizer_config.json", "config.json"}


def test_a_gguf_file_that_is_none_is_an_error_of_the_path(tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    file.write_bytes(b"nothing")
    with pytest.raises(RequestError, match="not a GGUF file") as caught:
        open_model(settings(file, data_dir=str(tmp_path)))
    assert caught.value.field == "model_path"


def test_the_card_tells_what_can_really_be_served(directory: Path) -> None:
    card = open_model(settings(directory, model="org/m")).card(INFO)
    assert (card.model, card.context, card.block_size, card.images) == ("org/m", 4096, 16, False)
    assert set(card.artifacts) == {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "config.json"}
    assert open_model(settings(directory, context=1000)).card(INFO).context == 1000


def test_a_card_is_named_by_all_that_changes_tokens_and_by_nothing_else(directory: Path) -> None:
    base = open_model(settings(directory)).card(INFO)
    assert open_model(settings(directory, model="other")).card(replace(INFO, total_blocks=512)).card == base.card
    others = [
        open_model(settings(directory, parser="qwen3_coder")).card(INFO),
        open_model(settings(directory, reasoning="none")).card(INFO),
        open_model(settings(directory, context=1000)).card(INFO),
        open_model(settings(directory)).card(replace(INFO, block_size=32)),
    ]
    (directory / "chat_template.jinja").write_text(PLAIN, encoding="utf-8")
    others.append(open_model(settings(directory)).card(INFO))
    names = {base.card, *(card.card for card in others)}
    assert len(names) == len(others) + 1
