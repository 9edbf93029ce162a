"""A prompt read with what is known of its session says the same as one that is read from its start."""

from array import array

from catenary_tokenizers import embedded_path, load
from catenary_worker.engines.sim.codec import Codec
from hypothesis import given
from hypothesis import strategies as st

TOKENIZER = load(embedded_path())
CONTROLS = sorted(TOKENIZER.table.controls)
SIZE = len(TOKENIZER.table.pieces)
tokens = st.one_of(st.sampled_from(CONTROLS), st.integers(0, SIZE + 1))
growths = st.lists(st.tuples(st.integers(0, 30), st.lists(tokens, max_size=12)), min_size=1, max_size=6)


@given(growths=growths)
def test_a_session_that_goes_on_or_turns_back_is_read_as_if_it_were_new(growths: list[tuple[int, list[int]]]) -> None:
    known = Codec(TOKENIZER)
    prompt: list[int] = []
    for kept, more in growths:
        prompt = prompt[:kept] + more if kept < 10 else prompt + more
        asked = array("I", prompt)
        assert known.read(asked, "session") == Codec(TOKENIZER).read(asked)
