"""The styles of thinking. Where the output is made of messages, their headers tell it, and the style is but a name."""

from __future__ import annotations

from catenary_parsers.grammar import Reasoning


def _think(name: str, *aliases: str, forced: bool = False) -> Reasoning:
    tags = ("<think>", "</think>")
    return Reasoning(
        name,
        aliases=aliases,
        open=tags[:1],
        close=tags[1:],
        markers=tags,
        writing="<think>\n{text}\n</think>\n\n",
        forced=forced,
    )


STYLES = (
    Reasoning("none"),
    _think("basic", "qwen3", "qwen3_coder", "nemotron_deci", "glm45", "glm47"),
    _think(
        "deepseek_r1",
        "deepseek_v3",
        "deepseek_v3_1",
        "deepseek_v3_2",
        "step3",
        "nemotron_nano",
        "nemotron3",
        "nemotron_v3",
        forced=True,
    ),
    _think("deepseek_v4", "deepseek-v4", "deepseekv4", "deepseek_v41"),
    Reasoning(
        "kimi", writing="◁think▷{text}◁/think▷", open=("◁think▷",), close=("◁/think▷",), markers=("◁think▷", "◁/think▷")
    ),
    _think("kimi_k2"),
    _think("kimi_k25", forced=True),
    Reasoning(
        "kimi_k3",
        writing="<|open|>think<|sep|>{text}<|close|>think<|sep|>",
        aliases=("kimi-k3",),
        open=("<|open|>think<|sep|>",),
        close=("<|close|>think<|sep|>",),
        markers=("<|open|>", "<|close|>", "<|sep|>"),
    ),
    Reasoning(
        "mistral",
        writing="[THINK]{text}[/THINK]",
        open=("[THINK]",),
        close=("[/THINK]",),
        markers=("[THINK]", "[/THINK]"),
        forced=True,
    ),
    Reasoning(
        "granite",
        writing="Here's my thought process: {text} Here's my response: ",
        open=("Here's my thought process:", "Here is my thought process:"),
        close=("Here's my response:", "Here is my response:"),
    ),
    Reasoning("gpt_oss", writing="<|start|>assistant<|channel|>analysis<|message|>{text}<|end|>"),
    Reasoning("minimax_append_think"),
    _think("minimax_m2", forced=True),
    Reasoning(
        "minimax_m3",
        writing="<mm:think>{text}</mm:think>",
        aliases=("minimax-m3",),
        open=("<mm:think>",),
        close=("</mm:think>",),
        markers=("<mm:think>", "</mm:think>"),
    ),
    Reasoning(
        "gemma4",
        writing="<|channel>thought\n{text}<channel|>",
        aliases=("gemma-4",),
        open=("<|channel>thought",),
        close=("<channel|>",),
        markers=("<|channel>", "<channel|>"),
    ),
    Reasoning("inkling", writing="<|message_model|><|content_thinking|>{text}<|end_message|>"),
    Reasoning("muse", writing="<|start|>assistant to=self<|message|>{text}<|eom|>", aliases=("muse_glimmer",)),
)
