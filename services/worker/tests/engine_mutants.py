"""Each probe and trap fix of the engines' adapters, and each rule of the simulator's scheduler, taken out: the test
beside it must then fail.

    python engine_mutants.py [trtllm] [llamacpp] [paged]

forks once for each, lets the fork import the adapter with that one change, and runs that one test. It prints what
survived and what does not apply any more, and then exits with 1.
"""

import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import NamedTuple

import pytest

HERE = Path(__file__).parent
ENGINES = HERE.parent / "catenary_worker" / "engines"
PACKAGE = "catenary_worker.engines"
SHARED = ("catenary_runtime.testing", "catenary_tokenizers", "hypothesis.strategies", "catenary_worker.core.admission")
"""Imported once, before the forks."""
PLUGINS = ("pytest_asyncio.plugin", "pytest_timeout")
OPTIONS = ["-q", "-x", "--timeout=0", "-p", "no:cacheprovider", *(part for name in PLUGINS for part in ("-p", name))]
LONGEST_S = {"trtllm": 20, "llamacpp": 60, "paged": 60}
"""A change that makes a test hang is noticed, too."""
AT_ONCE = 6
KILLED = {1, -signal.SIGALRM}
"""What pytest returns when a test failed (5 would mean that there is no such test), or what ended it."""


class Mutant(NamedTuple):
    """One change: in a `module` of the folder, `old` (which is there once) becomes `new`; that test in `tests` fails."""

    module: str
    old: str
    new: str
    tests: str
    name: str


