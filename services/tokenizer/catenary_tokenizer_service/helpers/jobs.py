"""What a helper process does. A job is a function of values, sent as a pickle; its answer is bytes.

Nothing comes back as a pickle: a template that broke out of its sandbox must not be unpickled by its parent.
"""

from collections.abc import Callable, Mapping
from datetime import datetime
from functools import lru_cache
from pathlib import Path

from catenary_tokenizers import ModelTokenizer, Segment, TemplateLimitError, load
from catenary_tokenizers.chat import MOST_CHARACTERS
from catenary_tokenizers.template import Engine, Jinja2Engine, Unrendered

Job = Callable[[], bytes]
Context = Mapping[str, object]


def warm(directory: Path) -> bytes:
    """Load a model; its first text takes the longest."""
    return _model(directory).encode("warm", special=False)


def encode(directory: Path, segment: Segment) -> bytes:
    """Ids of a segment."""
    return _model(directory).encode_segment(segment)


def open_template(source: str) -> bytes:
    """Compile a template; `ValueError` if it is none."""
    _engine(source)
    return b""


def render(source: str, context: Context, now: datetime | None) -> bytes:
    """The rendered text."""
    text = _engine(source).render(context, now)
    if len(text) > MOST_CHARACTERS:
        raise TemplateLimitError(f"the prompt has {len(text)} characters, {MOST_CHARACTERS} at most")
    return text.encode("utf-8", "surrogatepass")


@lru_cache(maxsize=16)
def _model(directory: Path) -> ModelTokenizer:
    return load(directory, cache_bytes=0, sandbox=Unrendered)


@lru_cache(maxsize=16)
def _engine(source: str) -> Engine:
    return Jinja2Engine(source)
