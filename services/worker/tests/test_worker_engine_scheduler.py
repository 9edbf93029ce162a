"""Who is taken in when blocks are scarce, and who gives them back."""

from array import array

from catenary_worker.engines.base import EngineTurn, Step
from catenary_worker.engines.paged import Batch, Executed, Limits, PagedCore, Sequence


class Ones:
    """Every id is 8."""

    def begin(self, sequence: Sequence) -> None:
        pass

    def run(self, batch: Batch) -> Executed:
        return Executed(0.01, [(8,) for _ in batch.sampling])

    def end(self, sequence: Sequence) -> None:
        pass


def core_of(limits: Limits, *turns: EngineTurn) -> PagedCore:
    core = PagedCore(limits, Ones(), eos=frozenset({7}))
    for turn in turns:
        core.submit(turn, 0.0)
    return core


def turn(name: str, length: int, *, max_tokens: int, priority: int = 0) -> EngineTurn:
    prompt = array("I", [ord(name[0]) * 100 + at for at in range(length)])
    return EngineTurn(name, prompt, max_tokens=max_tokens, priority=priority)


def steps_of(core: PagedCore) -> list[Step]:
    """Until the last turn has ended."""
    steps: list[Step] = []
    while core.live:
        assert len(steps) < 1000
        steps.append(core.step(0.01 * len(steps))[0])
    return steps


def ended(steps: list[Step]) -> list[str]:
    return [delta.turn_id for step in steps for delta in step.deltas if delta.finish]


def test_there_is_a_most_that_run_together() -> None:
    core = core_of(Limits(max_batch=2), *(turn(name, 8, max_tokens=4) for name in "abc"))
    assert max(step.load.running for step in steps_of(core)) == 2


def test_admission_leaves_the_watermark_free_while_others_run() -> None:
    limits = Limits(blocks=20, block_size=4, watermark=0.25)
    core = core_of(limits, turn("a", 36, max_tokens=3), turn("b", 26, max_tokens=3))
    step, _ = core.step(0.0)
    assert (step.load.running, step.load.waiting) == (1, 1), "11 blocks are free, and 7 of them would leave 4"
    assert ended(steps_of(core)) == ["a", "b"]


def test_a_turn_alone_may_go_below_the_watermark() -> None:
    core = core_of(Limits(blocks=20, block_size=4, watermark=0.25), turn("a", 70, max_tokens=3))
    step, _ = core.step(0.0)
    assert step.load.running == 1
    assert ended(steps_of(core)) == ["a"]


def test_without_blocks_the_one_of_lowest_priority_gives_its_own_back_whenever_it_came() -> None:
    limits = Limits(blocks=8, block_size=4, watermark=0.0)
    for order in (("low", "high"), ("high", "low")):
        priorities = {"low": 0, "high": 1}
        core = core_of(limits)
        for at, name in enumerate(order):
            core.submit(turn(name, 12, max_tokens=12, priority=priorities[name]), 0.0)
            if not at:
                core.step(0.0)
        assert ended(steps_of(core)) == ["high", "low"]