E, R, V, C, H = "trtllm_engine", "trtllm_requests", "trtllm_events", "trtllm_contract", "engine_halves"
TRTLLM = [
    # What the installed version takes
    Mutant("api", 'return "priority" in self.call and', "return True or", R, "every_version_gets"),
    Mutant("api", "for name, value in wanted.items() if name in taken", "for name, value in wanted.items()", R, "says_only_what"),
    Mutant("api", "if missing := sorted(needed - taken):", "if missing := []:", R, "lacks_is_an_error"),
    Mutant("api", "if find_spec(PACKAGE) is None:", "if False:", R, "without_the_package"),
    Mutant("requests", '"salt": "cache_salt" in self.api.call,', '"salt": True,', R, "salt_goes_through"),
    Mutant("requests", '"retention": "kv_cache_retention_config" in self.api.call,', "", R, "takes_is_a_feature"),
    # How it is constructed
    Mutant("launch", "if name not in api.arguments:", "if False:", R, "unknown_ones_are_named"),
    Mutant("launch", '"skip_tokenizer_init": not guided,', '"skip_tokenizer_init": True,', E, "guide_needs_the_tokenizer"),
    Mutant("launch", '"enable_chunked_prefill": True,', "", E, "computed_in_chunks"),
    Mutant("launch", '"return_perf_metrics": True,', "", R, "every_version_gets"),
    Mutant("launch", '"enable_iter_perf_stats": True,', "", R, "every_version_gets"),
    Mutant("launch", '"enable_block_reuse": True,', '"enable_block_reuse": False,', R, "every_version_gets"),
    Mutant("launch", '"event_buffer_max_size": settings.event_buffer,', '"event_buffer_max_size": 0,', R, "every_version_gets"),
    Mutant("launch", 'needed["guided_decoding_backend"] = settings.guide', "pass", R, "every_version_gets"),
    Mutant("launch", 'needed["enable_attention_dp"] = True', "pass", E, "attention_ranks_are_told"),
    Mutant("launch", 'needed["scheduler_config"] = ', "_ = ", E, "holds_where_the_engine_has_it"),
    Mutant("launch", "| settings.llm", "", R, "further_arguments"),
    Mutant("launch", "if os.geteuid() == 0:", "if False:", R, "root_may_start"),
    Mutant("launch", 'environ.setdefault("OMPI_ALLOW_RUN_AS_ROOT", "1")', 'environ["OMPI_ALLOW_RUN_AS_ROOT"] = "1"', R, "root_may_start"),
    Mutant("launch", 'needed |= {"enable_lora": True, "lora_config": _loras(settings)}', "pass", R, "lora_configuration"),
    Mutant("engine", 'asyncio.wrap_future(in_thread("was constructed", lambda: api.llm(**arguments)))', "asyncio.to_thread(lambda: api.llm(**arguments))", E, "constructor_blocks_a_thread"),
    Mutant("engine", 'self._on_phase("loading weights")', "", E, "constructor_blocks_a_thread"),
    # What it would fill in by itself
    Mutant("requests", '"max_tokens": max_tokens,', "", E, "not_32_tokens"),
    Mutant("requests", "1.0 if turn.temperature is None else turn.temperature", "turn.temperature", E, "says_nothing_of_temperature"),
    Mutant("requests", "turn.seed if turn.seed is not None else seed_of(turn.turn_id)", "turn.seed or 0", E, "says_nothing_of_temperature"),
    Mutant("requests", '"end_id": own[0] if own else -1,', "", C, "gets_its_tokens"),
    Mutant("requests", "stops = {*own[1:], *turn.stop_token_ids}", "stops = {*turn.stop_token_ids}", E, "ended_a_turn_is_the_last"),
    Mutant("requests", '"ignore_eos": turn.ignore_eos,', "", R, "says_only_what"),
    Mutant("requests", '"detokenize": False,', "", R, "says_only_what"),
    Mutant("requests", '"add_special_tokens": False,', "", R, "says_only_what"),
    Mutant("requests", "turn.min_tokens - len(turn.generated)", "turn.min_tokens", R, "limits_of_a_moved_turn"),
    Mutant("requests", '"prompt_ignore_length": len(turn.prompt),', "", R, "says_only_what"),
    Mutant("requests", "return self.api.sampling(**known(wanted, fields_of(self.api.sampling)))", 'return globals().setdefault("_made", self.api.sampling(**known(wanted, fields_of(self.api.sampling))))', C, "many_turns_at_once"),
    Mutant("requests", '"return_perf_metrics": True,', "", C, "known_prefix"),
    # Retention, salt, adapters, guides, priority
    Mutant("requests", "turn.retention.priority > 0 and turn.retention.seconds > 0", "turn.retention.priority > 0", R, "nothing_is_retained"),
    Mutant("requests", "ORDINARY_RETENTION + kept.priority", "kept.priority", R, "retention_covers"),
    Mutant("requests", "timedelta(seconds=kept.seconds) if kept.priority > 0 else None", "timedelta(seconds=kept.seconds)", R, "nobody_comes_back_to"),
    Mutant("requests", "priority, length)], priority, length)", "priority, length)])", R, "retention_covers"),
    Mutant("requests", 'wanted["cache_salt"] = turn.salt', "pass", C, "salt_keeps"),
    Mutant("requests", "number = 1 + list", "number = list", R, "named_numbered_and_found"),
    Mutant("requests", "if lora and lora not in self.settings.loras:", "if False:", R, "named_numbered_and_found"),
    Mutant("requests", "if asked and feature not in self.features:", "if False:", E, "refused_not_left_out"),
    Mutant("requests", 'if options.get("structural_tag") and options.get("json_schema"):', "if False:", E, "refused_not_left_out"),
    Mutant("requests", 'and self.settings.guide != "xgrammar"', "and False", R, "only_xgrammar"),
    Mutant("requests", 'guide["json"] = schema', 'guide["structural_tag"] = schema', R, "guides_become"),
    Mutant("requests", 'wanted["priority"] = scaled(turn.priority)', "pass", E, "holds_where_the_engine_has_it"),
    Mutant("requests", "min(max(strict, 0), _STRICT_LEVELS - 1) * _SPAN", "0", R, "keep_their_order"),
    Mutant("requests", "min(max(strict, 0), _STRICT_LEVELS - 1)", "strict", R, "out_of_range"),
    # Its results
    Mutant("running", "fresh = tuple(ids[self._seen :])", "fresh = tuple(ids)", R, "results_are_cumulative"),
    Mutant("running", "return reason if missing else None", "return None", R, "cut_off_is_put_back"),
    Mutant("running", "isinstance(reason, int) and len(ids) >= self._seen and", "isinstance(reason, int) and", R, "never_taken_back"),
    Mutant("running", "fresh = fresh[:room]", "pass", R, "no_more_tokens"),
    Mutant("running", 'if reason == "timeout":', "if False:", R, "without_a_good_reason"),
    Mutant("running", '("error", _SILENT_END) if result.finished else (None, None)', "(None, None)", R, "without_a_good_reason"),
    Mutant("running", "return min(cached, len(self.turn.prompt) - 1)", "return cached", R, "less_than_the_prompt"),
    Mutant("running", "blocks * block_size)", "0)", C, "known_prefix"),
    Mutant("running", 'getattr(result, "cached_tokens", 0) or 0', "0", C, "known_prefix"),
    Mutant("engine", "failed=(self._api.request_error,)):", "failed=()):", E, "ends_that_turn_alone"),
    Mutant("engine", "failed=(self._api.request_error,)):", "failed=(Exception,)):", E, "means_that_the_engine_is_broken"),
    Mutant("engine", "refused=True", "refused=False", E, "refuses_at_the_door"),
    Mutant("engine", "if not task.cancelled() and (error := task.exception()) is not None:", "if False:", E, "hangs_nobody"),
    Mutant("boundary", "if refused and isinstance", "if isinstance", E, "means_that_the_engine_is_broken"),
    # Cancelling
    Mutant("engine", "one.result.abort()", "pass", E, "aborts_and_frees"),
    Mutant("engine", 'if one.started or self.settings.aborts == "always":', "if True:", E, "aborts_only_what_has_begun"),
    Mutant("engine", "                if one.ended:\n                    self._abort(one)", "                if one.ended:\n                    pass", E, "aborts_only_what_has_begun"),
    Mutant("settings", '"decode": "after_first_token"', '"decode": "always"', E, "aborts_only_what_has_begun"),
    Mutant("settings", '"prefill": "never"', '"prefill": "after_first_token"', E, "never_aborts"),
    Mutant("engine", 'self._end(one, "error", error.info)', "pass", E, "begun_anew_that_says_something_else"),
    Mutant("admission", "if orders_itself else max_batch + AHEAD", "if True else 0", E, "holds_where_the_engine_has_none"),
    Mutant("admission", "if not turn.ended:", "if True:", E, "cancelled_before_the_engine_hears"),
    Mutant("admission", "return self.inside + len(self._waiting) >= self._limit", "return False", E, "full_queue_says_so"),
    # Prefill and decode apart
    Mutant("requests", '"streaming": turn.half != "prefill",', '"streaming": True,', H, "handoff_tells_all"),
    Mutant("requests", "prefill_of(self.api) if prefill else", "prefill_of(self.api) if True else", H, "two_halves"),
    Mutant("requests", "            decode_of(turn.handoff, self.api)\n        lora", "            pass\n        lora", H, "goes_no_further"),
    Mutant("halves", "**known(given, fields_of(kind))", "**given, later=1", H, "two_halves"),
    Mutant("running", 'if self.turn.half == "prefill":', "if False:", H, "two_halves"),
    Mutant("running", '"not_finished": "length"', "", H, "two_halves"),
    Mutant("launch", '{"disable_overlap_scheduler": True} if settings.role == "prefill" else {}', "{}", H, "two_halves"),
    Mutant("launch", 'wanted["max_tokens_in_buffer"] = context', "pass", H, "way_for_blocks"),
    Mutant("engine", "llm, self._llm = self._llm, None", "llm = self._llm", E, "holds_nothing_of_it"),
    # Start, facts, statistics, stop
    Mutant("warmup", "return Facts(context, cache.tokens_per_block,", "return Facts(context, 32,", E, "block_size_is_the_models"),
    Mutant("warmup", "return bool(self.events)", "return True", E, "cannot_reuse_blocks"),
    Mutant("warmup", 'getattr(llm.args, "max_seq_len", None)', "0", E, "context_is_the_engines"),
    Mutant("polling", "stream.mark_undone()", "pass", E, "iterations_are_slow"),
    Mutant("polling", "asyncio.timeout(wait_s + PATIENCE_S)", "asyncio.timeout(None)", E, "no_statistics_at_all"),
    Mutant("engine", "self._iteration or IterationStats(), None", "self._iteration or IterationStats(), self._iteration", E, "each_iteration_once"),
    Mutant("engine", "self._activity.stopped.set()", "pass", E, "after_shutdown_began"),
    Mutant("engine", "asyncio.timeout(self.settings.stop_s)", "asyncio.timeout(None)", E, "shutdown_that_hangs"),
    # KV events
    Mutant("kv_events", 'self.counts["restart" if restarted else "gap"] += 1\n        return self._forget(for_good=restarted)', "return []", V, "missing_number_clears"),
    Mutant("kv_events", "return self._forget(for_good=restarted)", "return rank.forget(for_good=restarted)", V, "missing_number_clears"),
    Mutant("kv_events", "return self._forget(for_good=restarted)", "return self._forget(for_good=False)", V, "restart_is_forgotten"),
    Mutant("kv_events", "self._count(rank, event.event_id) + self._widen(event)", "self._widen(event)", V, "lost_to_a_narrow_window"),
    Mutant("kv_events", "number = event.attention_dp_rank or 0", "number = 0", V, "ranks_count_for_themselves"),
    Mutant("kv_events", "if not 0 <= number < len(self._ranks):\n            self.counts", "if False:\n            self.counts", V, "rank_that_is_not_here"),
    Mutant("kv_events", "if event.window_size is not None and (event.window_size, event.layer_group_id) != self._window:", "if False:", V, "only_the_widest_window"),
    Mutant("kv_events", "(event.window_size, event.layer_group_id) != self._window", "event.window_size != self._window[0]", V, "two_layer_groups"),
    Mutant("kv_events", "return self._forget(for_good=True)", "return []", V, "shows_up_late"),
    Mutant("kv_events", "if len(tokens) != self._block_size:", "if len(tokens) > self._block_size:", V, "partial_block"),
    Mutant("kv_events", "if len(tokens) != self._block_size:", "if len(tokens) < self._block_size:", V, "longer_than_a_block"),
    Mutant("kv_events", "if name not in rank.held:", "if True:", V, "stored_twice"),
    Mutant("kv_events", "            if not chain:\n", "            if False:\n", V, "hangs_on_an_unknown_block"),
    Mutant("kv_events", "if at not in self.forgotten:\n                return []", "if at not in self.forgotten:\n                break", V, "hole_in_it"),
    Mutant("kv_events", "known = {} if for_good else {**self.forgotten, **self.held}", "known = {}", V, "proves_that_its_parents"),
    Mutant("kv_events", "            rank.forgotten.pop(name, None)\n        gone", "            pass\n        gone", V, "proves_nothing"),
    Mutant("kv_events", "gone = tuple(name for name in names if rank.held.pop(name, None) is not None)", "gone = tuple(names)", V, "its_removal_means_nothing"),
    Mutant("kv_events", "if tokens is None or block.mm_keys:", "if tokens is None:", V, "blocks_with_images"),
    Mutant("kv_events", "block.cache_salt is not None or ", "", V, "says_its_salt"),
    Mutant("kv_events", "(first and self._private.hides(tokens, now))", "False", V, "could_be_a_private_turns"),
    Mutant("kv_events", "told += self._unreadable(one)", "pass", V, "cannot_be_read"),
    Mutant("kv_events", 'rank.expected = raw["event_id"] + 1', "pass", V, "cannot_be_read"),
    Mutant("kv_events", 'self.counts["gap"] += 1\n        return self._forget(for_good=False)', "return []", V, "could_not_be_fetched"),
    Mutant("kv_events", "block_hash if isinstance(block_hash, int) else int(block_hash, 16)", "hash(block_hash)", V, "names_in_hex"),
    Mutant("wire", 'Hash = int | Annotated[str, msgspec.Meta(pattern="^[0-9a-fA-F]+$")]', "Hash = int", V, "names_in_hex"),
    Mutant("wire", "return None if extra else ids", "return ids", V, "blocks_with_images"),
    Mutant("private", "GRACE_S = 30.0", "GRACE_S = 0.0", V, "a_little_longer"),
    Mutant("private", "for length in [*self._lengths]:", "for length in [len(packed)]:", V, "short_private_prompt"),
    Mutant("running", 'return bool(self.turn.salt or self.turn.options.get("lora"))', "return False", E, "salted_turns_stay_out"),
]  # fmt: skip

