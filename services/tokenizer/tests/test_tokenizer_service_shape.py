import pytest
from catenary_protocols.conversation import (
    AssistantMessage,
    CallPart,
    Conversation,
    ImagePart,
    Message,
    ReasoningPart,
    SystemMessage,
    TextPart,
    Tool,
    ToolChoice,
    ToolMessage,
    UserMessage,
)
from catenary_protocols.errors import RequestError
from catenary_tokenizer_service.core.shape import chat_messages, chat_tools
from catenary_tokenizer_service.ingress.images import images_of, places_of
from catenary_tokenizer_service.ingress.prompts import hashes_of
from catenary_tokenizers import pack

BILLING = "x-anthropic-billing-header: cc_version=9.9.9.{}; cc_entrypoint=cli;"


def conversation(*messages: Message, tools: tuple[Tool, ...] = (), choice: ToolChoice | None = None) -> Conversation:
    return Conversation(messages=messages, tools=tools, tool_choice=choice or ToolChoice())


def system(*texts: str) -> SystemMessage:
    return SystemMessage(parts=tuple(TextPart(text=text) for text in texts))


def user(text: str) -> UserMessage:
    return UserMessage(parts=(TextPart(text=text),))


def test_accounting_in_a_system_text_never_reaches_the_prompt() -> None:
    for head in (system(BILLING.format("aaa"), "Be kind."), system(BILLING.format("bbb") + "\nBe kind.")):
        assert chat_messages(conversation(head, user("Hi")))[0] == {"role": "system", "content": "Be kind."}
    assert [one["role"] for one in chat_messages(conversation(system(BILLING.format("c")), user("Hi")))] == ["user"]


def test_the_same_words_of_a_user_stay() -> None:
    said = BILLING.format("aaa")
    assert chat_messages(conversation(user(said))) == [{"role": "user", "content": said}]


def test_a_result_that_is_an_error_says_so() -> None:
    failed = ToolMessage(call_id="c", parts=(TextPart(text="no such port"),), name="tide", is_error=True)
    assert chat_messages(conversation(failed))[0]["content"] == "Error: no such port"


def test_results_stand_in_the_order_of_their_calls() -> None:
    calls = AssistantMessage(parts=tuple(CallPart(id=id_, name="tide", arguments="{}") for id_ in ("a", "b", "c")))
    results = [ToolMessage(call_id=id_, parts=(TextPart(text=id_),)) for id_ in ("c", "a", "b")]
    said = chat_messages(conversation(user("Hi"), calls, *results, user("And?"), calls, results[0], results[2]))
    assert [one["content"] for one in said] == ["Hi", "", "a", "b", "c", "And?", "", "b", "c"]
    lone = chat_messages(conversation(user("Hi"), *results))
    assert [one["content"] for one in lone] == ["Hi", "c", "a", "b"]


def test_a_thought_after_a_call_begins_a_message_and_results_know_all_calls() -> None:
    def call(id_: str) -> CallPart:
        return CallPart(id=id_, name="tide", arguments="{}")

    one, two, three = (ReasoningPart(text=text) for text in ("one", "two", "three"))
    answer = AssistantMessage(parts=(one, two, call("a"), call("b"), three, TextPart(text="So."), call("c")))
    results = [ToolMessage(call_id=id_, parts=(TextPart(text=id_),)) for id_ in ("c", "a", "b")]
    first, second, *told = chat_messages(conversation(user("Hi"), answer, *results))[1:]
    assert (first["reasoning_content"], first["content"]) == ("one\ntwo", "")
    assert (second["reasoning_content"], second["content"]) == ("three", "So.")
    assert [len(message["tool_calls"]) for message in (first, second)] == [2, 1]  # type: ignore[arg-type]
    assert [message["content"] for message in told] == ["a", "b", "c"]
    apart = AssistantMessage(parts=answer.parts[:4]), AssistantMessage(parts=answer.parts[4:])
    assert chat_messages(conversation(user("Hi"), *apart, *results))[1:] == [first, second, *told]


def test_images_leave_a_mark_each_and_go_beside_the_prompt() -> None:
    chart = ImagePart(url="data:image/png;base64,AAAA", field="messages[0].content[1]")
    shown = UserMessage(parts=(TextPart(text="See"), chart))
    result = ToolMessage(call_id="c", parts=(TextPart(text="chart:"), chart), is_error=True)
    one = conversation(shown, result)
    assert [message["content"] for message in chat_messages(one)] == [
        [{"type": "text", "text": "See"}, {"type": "image"}],
        [{"type": "text", "text": "Error: "}, {"type": "text", "text": "chart:"}, {"type": "image"}],
    ]
    assert images_of(one, seen=True) == (chart.url, chart.url)
    with pytest.raises(RequestError) as caught:
        images_of(conversation(user("Hi"), shown), seen=False)
    assert caught.value.field == chart.field


def test_a_new_image_makes_other_blocks_from_its_own_place_on() -> None:
    controls = {"<|image|>": 7, "<|end|>": 8}
    ids = pack([1, 7, 2, 3, 4, 5, 6, 8, 9, 7, 1, 2])
    at = places_of(("a", "b"), ids, controls)
    assert at == (1, 9)
    one, other, swapped = (hashes_of(ids, 2, "s", images, at) for images in (("a", "b"), ("a", "c"), ("b", "a")))
    assert one[: 4 * 8] == other[: 4 * 8] == hashes_of(ids[:32], 2, "s", ("a",), (1,))
    assert one[4 * 8 : 5 * 8] != other[4 * 8 : 5 * 8]
    assert one[:8] != swapped[:8]


def test_a_template_without_a_mark_of_its_own_for_each_image_shares_nothing() -> None:
    assert places_of(("a", "b"), pack([1, 7, 2]), {"<|image|>": 7}) == (0, 0)


def test_deferred_tools_stay_out_of_the_head() -> None:
    tools = (Tool(name="first"), Tool(name="later", deferred=True))
    assert [one["function"] for one in chat_tools(conversation(user("Hi"), tools=tools))] == [
        {"name": "first", "parameters": {"type": "object", "properties": {}}}
    ]
    assert chat_tools(conversation(user("Hi"), tools=tools, choice=ToolChoice(mode="none"))) == []


def test_schemas_are_told_in_one_form() -> None:
    one = Tool(name="t", schema='{"$schema":"x","properties":{"a":{"minimum":1.0,"type":"number"}},"type":"object"}')
    two = Tool(name="t", schema='{"type":"object","properties":{"a":{"type":"number","minimum":1}}}')
    heads = [chat_tools(conversation(user("Hi"), tools=(tool,))) for tool in (one, two)]
    assert str(heads[0]) == str(heads[1])


def test_tools_are_read_once_but_for_long_ones_which_are_not_kept() -> None:
    short = Tool(name="a", schema='{"type":"object","properties":{"only here":{}}}')
    long = Tool(name="b", description="x" * 20_000, schema=short.schema)
    for tools in ((short,), (long,)):
        conversation = Conversation(messages=(), tools=tools)
        once, again = chat_tools(conversation), chat_tools(conversation)
        assert once == again
        assert (once[0] is again[0]) == (tools == (short,))
