"""The segment cache: bounded, and never another answer than encoding would give."""

import pickle

from catenary_tokenizers import embedded_path, load
from catenary_tokenizers.segments import SegmentCache
from hypothesis import given
from hypothesis import strategies as st

here, elsewhere = load(embedded_path()), load(embedded_path())


def encode(text: str) -> bytes:
    return text.encode() * 4


@given(st.lists(st.text(max_size=40), max_size=200), st.integers(0, 6000))
def test_answers_are_those_of_encoding_and_the_bound_holds(texts: list[str], bound: int) -> None:
    cache = SegmentCache(bound)
    for text in texts:
        assert cache.get(text, encode) == encode(text)
        assert cache.stats.bytes <= bound
    assert cache.get_all(texts, encode) == [encode(text) for text in texts]
    stats = cache.stats
    assert stats.hits + stats.misses == 2 * len(texts)


def test_what_is_asked_for_stays_and_the_rest_goes() -> None:
    cache = SegmentCache(8000)
    cache.get("kept", encode)
    for number in range(200):
        cache.get(f"passing {number}", encode)
        cache.get("kept", encode)
    before = cache.stats
    cache.get("kept", encode)
    cache.get("passing 0", encode)
    after = cache.stats
    assert (after.hits - before.hits, after.misses - before.misses) == (1, 1)


def test_a_text_larger_than_the_cache_is_encoded_and_not_kept() -> None:
    cache = SegmentCache(1000)
    assert cache.get("x" * 5000, encode) == encode("x" * 5000)
    assert cache.stats.entries == 0
    assert cache.stats.missed_characters == 5000


def test_clearing_forgets_segments_and_counts() -> None:
    cache = SegmentCache(1000)
    cache.get("a", encode)
    cache.clear()
    assert cache.stats == SegmentCache(1000).stats


@given(
    st.lists(st.sampled_from(["<|im_start|>", "naïve ", "x" * 9, "\ue000", "🌊\n", "{"]), max_size=12), st.booleans()
)
def test_a_segment_encoded_elsewhere_is_what_would_be_encoded_here(words: list[str], shielded: bool) -> None:
    content = "".join(words)
    messages = [{"role": "user", "content": content}]
    prompt = here.render(messages) if shielded else here.spelled(content)
    here.clear_cache()
    cold = here.cold_segments(prompt, 4)
    for segment in cold:
        here.keep_segment(segment, elsewhere.encode_segment(pickle.loads(pickle.dumps(segment))))  # noqa: S301
    assert not here.cold_segments(prompt, 4)
    misses = here.cache_stats.misses
    ids = here.encode_prompt(prompt)
    assert here.cache_stats.misses - misses <= len(prompt.parts) - len(cold)
    elsewhere.clear_cache()
    assert ids == elsewhere.encode_prompt(prompt)
