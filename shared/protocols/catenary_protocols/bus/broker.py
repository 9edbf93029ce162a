"""What the broker tells of itself, as far as we listen: nats-server's own JSON, of which we read what we need."""

from catenary_protocols.wire import Wire


class Client(Wire, frozen=True):
    """A connection of an account. Services name theirs by their instance."""

    name: str = ""


class Disconnected(Wire, frozen=True):
    """A connection that ended, on `BROKER_DISCONNECTS`: its process died, or it lost its way to the broker."""

    client: Client
