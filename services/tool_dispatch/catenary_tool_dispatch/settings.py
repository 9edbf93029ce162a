"""Settings of tool-dispatch."""

from dataclasses import dataclass

from catenary_runtime.config import Settings, option


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolDispatchSettings(Settings):
    """Runs the calls that the mesh is to run."""

    registry: str = option("", "Path of tools.toml; left out: the demo registry.")
    history_s: float = option(900.0, "How far back the tool plane is read at the start, in seconds.")
    ledger_size: int = option(50_000, "Calls that are remembered: open ones, and closed ones.")
