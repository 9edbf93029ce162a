"""The package's face: what it exports, and that its README tells the truth."""

import re
from pathlib import Path

import catenary_tokenizers
import pytest

README = Path(__file__).parents[1] / "README.md"


def test_everything_public_is_listed() -> None:
    public = {name for name in dir(catenary_tokenizers) if not name.startswith("_")}
    modules = {path.stem for path in Path(catenary_tokenizers.__file__).parent.glob("*.py")}
    listed = set(catenary_tokenizers.__all__)
    assert listed <= public
    assert public - listed <= modules | {"embedded"}
    assert list(catenary_tokenizers.__all__) == sorted(listed, key=lambda name: (name.islower(), name))


def test_the_readme_runs(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"```(python|text)\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    namespace: dict[str, object] = {}
    for kind, block in blocks:
        if kind == "python":
            exec(block, namespace)  # noqa: S102  the README's own code
        else:
            assert capsys.readouterr().out == block
