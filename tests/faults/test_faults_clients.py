"""Clients that leave or do not read: the mesh lets go of their turns, and is not held by them."""

import asyncio
import json
import socket
from typing import Any

import pytest

from tests.faults.stand import PATIENCE_S, Stand
from tests.faults.turns import LONG, Clients

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(150)]
ENDLESS: dict[str, Any] = {**LONG, "max_tokens": 100_000}


async def test_the_turn_of_a_client_that_leaves_is_dropped_everywhere(clients: Clients, stand: Stand) -> None:
    async with clients.turns(ENDLESS) as (turn,):
        await turn.begun()
        await stand.watch.holding("worker", turn.turn_id)
    await stand.watch.until("nobody names the turn", lambda: not stand.watch.holder("", turn.turn_id))


async def test_a_client_that_does_not_read_holds_up_nobody_and_no_drain(clients: Clients, stand: Stand) -> None:
    await clients.truth(LONG)
    with deaf(stand, ENDLESS):
        await stand.watch.until("it runs", lambda: bool(stand.watch.named("worker")))
        async with clients.turns(LONG) as (turn,):
            await clients.same(turn, LONG)
        code = await asyncio.to_thread(stand.parts["frontend-1"].process.stop, PATIENCE_S)
    assert code == 0


def deaf(stand: Stand, request: dict[str, Any]) -> socket.socket:
    """A connection that asks, and then reads nothing."""
    host, _, port = stand.parts["frontend-1"].url.removeprefix("http://").partition(":")
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect((host, int(port)))
    body = json.dumps({**request, "stream": True}).encode()
    kind = "Content-Type: application/json"
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}\r\n{kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    connection.sendall(head.encode() + body)
    return connection
