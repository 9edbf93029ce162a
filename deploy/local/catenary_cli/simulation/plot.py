"""A report as a picture: who waits how long for the first token, and what it cost."""

from pathlib import Path

from catenary_protocols.errors import RequestError

from catenary_cli.simulation.report import Report


def plot(report: Report, path: Path) -> None:
    """Write a PNG. Raises `RequestError` (field `plot`) when there is nothing to draw with."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        message = "--plot needs matplotlib: pip install matplotlib"
        raise RequestError(message, code="unsupported", field="plot") from error
    figure = Figure(figsize=(11, 4), layout="constrained")
    curves, cached, balance = figure.subplots(1, 3, width_ratios=(2, 1, 1))
    for number, (policy, one) in enumerate(report.policies.items()):
        curves.plot(one.percentiles, range(101), label=policy, linewidth=2.5 if not number else 1.2)
    curves.set(xscale="log", xlabel="time to first token, ms", ylabel="% of turns", ylim=(0, 100))
    curves.grid(alpha=0.3)
    curves.legend()
    names = list(report.policies)[::-1]
    cached.barh(names, [report.policies[name].summary.hit_ratio for name in names])
    cached.set(xlabel="cached share of prompt tokens", xlim=(0, 1))
    balance.barh(names, [report.policies[name].summary.balance for name in names])
    balance.set(xlabel="load of the busiest worker / mean", yticklabels=[])
    figure.suptitle(f"{report.workload}, {report.workers} workers")
    figure.savefig(path, format="png", dpi=110)
