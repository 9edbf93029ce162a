"""A `tokenizer.json` as data: what its added tokens are, what its ids stand for, how plain text is encoded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from catenary_tokenizers.detokenise import PieceTable
from catenary_tokenizers.ids import pack
from catenary_tokenizers.vocabulary import AddedToken, ControlToken, piece_bytes

__all__ = ["added_tokens", "begin_ids", "control_tokens", "piece_table", "plain_spec"]

Spec = Mapping[str, Any]

_UNREACHABLE = "\uf8ff"


def added_tokens(spec: Spec) -> list[AddedToken]:
    """The added tokens with their flags."""
    return [_added(entry) for entry in spec.get("added_tokens") or ()]


def control_tokens(spec: Spec, added: Sequence[AddedToken]) -> list[AddedToken]:
    """The added tokens that are markers: those that plain text gives anyway, as the word they spell, are none."""
    texts = {token.text for token in added if token.is_control}
    words = {word for merge in spec["model"].get("merges") or () if (word := _merged(merge)) in texts}
    return [token for token in added if token.is_control and token.text not in words]


def plain_spec(spec: Spec, controls: Sequence[AddedToken]) -> dict[str, Any]:
    """The vocabulary as it encodes text between control tokens: they are neither added tokens nor entries.

    Every id stays what it is: Hugging Face numbers added tokens that the vocabulary does not list anew, and `fastokens`
    wants no hole in it, so that kept ones are listed and hidden ones leave a name that no text can reach.
    """
    hidden = {token.text for token in controls}
    kept = [entry for entry in spec.get("added_tokens") or () if entry["content"] not in hidden]
    model = dict(spec["model"])
    vocab = {
        text: index for text, index in model["vocab"].items() if text not in hidden or text == model.get("unk_token")
    }
    vocab |= {entry["content"]: entry["id"] for entry in kept}
    vocab |= {f"{_UNREACHABLE}{token.id}": token.id for token in controls if token.text not in vocab}
    model["vocab"] = vocab
    return {**spec, "model": model, "added_tokens": kept, "post_processor": None, "truncation": None, "padding": None}


def piece_table(spec: Spec, added: Sequence[AddedToken], controls: Sequence[AddedToken]) -> PieceTable:
    """What each id stands for. `ValueError` for a vocabulary whose tokens are not runs of bytes."""
    pieces = piece_bytes(spec["model"]["vocab"], list(_types(spec.get("decoder"))))
    pieces += [b""] * (1 + max((token.id for token in added), default=-1) - len(pieces))
    for token in added:
        pieces[token.id] = token.text.encode()
    return PieceTable(pieces, [ControlToken(token.id, token.text, token.special) for token in controls])


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
        normalized=bool(entry.get("normalized")),
    )


def _types(decoder: Mapping[str, Any] | None) -> Iterator[str]:
    """The types of a decoder and of those inside it."""
    if decoder:
        yield str(decoder["type"])
        for inner in decoder.get("decoders", ()):
            yield from _types(inner)


def _merged(merge: str | Sequence[str]) -> str:
    return merge.replace(" ", "", 1) if isinstance(merge, str) else "".join(merge)
