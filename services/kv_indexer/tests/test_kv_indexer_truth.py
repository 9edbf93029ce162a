"""The index against a naive truth: whatever is lost, doubled, reordered or restarted, what it claims to know is so."""

import struct
from dataclasses import dataclass, field

from catenary_kv_indexer.core.indexer import Indexer, Question
from catenary_protocols.bus.messages import (
    KvCleared,
    KvEvent,
    KvEvents,
    KvRemoved,
    KvReplay,
    KvStored,
    OverlapQuery,
    SnapshotPage,
    SnapshotQuery,
    WorkerLoad,
)
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

NAMES = ("w0", "w1")
RING = 2
PAGE = 2
Path = tuple[int, ...]


def hash_of(path: Path) -> int:
    return int.from_bytes(struct.pack("<8B", *path, *(255,) * (8 - len(path))), "little")


def packed(*paths: Path) -> bytes:
    return struct.pack(f"<{len(paths)}Q", *map(hash_of, paths))


@dataclass
class Truth:
    """A worker that never errs: what it held after each of its events."""

    name: str
    incarnation: int = 1
    held: frozenset[Path] = frozenset()
    log: list[KvEvent] = field(default_factory=list)
    history: list[frozenset[Path]] = field(default_factory=lambda: [frozenset()])
    pictures: dict[int, list[tuple[KvStored, ...]]] = field(default_factory=dict)

    @property
    def last(self) -> int:
        return len(self.log)

    def did(self, event: KvEvent, held: frozenset[Path]) -> KvEvents:
        self.log.append(event)
        self.held = held
        self.history.append(held)
        return self.message(self.last, (event,))

    def message(self, first: int, events: tuple[KvEvent, ...]) -> KvEvents:
        return KvEvents(
            worker=self.name, incarnation=self.incarnation, model="m", block_size=4, first=first, events=events
        )

    def beat(self, *, digest: bool = True) -> WorkerLoad:
        folded = 0
        for path in self.held:
            folded ^= hash_of(path)
        return WorkerLoad(
            worker=self.name,
            incarnation=self.incarnation,
            model="m",
            card="c",
            block_size=4,
            kv_last=(self.last,),
            kv_digest=(folded,) if digest else (),
        )

    def answer(self, query: KvReplay | SnapshotQuery) -> KvEvents | SnapshotPage:
        if isinstance(query, KvReplay):
            if max(1, self.last - RING + 1) <= query.first <= self.last:
                return self.message(query.first, tuple(self.log[query.first - 1 :][:2]))
            query = SnapshotQuery(rank=0)
        as_of, page = query.as_of, query.page
        if page == 0 or page >= len(self.pictures.get(as_of, ())):
            as_of, page = self.last, 0
            chains = [
                KvStored(hashes=packed(path), parent=hash_of(path[:-1]) if path[1:] else None)
                for path in sorted(self.held, key=lambda one: (len(one), one))
            ]
            cut = [tuple(chains[at : at + PAGE]) for at in range(0, len(chains), PAGE)]
            self.pictures[as_of] = cut or [()]
        pages = self.pictures[as_of]
        return SnapshotPage(
            worker=self.name,
            incarnation=self.incarnation,
            model="m",
            block_size=4,
            as_of=as_of,
            page=page,
            events=pages[page],
            last=page == len(pages) - 1,
        )


workers = st.sampled_from(NAMES)
paths = st.lists(st.integers(0, 1), min_size=1, max_size=3).map(tuple)
verbs = st.sampled_from(["store", "store", "store", "remove", "remove", "clear"])
fates = st.sampled_from(["now", "now", "now", "now", "twice", "later", "lost"])


