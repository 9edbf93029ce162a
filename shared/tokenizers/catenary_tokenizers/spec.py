"""A `tokenizer.json` as data: what its added tokens are, what its ids stand for, how plain text is encoded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from catenary_tokenizers.detokenise import PieceTable
from catenary_tokenizers.ids import pack
from catenary_tokenizers.vocabulary import AddedToken, ControlToken, piece_bytes

__all__ = ["added_tokens", "begin_ids", "piece_table", "plain_spec"]

Spec = Mapping[str, Any]

# A name for ids that text must not reach: `fastokens` wants no hole at the start of a vocabulary.
_UNREACHABLE = "\uf8ff"


def added_tokens(spec: Spec) -> list[AddedToken]:
    """The added tokens with their flags."""
    return [_added(entry) for entry in spec.get("added_tokens") or ()]


def plain_spec(spec: Spec, controls: Sequence[AddedToken]) -> dict[str, Any]:
    """The vocabulary as it encodes text between control tokens: they are neither added tokens nor entries."""
    hidden = {token.text: token.id for token in controls}
    model = dict(spec["model"])
    if isinstance(model["vocab"], Mapping):
        vocab = {
            text: index
            for text, index in model["vocab"].items()
            if text not in hidden or text == model.get("unk_token")
        }
        size = len(model["vocab"])
        vocab |= {
            f"{_UNREACHABLE}{index}": index for text, index in hidden.items() if index < size and text not in vocab
        }
        model["vocab"] = vocab
    kept = [entry for entry in spec.get("added_tokens") or () if entry["content"] not in hidden]
    return {**spec, "model": model, "added_tokens": kept, "post_processor": None, "truncation": None, "padding": None}


def piece_table(spec: Spec, added: Sequence[AddedToken]) -> PieceTable:
    """What each id stands for. `ValueError` for a vocabulary whose tokens are not runs of bytes."""
    pieces = piece_bytes(spec["model"]["vocab"], list(_types(spec.get("decoder"))))
    pieces += [b""] * (1 + max((token.id for token in added), default=-1) - len(pieces))
    for token in added:
        if not token.is_control:
            pieces[token.id] = token.text.encode()
    return PieceTable(pieces, [ControlToken(t.id, t.text, t.special) for t in added if t.is_control])


def begin_ids(processor: Mapping[str, Any] | None) -> bytes:
    """Ids that the post-processor puts before a text."""
    if not processor:
        return b""
    if processor["type"] == "Sequence":
        return b"".join(begin_ids(inner) for inner in processor["processors"])
    if processor["type"] != "TemplateProcessing":
        return b""
    ids: list[int] = []
    for part in processor["single"]:
        if "Sequence" in part:
            break
        ids += processor["special_tokens"][part["SpecialToken"]["id"]]["ids"]
    return pack(ids)


def _added(entry: Mapping[str, Any]) -> AddedToken:
    return AddedToken(
        id=int(entry["id"]),
        text=str(entry["content"]),
        special=bool(entry.get("special")),
        lstrip=bool(entry.get("lstrip")),
        rstrip=bool(entry.get("rstrip")),
        single_word=bool(entry.get("single_word")),
    )


def _types(decoder: Mapping[str, Any] | None) -> Iterator[str]:
    """The types of a decoder and of those inside it."""
    if decoder:
        yield str(decoder["type"])
        for inner in decoder.get("decoders", ()):
            yield from _types(inner)
