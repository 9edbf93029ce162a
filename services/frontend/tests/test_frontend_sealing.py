import stat
from pathlib import Path

import pytest
from catenary_frontend.sealing import Sealer
from hypothesis import given
from hypothesis import strategies as st


@pytest.fixture(scope="module")
def sealer(tmp_path_factory: pytest.TempPathFactory) -> Sealer:
    return Sealer(tmp_path_factory.mktemp("keys") / "sealing.key")


@given(text=st.text())
def test_what_was_sealed_opens(sealer: Sealer, text: str) -> None:
    token = sealer.seal(text)
    assert token.isascii()
    assert sealer.open(token) == text


@given(token=st.text())
def test_a_made_up_token_opens_to_nothing(sealer: Sealer, token: str) -> None:
    assert sealer.open(token) is None


@given(text=st.text(min_size=1), at=st.integers(min_value=0), other=st.sampled_from("Aa0-_"))
def test_a_changed_token_opens_to_nothing(sealer: Sealer, text: str, at: int, other: str) -> None:
    token = sealer.seal(text)
    at %= len(token.rstrip("=")) - 1  # the last character may hold bits that stand for nothing
    changed = token[:at] + other + token[at + 1 :]
    assert sealer.open(changed) in ({text} if changed == token else {None})


def test_frontends_with_one_key_open_each_others_tokens(tmp_path: Path) -> None:
    key = tmp_path / "deep" / "sealing.key"
    one, two = Sealer(key), Sealer(key)
    assert two.open(one.seal("thought")) == "thought"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert [path.name for path in key.parent.iterdir()] == ["sealing.key"]


def test_another_key_opens_nothing(tmp_path: Path) -> None:
    assert Sealer(tmp_path / "b").open(Sealer(tmp_path / "a").seal("thought")) is None


def test_a_file_that_holds_no_key_is_refused(tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(b"short")
    with pytest.raises(ValueError, match="holds 5 bytes"):
        Sealer(tmp_path / "key")