S, L, K, J = "llamacpp_slots", "llamacpp_engine", "llamacpp_contract", "llamacpp_running"
LLAMACPP = [
    # What slots hold, and who gets one
    Mutant("slots", "return common(self.tokens, ids) if salt == self.salt else 0", "return common(self.tokens, ids)", K, "salt_keeps"),
    Mutant("slots", "if 2 * shared[slot] > len(slot.tokens)]", "if shared[slot]]", S, "beginning_in_common"),
    Mutant("slots", "priority if now < until else min(0, priority)", "priority", S, "stranger_takes_the_oldest"),
    Mutant("slots", "slot.keep(slot.told or retention, now)", "slot.keep(retention, now)", S, "still_ending"),
    Mutant("slots", "slot.told = retention if slot.busy else None", "slot.told = None", S, "still_ending"),
    Mutant("slots", "reversed(lost) if not self._holders[name])", "reversed(lost))", S, "add_up"),
    Mutant("slots", "held = sum(1 for _ in takewhile(lambda name: self._holders[name] > 1, names))", "held = 0", S, "add_up"),
    Mutant("slots", "self.cut(slot, shared[slot])", "pass", S, "add_up"),
    Mutant("slots", "        slot.salt = salt", "        pass", L, "another_salt"),
    Mutant("running", "progress.cache < min(len(slot.tokens), len(self.ids) - 1)", "False", J, "cannot_go_on"),
    Mutant("running", "cached = min(progress.cache, len(self.turn.prompt) - 1)", "cached = progress.cache", J, "moved_turn"),
    Mutant("running", "found is None or _BROKEN in message.content", "found is None", J, "nobody_knows"),
    Mutant("running", "found is None or _BROKEN in message.content", "_BROKEN in message.content", J, "nobody_knows"),
    Mutant("running", "self._hold(len(self.ids) - 1)\n        # A", "self._hold(len(self.ids))\n        # A", L, "slots_hold"),
    Mutant("requests", '"id_slot": one.slot.number if one.slot is not None else -1,', "", J, "was_chosen"),
    Mutant("requests", '"cache_prompt": one.reuses,', '"cache_prompt": True,', L, "another_salt"),
    # How turns end
    Mutant("running", "waits=int(self.ids[-1] in self._vocabulary.controls)", "waits=0", L, "own_end_counts"),
    Mutant("running", "and len(self.ids) > self._stops_after", "", L, "not_too_early"),
    Mutant("running", "early = not self.turn.ignore_eos and", "early = False and", L, "own_end_counts"),
    Mutant("running", "if len(self.ids) >= self.end:", "if False:", J, "wants_no_token"),
    Mutant("running", "stop_token=self._told < len(self.ids))", "stop_token=False)", L, "own_end_counts"),
    Mutant("requests", '"ignore_eos": not ends,', '"ignore_eos": False,', L, "own_end_counts"),
    Mutant("requests", "max(1, until - len(one.ids))", "until - len(one.ids)", J, "wants_no_token"),
    Mutant("running", "if missing <= 0:", "if True:", L, "of_several_tokens"),
    Mutant("running", "[*[None] * (count - len(known)), *known]", "known", J, "how_likely"),
    # What it would fill in by itself
    Mutant("requests", "1.0 if turn.temperature is None else turn.temperature", "turn.temperature", J, "said_to_it"),
    Mutant("requests", "1.0 if turn.top_p is None else turn.top_p", "turn.top_p", J, "said_to_it"),
    Mutant("requests", "max(0, turn.top_k or 0)", "turn.top_k", J, "said_to_it"),
    Mutant("requests", "turn.min_p or 0.0", "turn.min_p", J, "said_to_it"),
    Mutant("requests", "seed_of(turn.turn_id) if turn.seed is None else turn.seed", "turn.seed or 0", J, "said_to_it"),
    Mutant("requests", "else turn.seed) % _RANDOM", "else turn.seed)", J, "said_to_it"),
    Mutant("requests", '"repeat_last_n": one.end,', "", J, "said_to_it"),
    # What is refused
    Mutant("requests", "if options.get(name):", "if False:", L, "is_refused"),
    Mutant("requests", "if tag and schema:", "if False:", L, "is_refused"),
    Mutant("requests", "if turn.min_tokens:", "if False:", L, "is_refused"),
    Mutant("grammar", "if wrong := LLMatcher.validate_grammar(grammar):", 'if wrong := "":', L, "is_refused"),
    Mutant("grammar", ", **_COMPACT}", "}", L, "says_the_same"),
    Mutant("engine", "if len(self._waiting) >= self.settings.max_waiting:", "if False:", L, "keep_their_order"),
    Mutant("engine", "run = run if anew is None else anew.turn", "pass", L, "says_the_same"),
    # How it is cancelled, breaks and stops
    Mutant("engine", "            one.task.cancel()", "            pass", L, "frees_its_slot"),
    Mutant("stream", "writer.transport.abort()", "pass", L, "frees_its_slot"),
    Mutant("engine", "self._waiting = [entry for entry in self._waiting if entry[2] is not one]", "pass", L, "keep_their_order"),
    Mutant("engine", "if run.deadline:", "if False:", L, "deadline_ends"),
    Mutant("engine", "one.release()", "pass", L, "frees_its_slot"),
    Mutant("engine", "isinstance(error, TurnError | SaidOtherwiseError)", "isinstance(error, SaidOtherwiseError)", L, "fails_alone"),
    Mutant("engine", "isinstance(error, TurnError | SaidOtherwiseError)", "isinstance(error, TurnError)", L, "says_the_same"),
    Mutant("stream", "if message.error is not None:", "if False:", L, "fails_alone"),
    Mutant("stream", "fault.code in _BLAME_REQUEST", "False", L, "fails_alone"),
    Mutant("stream", 'raise EngineError("llama.cpp broke off: an answer ended before its end")', "return", L, "stops_before_its_end"),
    Mutant("engine", "call_later(_REASON_S, self._steps.fail, reason)", "call_soon(self._steps.fail, reason)", L, "dead_llama"),
    Mutant("engine", "if self._steps.broken is not None:", "if False:", L, "dead_llama"),
    Mutant("engine", "        except TimeoutError:\n            self._cancel_all()", "        except TimeoutError:\n            pass", K, "cancels_what_is_late"),
    Mutant("engine", "await self._server.stop()", "pass", L, "gives_its_memory_back"),
    Mutant("server", "if answer.error:", "if False:", L, "cannot_load"),
    Mutant("server", 'if line else _Answer(error="it died")', "if line else _Answer()", L, "dies_while_it_loads"),
    Mutant("server", '"tokens": settings.slots * self._context,', '"tokens": self._context,', L, "whole_context"),
    Mutant("server", 'if find_spec("xllamacpp") is None:', "if False:", J, "how_to_get_it"),
    Mutant("settings", "max(1, (os.cpu_count() or 2) - 1)", "(os.cpu_count() or 2)", J, "leaves_one_core"),
]  # fmt: skip
P, B, D = "engine_paged", "engine_blocks", "engine_scheduler"
PAGED = [
    # The simulator's scheduler and its events
    Mutant("scheduler", "self._reserve if self.running else 0", "self._reserve", D, "alone"),
    Mutant("scheduler", "self._reserve if self.running else 0", "0", D, "watermark_free"),
    Mutant("scheduler", "len(self.running) >= limits.max_batch", "False", D, "most_that_run"),
    Mutant("scheduler", "        self.enqueue(sequence)", "        pass", P, "random_load"),
    Mutant("scheduler", "self._pool.release(sequence.blocks)", "pass", P, "random_load"),
    Mutant("scheduler", "victim = self.running.pop()", "victim = self.running.pop(0)", D, "lowest_priority"),
    Mutant("scheduler", 'if sequence.turn.half == "decode" and not sequence.admitted:', "if False:", H, "two_halves"),
    Mutant("scheduler", "count = min(pending, budget)", "count = pending", P, "random_load"),
    Mutant("scheduler", "insort(self.running, sequence)", "self.running.append(sequence)", D, "lowest_priority"),
    Mutant("scheduler", "- pool.unheld(found) - missing", "- missing", P, "random_load"),
    Mutant("events", "if not self._hashes or parent != self._hashes[-1] or salt != self._salt:", "if not self._hashes:", B, "events_keep_the_order"),
    Mutant("events", "        if self._hashes:\n            self._close()\n        self._removed", "        self._removed", B, "events_keep_the_order"),
]  # fmt: skip
ADAPTERS = {"trtllm": TRTLLM, "llamacpp": LLAMACPP, "paged": PAGED}


