"""Runs `detok` and `tokcache` cases on the real detokenizer, stop matcher and segment cache."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from catenary_tokenizer_service.egress.stop import StopMatcher
from catenary_tokenizers import ControlToken, Detokenizer, ModelTokenizer, embedded_path, load, pack
from catenary_tokenizers.detokenise import PieceTable
from tokenizers import Tokenizer

from tests.models import fetch

CACHE_BYTES = 256 * 1024
LONGEST_STEP = 3


def run(case: dict[str, Any]) -> None:
    """Run one case.

    Raises:
        AssertionError: a result is not what the case expects.
    """
    if case["kind"] == "detok":
        for steps in cuts(len(case["pieces"])):
            _detokenise(case, steps)
    else:
        for directory in _directories():
            model = _model(directory)
            model.clear_cache()
            _encode(case, model, _oracle(directory))


def cuts(count: int) -> Iterator[list[int]]:
    """Every way to cut `count` tokens into steps of one to three, as positions."""
    if count == 0:
        yield [0]
        return
    for last in range(max(0, count - LONGEST_STEP), count):
        for before in cuts(last):
            yield [*before, count]


def _detokenise(case: dict[str, Any], steps: list[int]) -> None:
    expect = case["expect"]
    table, prompt, tokens = _vocabulary(case)
    stream = Detokenizer(table, pack(prompt))
    matcher = StopMatcher(tuple(case.get("stop") or ()), include=bool(case.get("include_stop_str")))
    deltas: list[str] = []
    decoded = ""
    for start, end in pairwise(steps):
        plain = "".join(_text(part, case) for part in stream.push(pack(tokens[start:end])))
        decoded += plain
        deltas.append(matcher.push(plain))
        if matcher.matched is not None:
            break
        held = len(decoded) - len("".join(deltas))
        assert held <= case.get("max_held_chars", expect.get("max_held_chars", held)), f"{held} held after {end} tokens"
    if matcher.matched is None:
        deltas += [matcher.push(stream.flush()), matcher.flush()]
    text = "".join(deltas)
    accepted = [expect["text"], *expect.get("also_ok", ())]
    suffix = case.get("expect_suffix", expect.get("expect_suffix"))
    assert text in accepted or (suffix is not None and text.endswith(suffix)), f"{text!r} with steps {steps}"
    assert matcher.matched == expect.get("stop_matched"), f"{matcher.matched!r} matched with steps {steps}"
    for never in expect.get("never_in_any_delta", case.get("never_in_any_delta", ())):
        assert not any(never in delta for delta in deltas), f"{never!r} in {deltas}"


def _vocabulary(case: dict[str, Any]) -> tuple[PieceTable, list[int], list[int]]:
    """A vocabulary that holds exactly the case's tokens: table, prompt ids, generated ids."""
    prompt, pieces = case.get("prompt_pieces") or [], case["pieces"]
    special = {len(prompt) + at for at in case.get("special") or ()}
    runs = [bytes.fromhex(piece) for piece in (*prompt, *pieces)]
    controls = [ControlToken(at, runs[at].decode(), special=True) for at in special]
    return PieceTable(runs, controls), list(range(len(prompt))), list(range(len(prompt), len(runs)))


def _text(part: str | ControlToken, case: dict[str, Any]) -> str:
    if isinstance(part, str):
        return part
    return "" if case.get("skip_special_tokens", True) else part.text


def _encode(case: dict[str, Any], model: ModelTokenizer, oracle: Tokenizer) -> None:
    for op in case["ops"]:
        if "grow" in op:
            _grow(op, model, oracle)
            continue
        begin = bool(op.get("add_special"))
        ids = model.encode(op["encode"], special=True, begin=begin)
        assert ids == pack(oracle.encode(op["encode"], add_special_tokens=begin).ids), op


def _grow(op: dict[str, Any], model: ModelTokenizer, oracle: Tokenizer) -> None:
    """Encode a growing text; where the vocabulary has its markers, a step encodes the new part alone."""
    bounded = any(marker in op["grow"] for marker in model.control_tokens)
    text = ""
    for step in range(op["times"]):
        new = op["grow"].replace("{i}", str(step))
        text += new
        before = model.cache_stats.missed_characters
        ids = model.encode(text, special=True)
        assert ids == pack(oracle.encode(text, add_special_tokens=False).ids), step
        stats = model.cache_stats
        assert not bounded or stats.missed_characters - before <= len(new), (
            f"step {step} encoded more than its own text"
        )
        assert stats.bytes <= CACHE_BYTES, stats


@cache
def _directories() -> tuple[Path, ...]:
    return (embedded_path(), fetch.qwen(), fetch.tekken(), fetch.mistral())


@cache
def _model(directory: Path) -> ModelTokenizer:
    return load(directory, cache_bytes=CACHE_BYTES)


@cache
def _oracle(directory: Path) -> Tokenizer:
    return Tokenizer.from_file(str(directory / "tokenizer.json"))
