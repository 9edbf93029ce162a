"""Dashboard and alerts ask for metrics and labels that the services have; Prometheus looks where they listen."""

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from catenary_protocols.errors import TABLE

from tests.contract.workspace import ROOT, tree

FOLDER = ROOT / "deploy" / "observability"
DASHBOARD = FOLDER / "grafana" / "dashboards" / "catenary.json"
KINDS = {"Counter", "Gauge", "Histogram", "CounterMetricFamily", "GaugeMetricFamily"}
GIVEN_BY_PROMETHEUS = {"job", "instance", "le"}
NAME = re.compile(r"\b(catenary_\w+)(\{[^}]*\})?")
GROUPED = re.compile(r"\bby \(([^)]*)\)")


def metrics() -> dict[str, set[str]]:
    """Samples of every `metrics.py`, with their labels."""
    found: dict[str, set[str]] = {}
    for path in [*ROOT.glob("services/*/*/metrics.py"), *ROOT.glob("shared/runtime/*/metrics.py")]:
        for name, kind, labels in declared(path):
            ends = ("_bucket", "_sum", "_count") if kind == "Histogram" else ("",)
            if kind == "CounterMetricFamily":
                ends = ("_total",)
            found |= {name + end: labels for end in ends}
    return found


def declared(path: Path) -> Iterator[tuple[str, str, set[str]]]:
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in KINDS:
            labels = node.args[2] if len(node.args) > 2 else None
            for keyword in node.keywords:
                if keyword.arg in {"labels", "labelnames"}:
                    labels = keyword.value
            name = node.args[0]
            assert isinstance(name, ast.Constant)
            yield str(name.value), node.func.id, set(ast.literal_eval(labels) if labels else ())


def expressions() -> Iterator[tuple[str, str]]:
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for one in panel.get("targets", ()):
            yield panel["title"], one["expr"]
    for rule in alerts():
        yield rule["alert"], rule["expr"]


def alerts() -> list[dict[str, Any]]:
    groups = yaml.safe_load((FOLDER / "alerts.yaml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


@pytest.mark.parametrize(("where", "expression"), [*expressions()])
def test_what_is_asked_for_exists(where: str, expression: str) -> None:
    known, labels = metrics(), set(GIVEN_BY_PROMETHEUS)
    named = NAME.findall(expression)
    assert named or "up" in expression, where
    for name, selector in named:
        assert name in known, f"{where}: {name}"
        labels |= known[name]
        assert set(re.findall(r"(\w+)\s*[=!]~?\"", selector)) <= known[name] | GIVEN_BY_PROMETHEUS, (
            f"{where}: {selector}"
        )
    for group in GROUPED.findall(expression):
        assert set(re.split(r",\s*", group)) <= labels, f"{where}: by ({group})"
    assert expression.count("(") == expression.count(")")


def test_legends_name_labels_that_are_left() -> None:
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for one in panel.get("targets", ()):
            grouped = {label for group in GROUPED.findall(one["expr"]) for label in re.split(r",\s*", group)}
            assert set(re.findall(r"\{\{(\w+)\}\}", one["legendFormat"])) <= grouped, panel["title"]


def test_codes_in_alerts_are_codes_of_the_mesh() -> None:
    codes = {
        code for rule in alerts() for codes in re.findall(r'code=~"([^"]+)"', rule["expr"]) for code in codes.split("|")
    }
    assert codes
    assert codes <= set(TABLE)


def test_every_alert_says_what_to_look_at() -> None:
    for rule in alerts():
        assert rule["annotations"].keys() == {"summary", "look"}, rule["alert"]


def test_prometheus_looks_where_services_listen() -> None:
    services = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())["services"]
    jobs = yaml.safe_load((FOLDER / "prometheus.yaml").read_text())["scrape_configs"]
    admin = int(re.findall(r"CATENARY_ADMIN_PORT=(\d+)", (ROOT / "deploy" / "Dockerfile").read_text())[0])
    found = {name: job["dns_sd_configs"][0]["port"] for job in jobs for name in job["dns_sd_configs"][0]["names"]}
    built = {name for name, one in services.items() if "build" in one and name != "provision"}
    assert found == dict.fromkeys(built, admin)  # the APIs' port tells no metrics once there are keys
    for name in built:
        port = 8000 if name == "frontend" else admin
        assert f":{port}/ready" in " ".join(services[name]["healthcheck"]["test"])