class _Changed(SourceFileLoader):
    """Loads a module with one change; nothing of it is kept on disk."""

    mutant: Mutant

    def get_code(self, fullname: str) -> CodeType:
        source = Path(self.path).read_text()
        return compile(source.replace(self.mutant.old, self.mutant.new), self.path, "exec")


class _Finder(MetaPathFinder):
    def __init__(self, adapter: str, mutant: Mutant) -> None:
        self._module, self._mutant = f"{PACKAGE}.{adapter}.{mutant.module}", mutant

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._module:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Changed(fullname, spec.loader.path)
            spec.loader.mutant = self._mutant
        return spec


def start(adapter: str, tests: str, name: str, mutant: Mutant | None) -> int:
    """Begin one test in a fork; returns its process id."""
    child = os.fork()
    if child:
        return child
    signal.alarm(LONGEST_S[adapter] if mutant else 0)
    if mutant is not None:
        sys.meta_path.insert(0, _Finder(adapter, mutant))
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    file = str(HERE / f"test_worker_{tests}.py")
    os._exit(int(pytest.main([*OPTIONS, "-k", name, file])))


def run(adapter: str, tests: str) -> int:
    """The exit code of unchanged tests; 1: one failed."""
    return os.waitstatus_to_exitcode(os.waitpid(start(adapter, tests, "test", None), 0)[1])


