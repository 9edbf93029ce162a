"""Runs `ops` and `bus` cases, scenarios in words, as the tests that show every check of theirs."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

OUTCOME = re.compile(r"(\S+::.+) (PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS)\b.*\[ *\d+%\]")
"""A test's line in the output of `pytest -v`."""
ROOT = Path(__file__).parents[2]
CLIENTS = "tests/mesh/test_mesh_ops_clients.py::"
ENGINE = "tests/mesh/test_mesh_ops_engine.py::"
LOAD = "tests/mesh/test_mesh_ops_load.py::"
PARSERS = "shared/parsers/tests/test_parsers_ops.py::"
RUNTIME = "shared/runtime/tests/test_runtime_ops.py::"
DISPATCH = "services/tool_dispatch/tests/test_tool_dispatch_calls.py::"
CRASHES = "services/tool_dispatch/tests/test_tool_dispatch_crashes.py::"
TOKENIZER = "services/tokenizer/tests/"
FRONTEND = "services/frontend/tests/test_frontend_turns.py::"
WORKER = "services/worker/tests/"
ROUTER = "services/router/tests/test_router_accounting.py::"
INDEXER = "services/kv_indexer/tests/"
FAULTS = "tests/faults/test_faults_broker.py::"

TESTS: dict[str, tuple[str, ...]] = {
    "ops-001": (
        f"{CLIENTS}test_a_client_that_leaves_its_stream_stops_the_engine",
        f"{ROUTER}test_whatever_ends_turns_no_load_is_left",
    ),
    "ops-002": (f"{CLIENTS}test_a_client_that_leaves_while_it_waits_stops_the_engine",),
    "ops-003": (f"{CLIENTS}test_of_a_turn_that_ends_nothing_is_left_and_nothing_aborted",),
    "ops-004": (f"{ENGINE}test_an_engine_that_fails_in_the_middle_ends_the_stream_in_one_error",),
    "ops-005": (f"{ENGINE}test_an_engine_that_fails_before_its_first_token_is_an_http_status",),
    "ops-006": (f"{ENGINE}test_good_calls_behind_a_broken_one_still_come",),
    "ops-007": (f"{CLIENTS}test_a_client_that_left_may_ask_again_at_once",),
    "ops-008": (f"{CLIENTS}test_without_a_limit_a_model_says_all_it_has_to_say",),
    "ops-009": (
        f"{LOAD}test_a_body_of_six_megabytes_is_taken",
        f"{LOAD}test_a_history_of_six_megabytes_of_text_is_refused_by_the_limit_that_it_names",
        f"{LOAD}test_a_body_over_the_limit_names_it",
    ),
    "ops-010": (f"{LOAD}test_clients_that_hardly_read_are_cut_and_hold_up_nobody",),
    "ops-011": (f"{PARSERS}test_twice_the_argument_costs_about_twice_the_time",),
    "ops-012": (
        f"{PARSERS}test_a_long_argument_is_told_while_it_is_written",
        f"{ENGINE}test_a_long_argument_reaches_the_client_while_it_is_written",
    ),
    "ops-013": (f"{DISPATCH}test_of_three_calls_at_once_each_gets_its_own_result",),
    "ops-014": (f"{DISPATCH}test_a_tool_nobody_has_is_answered_at_once",),
    "ops-015": (
        f"{DISPATCH}test_arguments_that_do_not_fit_are_refused_and_nothing_runs",
        f"{ENGINE}test_a_history_with_arguments_that_are_no_json_is_rendered",
    ),
    "ops-016": (f"{ENGINE}test_a_call_that_the_limit_cut_is_not_run_and_the_model_is_told",),
    "ops-017": (
        f"{DISPATCH}test_output_is_bounded_and_valid_text",
        "services/tool_dispatch/tests/test_tool_dispatch_python.py::test_what_a_function_returns_becomes_text",
        f"{ENGINE}test_a_result_that_is_no_text_is_taken_as_far_as_it_is",
    ),
    "ops-018": (f"{LOAD}test_turns_at_the_same_time_share_nothing",),
    "ops-019": (
        "shared/parsers/tests/test_parsers_cases.py::test_every_case_of_a_format_ends_the_same_in_every_way_of_cutting",
        f"{TOKENIZER}test_tokenizer_service_stream.py::test_cutting_the_tokens_anywhere_never_changes_the_result",
        f"{TOKENIZER}test_tokenizer_service_stream.py::test_eight_tokens_a_step_say_what_one_a_step_says",
    ),
    "ops-020": (
        f"{TOKENIZER}test_tokenizer_service_odd.py::test_what_is_odd",
        f"{ENGINE}test_an_answer_whose_call_became_none_is_counted_and_logged",
        f"{ENGINE}test_what_was_said_stays_out_of_the_log_unless_it_is_asked_for",
    ),
    "bus-001": (
        f"{LOAD}test_a_prompt_larger_than_the_context_is_refused_at_once_and_once",
        f"{TOKENIZER}test_tokenizer_service_turns.py::test_a_prompt_that_the_bus_cannot_carry_is_refused_and_not_moved",
        f"{FRONTEND}test_a_request_that_the_bus_cannot_carry_is_refused",
        "shared/runtime/tests/test_runtime_bus.py::test_a_broker_with_a_low_limit_is_refused_at_once",
    ),
    "bus-002": (f"{WORKER}test_worker_mirror_journal.py::test_a_batch_too_large_for_a_message_is_split_without_a_gap",),
    "bus-003": (
        f"{INDEXER}test_kv_indexer_service.py::test_events_lost_while_an_indexer_stands_still_are_noticed_and_made_up_for",
    ),
    "bus-004": (
        f"{FAULTS}test_every_turn_completes_when_the_broker_is_killed_and_comes_back",
        f"{WORKER}test_worker_service_faults.py::test_a_broker_that_is_away_for_long_kills_no_turn",
        f"{INDEXER}test_kv_indexer_service.py::test_after_an_outage_of_the_broker_the_index_is_right_again",
    ),
    "bus-005": (f"{RUNTIME}test_a_reader_that_keeps_up_has_nothing_pending",),
    "bus-006": (f"{RUNTIME}test_a_million_kv_events_leave_nothing_on_disk",),
    "bus-007": (f"{LOAD}test_a_worker_that_nobody_answers_for_is_left_at_once",),
    "bus-008": (
        f"{TOKENIZER}test_tokenizer_service_turns.py::test_a_lost_tail_is_asked_for_after_two_beats",
        f"{WORKER}test_worker_core_turns.py::test_an_end_that_may_be_lost_can_be_asked_for_though_all_tokens_came",
        f"{ROUTER}test_whatever_ends_turns_no_load_is_left",
    ),
    "bus-009": (
        f"{TOKENIZER}test_tokenizer_service_core.py::test_generated_is_always_a_prefix_of_the_truth",
        f"{FRONTEND}test_batches_in_any_order_and_number_deliver_a_log_once_and_in_order",
        f"{FRONTEND}test_repeats_and_frames_of_older_attempts_change_nothing",
    ),
    "bus-010": (
        f"{RUNTIME}test_a_full_stream_stalls_nobody_and_shows_its_hole",
        f"{CRASHES}test_a_call_nobody_answers_expires_at_its_deadline_and_a_later_result_is_marked",
    ),
}


def run(case: dict[str, Any]) -> None:
    """Run the tests of one case.

    Raises:
        AssertionError: nobody here knows the case, or a test of it did not pass.
    """
    assert case["id"] in TESTS, "no test shows this"
    outcomes = _outcomes()
    for test in TESTS[case["id"]]:
        runs = {name: how for name, how in outcomes.items() if name == test or name.startswith(f"{test}[")}
        assert runs, f"{test} did not run"
        assert set(runs.values()) == {"PASSED"}, {name: how for name, how in runs.items() if how != "PASSED"}


@cache
def _outcomes() -> dict[str, str]:
    """What became of every test, by name: all run at once, so that each mesh of theirs is started once."""
    names = sorted({test for tests in TESTS.values() for test in tests})
    command = [sys.executable, "-m", "pytest", "-v", "--no-header", "-p", "no:cacheprovider", *names]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    outcomes = {found[1]: found[2] for found in map(OUTCOME.fullmatch, done.stdout.splitlines()) if found}
    assert outcomes, (done.stdout + done.stderr)[-500:]
    return outcomes
