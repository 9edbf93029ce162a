"""Tool loops as the users of SDKs write them: ask, run what is called, tell what it printed, until there is an answer.

`python -m tests.conformance.loops KIT API MODE URL MODEL PROMPT` prints the answer. MODE is `stream`, `whole`, or either
with `-stored` behind it: the server keeps the conversation.
"""

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]

SYSTEM = "You are a helpful agent."
SCHEMA: Json = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
ABOUT = "Run a shell command."
TURNS = 4
KEY = "none"


@dataclass(frozen=True)
class Task:
    """What is asked of whom."""

    api: str
    stream: bool
    stored: bool
    url: str
    model: str
    prompt: str


def shell(command: str) -> str:
    return subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False).stdout


def openai_chat(task: Task) -> str:
    import openai

    client = openai.OpenAI(base_url=f"{task.url}/v1", api_key=KEY)
    messages: list[Any] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": task.prompt}]
    tool: Any = {"type": "function", "function": {"name": "bash", "description": ABOUT, "parameters": SCHEMA}}
    for _ in range(TURNS):
        asked: Json = {"model": task.model, "messages": messages, "tools": [tool]}
        if task.stream:
            with client.chat.completions.stream(**asked) as stream:
                message: Any = stream.get_final_completion().choices[0].message
        else:
            message = client.chat.completions.create(**asked).choices[0].message
        if not message.tool_calls:
            return str(message.content)
        messages.append(message.model_dump(exclude_none=True, exclude={"parsed"}))
        for call in message.tool_calls:
            said = shell(json.loads(call.function.arguments)["command"])
            messages.append({"role": "tool", "tool_call_id": call.id, "content": said})
    raise SystemExit("there was no answer")


def openai_responses(task: Task) -> str:
    import openai

    client = openai.OpenAI(base_url=f"{task.url}/v1", api_key=KEY)
    tool: Any = {"type": "function", "name": "bash", "description": ABOUT, "parameters": SCHEMA, "strict": False}
    items: list[Any] = [{"role": "user", "content": task.prompt}]
    asked: Json = {"model": task.model, "tools": [tool], "instructions": SYSTEM, "store": task.stored}
    for _ in range(TURNS):
        if task.stream:
            with client.responses.stream(**asked, input=items) as stream:
                response: Any = stream.get_final_response()
        else:
            response = client.responses.create(**asked, input=items)
        calls = [item for item in response.output if item.type == "function_call"]
        if not calls:
            return str(response.output_text)
        told = [
            {
                "type": "function_call_output",
                "call_id": call.call_id,
                "output": shell(json.loads(call.arguments)["command"]),
            }
            for call in calls
        ]
        if task.stored:
            asked["previous_response_id"] = response.id
            items = told
        else:
            echo = [item.model_dump(exclude_none=True, exclude={"parsed_arguments"}) for item in response.output]
            items = [*items, *echo, *told]
    raise SystemExit("there was no answer")


def anthropic_messages(task: Task) -> str:
    import anthropic

    client = anthropic.Anthropic(base_url=task.url, api_key=KEY)
    tool: Any = {"name": "bash", "description": ABOUT, "input_schema": SCHEMA}
    messages: list[Any] = [{"role": "user", "content": task.prompt}]
    asked: Json = {
        "model": task.model,
        "max_tokens": 4096,
        "tools": [tool],
        "thinking": {"type": "enabled", "budget_tokens": 2048},
        "system": [{"type": "text", "text": SYSTEM, "cache_control": {"type": "ephemeral"}}],
    }
    for _ in range(TURNS):
        if task.stream:
            with client.messages.stream(**asked, messages=messages) as stream:
                message: Any = stream.get_final_message()
        else:
            message = client.messages.create(**asked, messages=messages)
        if message.stop_reason != "tool_use":
            return "".join(block.text for block in message.content if block.type == "text")
        told = [
            {"type": "tool_result", "tool_use_id": block.id, "content": shell(block.input["command"])}
            for block in message.content
            if block.type == "tool_use"
        ]
        messages += [{"role": "assistant", "content": message.content}, {"role": "user", "content": told}]
    raise SystemExit("there was no answer")


def openai_agents(task: Task) -> str:
    import agents
    import openai

    agents.set_tracing_disabled(True)
    client = openai.AsyncOpenAI(base_url=f"{task.url}/v1", api_key=KEY)
    kind: Any = agents.OpenAIChatCompletionsModel if task.api == "chat" else agents.OpenAIResponsesModel
    tool = agents.function_tool(shell, name_override="bash", description_override=ABOUT)
    agent = agents.Agent("agent", instructions=SYSTEM, tools=[tool], model=kind(task.model, openai_client=client))

    async def run() -> str:
        if not task.stream:
            return str((await agents.Runner.run(agent, task.prompt)).final_output)
        running = agents.Runner.run_streamed(agent, task.prompt)
        async for _ in running.stream_events():
            pass
        return str(running.final_output)

    return asyncio.run(run())


def pydantic_ai(task: Task) -> str:
    from pydantic_ai import Agent
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.anthropic import AnthropicProvider
    from pydantic_ai.providers.openai import OpenAIProvider

    openai = OpenAIProvider(api_key=KEY, base_url=f"{task.url}/v1")
    model: OpenAIChatModel | OpenAIResponsesModel | AnthropicModel
    if task.api == "chat":
        model = OpenAIChatModel(task.model, provider=openai)
    elif task.api == "responses":
        model = OpenAIResponsesModel(task.model, provider=openai)
    else:
        model = AnthropicModel(task.model, provider=AnthropicProvider(api_key=KEY, base_url=task.url))
    # Its `run_stream` takes the first text of any answer for the final one; a model that may make only one call says
    # nothing after it.
    agent = Agent(model, system_prompt=SYSTEM, model_settings={"parallel_tool_calls": False})
    agent.tool_plain(name="bash", description=ABOUT)(shell)

    async def run() -> str:
        if not task.stream:
            return (await agent.run(task.prompt)).output
        async with agent.run_stream(task.prompt) as result:
            return str(await result.get_output())

    return asyncio.run(run())


LOOPS: dict[tuple[str, str], Callable[[Task], str]] = {
    ("openai", "chat"): openai_chat,
    ("openai", "responses"): openai_responses,
    ("anthropic", "messages"): anthropic_messages,
    ("openai-agents", "chat"): openai_agents,
    ("openai-agents", "responses"): openai_agents,
    ("pydantic-ai", "chat"): pydantic_ai,
    ("pydantic-ai", "responses"): pydantic_ai,
    ("pydantic-ai", "messages"): pydantic_ai,
}


def main(arguments: list[str]) -> None:
    kit, api, mode, url, model, prompt = arguments
    form, _, stored = mode.partition("-")
    print(LOOPS[kit, api](Task(api, form == "stream", bool(stored), url, model, prompt)))


if __name__ == "__main__":
    main(sys.argv[1:])