def survivors(adapter: str, mutants: Sequence[Mutant]) -> list[Mutant]:
    """Those whose test passes all the same. Several run at once: a mutant that hangs takes time and no core."""
    survived: list[Mutant] = []
    running: dict[int, Mutant] = {}
    waiting = list(reversed(mutants))
    while waiting or running:
        while waiting and len(running) < AT_ONCE:
            mutant = waiting.pop()
            running[start(adapter, mutant.tests, mutant.name, mutant)] = mutant
        child, status = os.wait()
        mutant = running.pop(child)
        if os.waitstatus_to_exitcode(status) not in KILLED:
            survived.append(mutant)
            print("survived:", mutant, flush=True)
    return survived


def tried(adapter: str) -> int:
    """0 if every mutant of an adapter was killed; says which were not."""
    mutants = ADAPTERS[adapter]
    fresh = [one for one in mutants if (ENGINES / adapter / f"{one.module}.py").read_text().count(one.old) == 1]
    stale = [mutant for mutant in mutants if mutant not in fresh]
    broken = [tests for tests in sorted({mutant.tests for mutant in mutants}) if run(adapter, tests) != 0]
    survived = survivors(adapter, fresh)
    for kind, found in (("does not apply", stale), ("fails by itself", broken)):
        for one in found:
            print(f"{kind}: {one}")
    print(f"{adapter}: {len(fresh) - len(survived)} of {len(mutants)} killed")
    return 1 if stale or broken or survived else 0


def main(adapters: Sequence[str]) -> int:
    """See the module."""
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    for package in SHARED:
        import_module(package)
    return max(map(tried, adapters or ADAPTERS))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
