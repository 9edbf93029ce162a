"""Stop strings: found however the text is cut, and nothing held back that need not be."""

from catenary_tokenizer_service.egress.stop import StopMatcher
from hypothesis import given
from hypothesis import strategies as st

TEXT = st.text(alphabet="abc", max_size=14)
STOPS = st.lists(st.text(alphabet="abc", min_size=1, max_size=4), max_size=3).map(tuple)


def shown(pieces: list[str], stops: tuple[str, ...], *, include: bool = False) -> tuple[str, str | None]:
    matcher = StopMatcher(stops, include=include)
    text = "".join(map(matcher.push, pieces))
    return text + matcher.flush(), matcher.matched


@given(TEXT, STOPS, st.booleans(), st.data())
def test_cutting_the_text_never_changes_the_result(
    text: str, stops: tuple[str, ...], include: bool, data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=4)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert shown(pieces, stops, include=include) == shown([text], stops, include=include)


@given(TEXT, STOPS)
def test_what_is_shown_ends_before_the_stop_string(text: str, stops: tuple[str, ...]) -> None:
    seen, matched = shown([text], stops)
    assert not any(stop in seen for stop in stops)
    if matched is None:
        assert seen == text
    else:
        assert text.startswith(seen + matched)


@given(TEXT, STOPS)
def test_only_a_possible_start_of_a_stop_string_is_held_back(text: str, stops: tuple[str, ...]) -> None:
    matcher = StopMatcher(stops)
    seen = matcher.push(text)
    if matcher.matched is None:
        held = text[len(seen) :]
        assert held == "" or any(stop.startswith(held) and stop != held for stop in stops)


def test_the_stop_string_complete_first_wins() -> None:
    assert shown(["xabc", "d"], ("abcd", "bc")) == ("xa", "bc")
    assert shown(["xbcd"], ("cd", "bcd")) == ("x", "bcd")
    assert shown(["xbcd"], ("bcd",), include=True) == ("xbcd", "bcd")
    assert shown(["plain"], ("",)) == ("plain", None)
