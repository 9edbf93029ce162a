"""When the kv-indexer is asked."""

import itertools

from catenary_router.core.breaker import FAILURES, PROBE_S, Breaker


def test_three_failures_in_a_row_open_it_and_one_answer_closes_it() -> None:
    breaker = Breaker()
    for _ in range(FAILURES - 1):
        breaker.failed(1.0)
    breaker.succeeded()
    for _ in range(FAILURES):
        assert breaker.allows(1.0)
        breaker.failed(1.0)
    assert not breaker.allows(1.0 + PROBE_S / 2)
    breaker.succeeded()
    assert breaker.allows(1.0 + PROBE_S / 2)


def test_one_probe_a_second_goes_through() -> None:
    breaker = Breaker()
    for _ in range(FAILURES):
        breaker.failed(10.0)
    allowed = [at for at in range(100) if breaker.allows(10.0 + at / 10)]
    assert len(allowed) == 9
    assert all(later - earlier >= 10 for earlier, later in itertools.pairwise(allowed))
