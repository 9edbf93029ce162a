"""The model a worker serves: its directory, its parsers, its card."""

import time
from dataclasses import dataclass
from pathlib import Path

from catenary_parsers import detect
from catenary_protocols.bus.messages import ModelCard
from catenary_protocols.errors import RequestError
from catenary_runtime.hub import hub_directory, is_hub_id
from catenary_runtime.models import card_hash, hash_files
from catenary_tokenizers import ModelDirectoryError, ModelTokenizer, embedded_path, load, unpack_gguf
from catenary_tokenizers.template import Unrendered

from catenary_worker.engines.base import EngineInfo
from catenary_worker.settings import DETECTED, WorkerSettings

SPEAKS_PLAINLY = ("default", "none")
"""Formats of a model of which nothing tells that it calls tools or thinks."""


@dataclass(frozen=True, slots=True)
class Model:
    """A model directory and the facts about it that change what is generated or read.

    Attributes:
        file: the GGUF file that the directory was made from.
    """

    name: str
    directory: Path
    parser: str
    reasoning: str
    context: int
    file: Path | None = None

    def card(self, engine: EngineInfo) -> ModelCard:
        """What the mesh is told; the hash covers everything in it but names and times."""
        artifacts = hash_files(self.directory)
        context = min(self.context or engine.model_context, engine.model_context)
        digest = card_hash(artifacts, self.parser, self.reasoning, context, engine.block_size)
        return ModelCard(
            model=self.name,
            card=digest,
            context=context,
            block_size=engine.block_size,
            artifacts=artifacts,
            parser=self.parser,
            reasoning=self.reasoning,
            created=int(time.time()),
            images="images" in engine.features,
            logprobs="logprobs" in engine.features,
            guides="guide" in engine.features,
        )


def open_model(settings: WorkerSettings) -> Model:
    """Read the model directory; raises `RequestError` that names the setting that is wrong."""
    path = _path_of(settings)
    file = path if path.suffix == ".gguf" else None
    directory = path if file is None else Path(settings.data_dir, "models", settings.instance or settings.model)
    try:
        if file is not None:
            unpack_gguf(file, directory)
        tokenizer = load(directory, sandbox=Unrendered)
    except ModelDirectoryError as error:
        raise RequestError(f"model_path: {error}", code="invalid_value", field="model_path") from error
    parser, reasoning = _formats(settings, tokenizer)
    return Model(
        name=settings.model,
        directory=directory,
        parser=parser,
        reasoning=reasoning,
        context=settings.context or tokenizer.context_length or 0,
        file=file,
    )


def _path_of(settings: WorkerSettings) -> Path:
    if is_hub_id(settings.model_path):
        return hub_directory(settings.model_path, weights=settings.engine != "sim")
    return Path(settings.model_path) if settings.model_path else embedded_path()


def _formats(settings: WorkerSettings, tokenizer: ModelTokenizer) -> tuple[str, str]:
    """Names of the call format and the style of thinking: as set, else as the template and control tokens tell."""
    parser, reasoning = settings.parser, settings.reasoning
    if not parser:
        parser, detected = detect(tokenizer.chat_template, tokenizer.control_tokens) or SPEAKS_PLAINLY
        reasoning = detected if reasoning == DETECTED else reasoning
    return parser, reasoning
