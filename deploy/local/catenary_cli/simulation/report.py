"""What a run came to: times to first token, cache, balance over workers, fairness over sessions.

Definitions
- `hit_ratio`: cached prompt tokens over prompt tokens; `prefill_tokens`: those that were computed.
- `predicted_error`: prompt tokens the router expected in the cache and were not there, or the reverse, over all.
- `session_wait_ms`: what the middle one of the sessions waits for its first tokens, on average.
- `balance`: load of the busiest worker over the mean; load is turns times the seconds they were there.
- `fairness`: Jain's index over sessions of what each got over what it should have got. Got: tokens that had been
  served (prompts with a first token, output in part) when the last turn of all was asked. Should have got: its share
  when what all got is shared out equally, nobody getting more than it had asked for until then (max-min).
"""

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence

import msgspec

from catenary_cli.simulation.mesh import Asked

HEADER = (
    "policy",
    "mean ms",
    "p50 ms",
    "p90 ms",
    "p99 ms",
    "session ms",
    "turn ms",
    "cached",
    "computed",
    "balance",
    "fairness",
    "refused",
)


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """One policy's figures; see the module. Times in milliseconds, but `seconds`, which is virtual."""

    turns: int
    refused: int
    seconds: float
    ttft_mean_ms: float
    ttft_p50_ms: float
    ttft_p90_ms: float
    ttft_p99_ms: float
    session_wait_ms: float
    turn_p50_ms: float
    hit_ratio: float
    prefill_tokens: int
    predicted_error: float
    balance: float
    fairness: float


class PolicyReport(msgspec.Struct, frozen=True, kw_only=True):
    """Attributes: medians over the runs; `percentiles` of the time to first token, ms, 0 to 100, of the first run."""

    summary: Summary
    percentiles: tuple[float, ...]


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """A comparison; `made_with` is the command."""

    workload: str
    workers: int
    runs: int
    made_with: str
    policies: dict[str, PolicyReport]


def policy_report(runs: Sequence[Sequence[Asked]], workers: int) -> PolicyReport:
    """Of at least one run."""
    rows = [msgspec.structs.asdict(summarise(asked, workers)) for asked in runs]
    medians = {
        key: (statistics.median_low if isinstance(value, int) else statistics.median)(row[key] for row in rows)
        for key, value in rows[0].items()
    }
    waits = _waits(runs[0])
    return PolicyReport(
        summary=msgspec.convert({key: round(value, 4) for key, value in medians.items()}, Summary, strict=False),
        percentiles=tuple(round(_at(waits, share / 100), 3) for share in range(101)),
    )


def summarise(asked: Sequence[Asked], workers: int) -> Summary:
    """One run's figures."""
    served = [one for one in asked if one.worker]
    waits = _waits(asked)
    prompt = sum(one.prompt for one in served)
    cached = sum(one.cached for one in served)
    return Summary(
        turns=len(asked),
        refused=len(asked) - len(served),
        seconds=max(one.at + one.ended_s for one in asked) - min(one.at for one in asked),
        ttft_mean_ms=statistics.fmean(waits) if waits else 0.0,
        ttft_p50_ms=_at(waits, 0.5),
        ttft_p90_ms=_at(waits, 0.9),
        ttft_p99_ms=_at(waits, 0.99),
        session_wait_ms=_session_wait_ms(served),
        turn_p50_ms=_at(sorted(1000 * one.ended_s for one in served), 0.5),
        hit_ratio=cached / max(1, prompt),
        prefill_tokens=prompt - cached,
        predicted_error=sum(abs(one.predicted - one.cached) for one in served) / max(1, prompt),
        balance=balance(served, workers),
        fairness=fairness(asked),
    )


def balance(served: Sequence[Asked], workers: int) -> float:
    """Load of the busiest worker over the mean."""
    load: dict[str, float] = defaultdict(float)
    for one in served:
        load[one.worker] += one.ended_s
    total = sum(load.values())
    return max(load.values()) * workers / total if total else 1.0


def fairness(asked: Sequence[Asked]) -> float:
    """Jain's index; 1 is fair, 1/n is all for one of n."""
    last = max(one.at for one in asked)
    wanted: dict[str, float] = defaultdict(float)
    got: dict[str, float] = defaultdict(float)
    for one in asked:
        if one.at < last:
            wanted[one.session] += one.prompt + one.output
            got[one.session] += _served(one, last - one.at)
    due = max_min(wanted, sum(got.values()))
    shares = [got[session] / share for session, share in due.items() if share]
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else 1.0


def max_min(wanted: Mapping[str, float], total: float) -> dict[str, float]:
    """`total` shared out equally, nobody getting more than it wants."""
    due: dict[str, float] = {}
    for place, (session, most) in enumerate(sorted(wanted.items(), key=lambda item: item[1])):
        due[session] = min(most, total / (len(wanted) - place))
        total -= due[session]
    return due


def _served(one: Asked, within_s: float) -> float:
    """Tokens it got so soon."""
    if not one.worker or within_s < one.first_token_s:
        return 0.0
    decoding_s = max(1e-9, one.ended_s - one.first_token_s)
    return one.prompt + one.output * min(1.0, (within_s - one.first_token_s) / decoding_s)


def table(report: Report) -> list[tuple[str, ...]]:
    """Header and a row for each policy."""
    rows: list[tuple[str, ...]] = [HEADER]
    for policy, one in report.policies.items():
        s = one.summary
        rows.append(
            (
                policy,
                *(
                    f"{value:,.1f}"
                    for value in (s.ttft_mean_ms, s.ttft_p50_ms, s.ttft_p90_ms, s.ttft_p99_ms, s.session_wait_ms)
                ),
                f"{s.turn_p50_ms:,.0f}",
                f"{s.hit_ratio:.3f}",
                f"{s.prefill_tokens:,}",
                f"{s.balance:.2f}",
                f"{s.fairness:.3f}",
                str(s.refused),
            )
        )
    return rows


def _session_wait_ms(served: Sequence[Asked]) -> float:
    waits: dict[str, list[float]] = defaultdict(list)
    for one in served:
        waits[one.session].append(1000 * one.first_token_s)
    return statistics.median(map(statistics.fmean, waits.values())) if waits else 0.0


def _waits(asked: Sequence[Asked]) -> list[float]:
    return sorted(1000 * one.first_token_s for one in asked if one.worker)


def _at(values: Sequence[float], share: float) -> float:
    """The value below which this share of sorted values lies."""
    return values[min(len(values) - 1, int(len(values) * share))] if values else 0.0
