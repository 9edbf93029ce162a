"""TensorRT-LLM's events, in the form of its API, played into the index, whole and with some of them lost.

What the engine holds is worked out in the plainest way from all events; what the index claims comes from those that
were not lost. It may claim less, never more.
"""

import json
from array import array
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from catenary_tokenizers import block_hashes

from tests.mesh.kv_path import KvPath

SIZE, RANKS = 4, 2
FOLDER = Path(__file__).with_name("trtllm_events")
FILES = sorted(file for file in FOLDER.glob("*.jsonl") if "gap" not in file.stem)
Json = dict[str, Any]
Ids = tuple[int, ...]


def recorded(file: Path) -> list[Json]:
    return [json.loads(line) for line in file.read_text().splitlines()]


@dataclass
class Truth:
    """All blocks of the widest attention window that was told of, by rank and name, with the names of the blocks before them."""

    held: dict[tuple[int, int | str], tuple[int | str | None, Json]] = field(default_factory=dict)

    def apply(self, event: Json, window: int) -> None:
        rank, data = event.get("attention_dp_rank", 0), event["data"]
        if event["window_size"] != window:
            return
        match data["type"]:
            case "created":
                self.held = {key: block for key, block in self.held.items() if key[0] != rank}
            case "stored":
                parent = data["parent_hash"]
                for block in data["blocks"]:
                    name = block["block_hash"]
                    self.held[rank, name] = parent, block
                    parent = name
            case "removed":
                for name in data["block_hashes"]:
                    del self.held[rank, name]

    def shared(self) -> set[Ids]:
        """Prompts of full blocks of text that are held for everybody; a sliding window may lose how they begin."""
        return {ids for rank, name in self.held if (ids := self._prompt(rank, name)) is not None}

    def _prompt(self, rank: int, name: int | str | None) -> Ids | None:
        if name is None:
            return ()
        if (rank, name) not in self.held:
            return None
        parent, block = self.held[rank, name]
        tokens = [token["token_id"] for token in block["tokens"]]
        mine = len(tokens) == SIZE and not block.get("cache_salt") and not block.get("mm_keys")
        before = self._prompt(rank, parent)
        return (
            (*before, *tokens) if before is not None and mine and all(isinstance(one, int) for one in tokens) else None
        )


def played(events: list[Json], lost: range) -> tuple[KvPath, Truth]:
    path, truth = KvPath(SIZE, RANKS), Truth()
    window = max(event["window_size"] for at, event in enumerate(events) if at not in lost)
    for at, event in enumerate(events):
        truth.apply(event, window)
        if at not in lost:
            path.feed([event])
    return path, truth


def shows(events: list[Json], lost: range) -> bool:
    """Whether what comes after the lost events has a number that says so."""
    expected: dict[int, int] = {}
    for at, event in enumerate(events):
        rank = event.get("attention_dp_rank", 0)
        if at >= lost.stop and event["event_id"] != expected.get(rank, 0):
            return True
        if at not in lost:
            expected[rank] = event["event_id"] + 1
    return False


def names(prompts: set[Ids]) -> set[int]:
    """Sequence hashes of the last block of each."""
    return {array("Q", block_hashes(array("I", ids).tobytes(), SIZE))[-1] for ids in prompts}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_of_a_whole_recording_the_index_knows_everything_at_every_moment(file: Path) -> None:
    events = recorded(file)
    for end in range(1, len(events) + 1):
        path, truth = played(events[:end], range(0))
        assert path.held == names(truth.shared())
        for ids in truth.shared():
            assert path.claimed([*ids, *range(SIZE)]) == len(ids) // SIZE


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_whatever_run_of_events_is_lost_the_index_is_never_wrong_only_smaller(file: Path) -> None:
    events = recorded(file)
    smaller = 0
    for lost in (range(first, last) for last in range(1, len(events)) for first in range(last)):
        for end in range(lost.stop + 1, len(events) + 1):
            if shows(events[:end], lost):
                path, truth = played(events[:end], lost)
                assert path.held <= names(truth.shared())
                smaller += path.held < names(truth.shared())
    assert smaller


def test_after_a_gap_what_can_be_proved_comes_back() -> None:
    fetched, dropped = recorded(FOLDER / "1.2-gap.jsonl"), recorded(FOLDER / "1.2-gap.lost.jsonl")
    events = sorted([*fetched, *dropped], key=lambda event: int(event["event_id"]))
    path, truth = played(events, range(events.index(dropped[0]), events.index(dropped[-1]) + 1))
    proved = [1, 319, 5203, 88, 412, 7, 9021, 15, 601, 602, 603, 604, 701, 702, 703, 704]
    assert path.held == names({tuple(proved[: SIZE * n]) for n in range(1, 5)})
    assert path.held < names(truth.shared())
