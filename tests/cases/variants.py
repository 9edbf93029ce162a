"""The same request with other values in some places."""

import copy
import re
from typing import Any


def changed(request: dict[str, Any], variant: dict[str, Any]) -> dict[str, Any]:
    """A copy of the request; keys of `variant` are paths such as `system[0].text`."""
    request = copy.deepcopy(request)
    for path, value in variant.items():
        *way, last = [int(step) if step.isdigit() else step for step in re.findall(r"\w+", path)]
        place: Any = request
        for step in way:
            place = place[step]
        place[last] = value
    return request


def said_by_user(request: dict[str, Any], variant: dict[str, Any]) -> dict[str, Any]:
    """A copy of the request in which the user says what `variant` puts elsewhere."""
    said = " ".join(str(value) for value in variant.values())
    return {**request, "messages": [{"role": "user", "content": said}]}
