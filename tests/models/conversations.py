"""Conversations for template tests: every kind of message, in orders that agents send and in odd ones."""

import random
from typing import Any

Message = dict[str, Any]

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather at a place, as of now.",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "e.g. Zürich"},
                    "days": {"type": "integer", "minimum": 1, "default": 1},
                    "units": {"type": "string", "enum": ["metric", "imperial"]},
                },
                "required": ["city"],
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "run",
            "description": "Runs 'a command' & tells <what> it wrote.",
            "parameters": {
                "type": "object",
                "properties": {
                    "argv": {"type": "array", "items": {"type": "string"}, "description": "words"},
                    "options": {"type": "object", "properties": {"cwd": {"type": "string"}}},
                },
                "required": ["argv"],
                "additionalProperties": False,
            },
        },
    },
]
TEXTS = (
    "Hi",
    " spaced \n\n",
    "Wie wird das Wetter in Zürich?",
    "def f():\n\treturn {'a': [1, 2]}\n",
    "漢字 🌊 e\u0301",
    '{"found": [1, 2.50, null]}',
    "a < b && c > d",
)


def user(text: str = "Weather in Zürich?") -> Message:
    return {"role": "user", "content": text}


def system(text: str = "Be brief.") -> Message:
    return {"role": "system", "content": text}


def assistant(text: str = "Sunny.", reasoning: str = "") -> Message:
    message: Message = {"role": "assistant", "content": text}
    return message | ({"reasoning_content": reasoning, "thinking": reasoning} if reasoning else {})


def calls(first: int, *arguments: dict[str, Any], text: str = "", reasoning: str = "") -> Message:
    """An assistant's calls; ids count from `first`, as the library numbers them."""
    listed = [
        {"id": f"{first + n:09d}", "type": "function", "function": {"name": "get_weather", "arguments": given}}
        for n, given in enumerate(arguments)
    ]
    return assistant(text, reasoning) | {"tool_calls": listed}


def result(number: int, text: str = '{"sky": "clear"}') -> Message:
    return {"role": "tool", "content": text, "tool_call_id": f"{number:09d}", "name": "get_weather"}


def fixed() -> list[list[Message]]:
    """One conversation of each kind."""
    city = {"city": "Zürich", "days": 2}
    return [
        [user()],
        [system(), user()],
        [system(), user(), assistant(), user("And tomorrow?")],
        [user(), assistant(reasoning="Look outside."), user("And tomorrow?")],
        [system(), user(), calls(0, city), result(0)],
        [
            user(),
            calls(0, city, text="One moment.", reasoning="I need the weather."),
            result(0),
            assistant(),
            user("Thanks"),
        ],
        [user(), calls(0, city, {"city": "Bern"}), result(0), result(1, "rain"), assistant(reasoning="So.")],
        [
            user(),
            calls(0, city, reasoning="First."),
            result(0),
            calls(1, {"city": "Bern"}, reasoning="Then."),
            result(1),
        ],
        [user(), assistant()],
        [system(), system("Use tools."), user()],
        [system(), user(), assistant(), system("It is late now."), user("And?")],
        [user("One."), user("Two."), assistant(), assistant("More."), user("Three.")],
        [assistant("Welcome."), user()],
        [system()],
        [user(), result(0)],
    ]


def drawn(seed: int) -> list[Message]:
    """A conversation of a random agent: turns with reasoning, calls and results."""
    pick = random.Random(seed)  # noqa: S311  reproducible, not secret
    messages = [system(pick.choice(TEXTS))] if pick.random() < 0.6 else []
    count = 0
    for _ in range(pick.randint(1, 4)):
        messages.append(user(pick.choice(TEXTS)))
        for _ in range(pick.randint(0, 3)):
            given = [{"city": pick.choice(TEXTS), "days": pick.randint(1, 9)} for _ in range(pick.randint(1, 2))]
            messages.append(calls(count, *given, text=pick.choice(["", *TEXTS]), reasoning=pick.choice(["", *TEXTS])))
            messages += [result(count + n, pick.choice(TEXTS)) for n in range(len(given))]
            count += len(given)
        if pick.random() < 0.7:
            messages.append(assistant(pick.choice(TEXTS), pick.choice(["", *TEXTS])))
    return messages
