"""What every Catenary service shares: bus, presence, lifecycle, configuration, telemetry."""
