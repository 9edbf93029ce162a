from __future__ import annotations

import re
from pathlib import Path

from catenary_parsers import FORMATS
from catenary_parsers.docs import pages

_MEMBER = Path(__file__).parents[1]
_PAGES = _MEMBER.parents[1] / "docs" / "reference" / "parsers"


def test_committed_pages_are_the_generated_ones() -> None:
    """Mended by `python -m catenary_parsers.docs docs/reference/parsers`."""
    assert {path.name: path.read_text() for path in _PAGES.glob("*.md")} == pages()


def test_every_page_names_models_and_shows_an_example() -> None:
    made = pages()
    for name, fmt in FORMATS.items():
        assert fmt.models[0] in made[f"{name}.md"]
        assert "lookup_tide" in made[f"{name}.md"].split("## Example")[1]


def test_the_example_of_the_readme_runs() -> None:
    (example,) = re.findall(r"```python\n(.*?)```", (_MEMBER / "README.md").read_text(), re.DOTALL)
    assert len(example.strip().splitlines()) <= 12
    exec(compile(example, "README.md", "exec"), {})  # noqa: S102 - it is our own page
