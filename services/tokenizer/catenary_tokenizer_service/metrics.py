"""Metrics of the tokenizer service."""

from prometheus_client import Counter, Gauge, Histogram

TURNS = Gauge("catenary_tokenizer_turns", "Turns held, by phase", ["phase"])
ENDED = Counter("catenary_turns_total", "Turns ended", ["model", "reason"])
MOVED = Counter("catenary_turn_moves_total", "Turns placed again", ["reason"])
RESENDS = Counter("catenary_token_resends_total", "Requests for tokens that did not arrive", ["reason"])
RENDER = Histogram(
    "catenary_render_seconds", "Rendering a prompt", buckets=(0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.2)
)
ENCODE = Histogram(
    "catenary_encode_seconds", "Encoding a prompt", buckets=(0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.2)
)
TOKENS = Counter("catenary_tokens_total", "Tokens", ["model", "kind"])
CALLS = Counter("catenary_toolcalls_total", "Tool calls put on the bus", ["run_by"])
MALFORMED = Counter("catenary_parser_malformed_total", "Markup that is no call", ["format"])
ODD = Counter(
    "catenary_answers_odd_total",
    "Answers with markup of calls that became none, or markup that was shown",
    ["format", "what"],
)
LOG_BYTES = Gauge("catenary_event_log_bytes", "Event logs of ended turns")
DIVERGED = Counter(
    "catenary_prompt_divergences_total", "Prompts that do not extend their session's last one", ["cause"]
)
RETAINED = Counter("catenary_retention_changes_total", "Sessions whose blocks are to be kept otherwise", ["why"])
SPECULATED = Counter("catenary_speculative_prefills_total", "Next turns prepared", ["cause", "outcome"])
SPECULATED_TOKENS = Counter("catenary_speculative_prefill_tokens_total", "Prompt tokens computed ahead of their turn")
PREDICTION_ERROR = Histogram(
    "catenary_route_prediction_error_ratio",
    "Prompt tokens the router expected in the worker's cache and were not there, or the reverse, over the prompt's",
    buckets=(0.0, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0),
)
HELPER_BYTES = Gauge("catenary_helper_resident_bytes", "Memory of a helper process", ["helper"])
HELPER_CPU = Counter("catenary_helper_cpu_seconds_total", "CPU of helper processes", ["helper"])
HELPER_ENDED = Counter("catenary_helper_ended_total", "Helper processes that ended over a job", ["helper", "why"])
REMEMBERED = Counter(
    "catenary_turn_memory_total",
    "Answers in prompts: taken as they were generated (hit), or why not",
    ["model", "what"],
)
CARRIED = Counter("catenary_turn_memory_carried_total", "Remembered answers that moved between tokenizers", ["way"])
THOUGHTS = Counter(
    "catenary_thoughts_total",
    "Answers whose clients left out what was thought before their calls: put back (restored), or why not",
    ["model", "what"],
)
THOUGHTS_CARRIED = Counter("catenary_thoughts_carried_total", "Kept thoughts that moved between tokenizers", ["way"])