class IndexAgainstTruth(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.indexer = Indexer()
        self.truths = {name: Truth(name) for name in NAMES}
        self.wire: list[KvEvents | WorkerLoad] = []
        self.questions: list[Question] = []
        self.delivered: dict[tuple[str, int], int] = {}

    # --- workers live -------------------------------------------------------------------------------------------

    def send(self, message: KvEvents | WorkerLoad, fate: str) -> None:
        if fate in {"now", "twice"}:
            self.hear(message)
        if fate in {"later", "twice"}:
            self.wire.append(message)

    @rule(name=workers, acts=st.lists(st.tuples(verbs, paths, fates), min_size=1, max_size=8))
    def live(self, name: str, acts: list[tuple[str, Path, str]]) -> None:
        truth = self.truths[name]
        for verb, path, fate in acts:
            if verb == "clear":
                self.send(truth.did(KvCleared(), frozenset()), fate)
            elif verb == "store":
                self.store(truth, path, fate)
            elif path in truth.held:
                leaf = max((one for one in truth.held if one[: len(path)] == path), key=len)
                self.send(truth.did(KvRemoved(hashes=packed(leaf)), truth.held - {leaf}), fate)

    def store(self, truth: Truth, path: Path, fate: str) -> None:
        have = max((end for end in range(len(path) + 1) if end == 0 or path[:end] in truth.held), default=0)
        fresh = [path[:end] for end in range(have + 1, len(path) + 1)]
        event = KvStored(hashes=packed(*fresh), parent=hash_of(path[:have]) if have else None)
        self.send(truth.did(event, truth.held | set(fresh)), fate)

    @rule(name=workers, fate=fates)
    def beat(self, name: str, fate: str) -> None:
        self.send(self.truths[name].beat(), fate)

    # --- the wire -----------------------------------------------------------------------------------------------

    def hear(self, message: KvEvents | WorkerLoad) -> None:
        if isinstance(message, KvEvents):
            self.indexer.events(message)
            worker = self.indexer.workers.get(message.worker)
            if worker is not None and worker.incarnation == message.incarnation:
                key = (message.worker, message.incarnation)
                self.delivered[key] = max(self.delivered.get(key, 0), message.first)
        else:
            self.indexer.load(message, self.now)
        self.questions += self.indexer.questions(self.now)

    @precondition(lambda self: self.wire)
    @rule(choice=st.integers(0, 9))
    def deliver(self, choice: int) -> None:
        self.hear(self.wire.pop(choice % len(self.wire)))

    @precondition(lambda self: self.questions)
    @rule(choice=st.integers(0, 9))
    def answer(self, choice: int) -> None:
        question = self.questions.pop(choice % len(self.questions))
        truth = self.truths[question.worker]
        self.indexer.answered(question, truth.answer(question.query), self.now)
        self.questions += self.indexer.questions(self.now)

    @rule(name=workers)
    def settle(self, name: str) -> None:
        self.hear(self.truths[name].beat())
        while self.questions:
            self.answer(0)

    @precondition(lambda self: self.questions)
    @rule(said=st.booleans())
    def lose_answer(self, said: bool) -> None:
        question = self.questions.pop()
        if said:
            self.indexer.answered(question, None, self.now)

    @rule(seconds=st.sampled_from([0.1, 0.5, 3.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.questions += self.indexer.questions(self.now)

    @rule(name=workers, what=st.sampled_from(["restart", "renew", "bury", "dump", "tidy"]))
    def upheaval(self, name: str, what: str) -> None:
        worker = self.indexer.workers.get(name)
        if what == "restart":
            self.truths[name] = Truth(name, self.truths[name].incarnation + 1)
        elif what == "renew":  # it was cut off, and kept its cache
            self.truths[name].incarnation += 1
        elif what == "bury" and worker is not None:
            self.indexer.gone(name, worker.incarnation)
            self.delivered.clear()
        elif what == "dump":
            fresh = Indexer(self.now)
            fresh.restore(self.indexer.dump())
            self.indexer = fresh
            self.questions.clear()
            self.delivered.clear()
        elif what == "tidy":
            self.indexer.tidy(700)

    # --- laws ---------------------------------------------------------------------------------------------------

    @invariant()
    def what_is_known_is_so(self) -> None:
        everything = {path for truth in self.truths.values() for held in truth.history for path in held}
        asked = {path: self.ask(path) for path in everything}
        known = next(iter(asked.values()))[1] if asked else set()
        for name, worker in self.indexer.workers.items():
            truth = self.truths[name]
            if name not in known or worker.incarnation != truth.incarnation:
                continue
            applied = worker.links[0].next - 1
            assert applied >= self.delivered.get((name, worker.incarnation), 0)
            held = truth.history[applied]
            for path, (found, _) in asked.items():
                have = max((end for end in range(1, len(path) + 1) if path[:end] in held), default=0)
                assert found.get(name, 0) == have

    def ask(self, path: Path) -> tuple[dict[str, int], set[str]]:
        hashes = packed(*(path[:end] for end in range(1, len(path) + 1)))
        overlap = self.indexer.overlap(OverlapQuery(model="m", block_size=4, hashes=hashes))
        return {one.worker: one.blocks for one in overlap.workers}, set(overlap.known)

    def teardown(self) -> None:
        """When nothing is lost any more, everything becomes known, and is the present truth."""
        self.wire.clear()
        for _ in range(60):
            self.now += 6.0
            for truth in self.truths.values():
                self.indexer.load(truth.beat(), self.now)
            self.questions += self.indexer.questions(self.now)
            while self.questions:
                question = self.questions.pop(0)
                self.indexer.answered(question, self.truths[question.worker].answer(question.query), self.now)
                self.questions += self.indexer.questions(self.now)
        self.delivered.clear()
        for name, truth in self.truths.items():
            worker = self.indexer.workers[name]
            assert worker.known, name
            assert worker.links[0].next == truth.last + 1
        self.what_is_known_is_so()
        for index in self.indexer.indexes.values():
            for _ in range(3000):
                index.tidy()
            assert len(index) == len({path for truth in self.truths.values() for path in truth.held})


IndexAgainstTruth.TestCase.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
test_index_against_truth = IndexAgainstTruth.TestCase
