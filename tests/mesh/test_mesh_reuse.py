"""However a client writes back what the model said, the next turn finds every whole block of it."""

import pytest

from tests.bench.reuse import BLOCK, CLIENTS, OTHER_SPACE, PROMPT, SAID, TURNS, play
from tests.mesh.harness import RunningMesh

LAST_STEP = 2
"""Tokens that a script's last step gives: the end of the call and the end of the message. Nothing has read them."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("client", "said"),
    [("opencode", SAID), ("pydantic-ai, responses", SAID), ("claude-code", SAID), ("anthropic", OTHER_SPACE)],
)
async def test_all_whole_blocks_of_a_prompt_and_its_answer_are_found_again(
    mesh: RunningMesh, client: str, said: str
) -> None:
    turns = await play(mesh, CLIENTS[client], said)
    assert len(turns) == TURNS
    assert turns[0].prompt >= PROMPT
    assert not any(turn.diverged for turn in turns)
    found = [later.cached for later in turns[1:]]
    assert found == [(turn.prompt + turn.output - LAST_STEP) // BLOCK * BLOCK for turn in turns[:-1]]
    assert all(turn.output > 10 * BLOCK for turn in turns)
