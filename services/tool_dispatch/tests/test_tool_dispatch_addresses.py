"""Which addresses a tool may be connected to, however they are written."""

from ipaddress import IPv4Address, IPv6Address

import pytest
from catenary_tool_dispatch.core.addresses import may_connect
from hypothesis import given
from hypothesis import strategies as st

PRIVATE = ["127.0.0.1", "127.8.9.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "100.64.0.1", "::1", "fd12::1", "fec0::1"]
NEVER_BY_NAME = [
    "169.254.169.254",
    "169.254.1.1",
    "168.63.129.16",
    "100.100.100.200",
    "fd00:ec2::254",
    "fe80::1%eth0",
    "0.0.0.0",
    "::",
    "224.0.0.1",
    "ff02::1",
]


def embeddings(address: str) -> list[str]:
    """The IPv6 addresses that stand for an IPv4 one."""
    number = int(IPv4Address(address))
    mapped = f"::ffff:{address}"
    six_to_four = str(IPv6Address((0x2002 << 112) | (number << 80) | 1))
    return [mapped, six_to_four, str(IPv6Address(int(IPv6Address("64:ff9b::")) | number))]


@pytest.mark.parametrize("address", ["1.1.1.1", "93.184.215.14", "2606:4700::1111", *embeddings("8.8.8.8")])
def test_public_addresses_are_open_to_every_tool(address: str) -> None:
    assert may_connect("example.org", address)


@pytest.mark.parametrize("address", [*PRIVATE, *(one for some in PRIVATE if "." in some for one in embeddings(some))])
def test_private_addresses_need_the_hosts_name_in_the_registry(address: str) -> None:
    assert not may_connect("example.org", address)
    assert not may_connect("example.org", address, "tools.internal")
    assert may_connect("tools.internal", address, "tools.internal")


@pytest.mark.parametrize("address", [*NEVER_BY_NAME, *embeddings("169.254.169.254"), *embeddings("168.63.129.16")])
def test_metadata_and_the_like_are_open_to_no_name(address: str) -> None:
    assert not may_connect("tools.internal", address, "tools.internal")


def test_metadata_is_open_to_who_names_that_very_address() -> None:
    assert may_connect("169.254.169.254", "169.254.169.254", "169.254.169.254")
    assert not may_connect("169.254.169.254", "169.254.169.253", "169.254.169.254")


@given(st.ip_addresses(v=4))
def test_an_address_inside_another_is_judged_as_itself(address: IPv4Address) -> None:
    verdict = may_connect("example.org", str(address))
    assert all(may_connect("example.org", one) == verdict for one in embeddings(str(address)))


@given(st.ip_addresses())
def test_what_python_calls_private_is_never_open_without_leave(address: IPv4Address | IPv6Address) -> None:
    assert not (address.is_private and may_connect("example.org", str(address)))
