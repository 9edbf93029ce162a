"""Which addresses a tool may be connected to. The rule this file keeps: a name is judged by where it leads, each time.

| address                                             | may be connected to                            |
| --------------------------------------------------- | ---------------------------------------------- |
| public                                              | always                                         |
| loopback, private, shared (RFC 6890)                | when the registry names the host as private    |
| link-local, cloud metadata, multicast, unspecified  | when the registry names that very address      |

An IPv4 address inside an IPv6 one (mapped, 6to4, NAT64) is judged as itself, too.
"""

from collections.abc import Iterator
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address

Address = IPv4Address | IPv6Address
_METADATA = frozenset(
    map(ip_address, ("168.63.129.16", "169.254.169.254", "100.100.100.200", "192.0.0.192", "fd00:ec2::254"))
)
"""Where clouds tell their machines' secrets: Azure, AWS and most others, Alibaba, Oracle, AWS over IPv6."""
_NAT64 = IPv6Network("64:ff9b::/96")


def may_connect(host: str, address: str, private_host: str = "") -> bool:
    """Whether `address`, to which `host` was resolved, may be connected to."""
    return all(_allowed(host, one, private_host) for one in _faces(ip_address(address.partition("%")[0])))


def _allowed(host: str, address: Address, private_host: str) -> bool:
    if address in _METADATA or _goes_nowhere_good(address):
        return host == private_host and _same(host, address)
    return address.is_global or host == private_host


def _goes_nowhere_good(address: Address) -> bool:
    return address.is_link_local or address.is_multicast or address.is_unspecified


def _same(host: str, address: Address) -> bool:
    try:
        return address in _faces(ip_address(host))
    except ValueError:
        return False


def _faces(address: Address) -> Iterator[Address]:
    """The IPv4 addresses that an IPv6 address stands for, else the address itself."""
    if isinstance(address, IPv4Address):
        yield address
    elif (inner := address.ipv4_mapped or address.sixtofour) is not None:
        yield inner
    elif address in _NAT64:
        yield IPv4Address(int(address) & 0xFFFFFFFF)
    elif address.is_site_local:
        yield IPv6Address("fc00::")  # given up by RFC 3879, and private all the same
    else:
        yield address
