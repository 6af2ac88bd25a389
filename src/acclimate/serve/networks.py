"""Networks: groups of addresses that count as one client."""

from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

LOOPBACK = "127.0.0.1"  # the name of all clients on this machine
# Bits of an address that name a network: one client can easily have many addresses of it.
IPV4_BITS = 24
IPV6_BITS = 64


def network(address: str, ipv4: int = IPV4_BITS) -> str:
    """Return the network of an address: the first `ipv4` bits of an IPv4 address, the first 64 of an IPv6 address.

    Examples:
        >>> network("192.0.2.7"), network("::ffff:192.0.2.7"), network("192.0.2.7", ipv4=32), network("2001:db8::7")
        ('192.0.2.0/24', '192.0.2.0/24', '192.0.2.7/32', '2001:db8::/64')
    """
    found = _parsed(address)
    if found is None:  # such as that of a Unix socket
        return address or "unknown"
    return str(ip_network((found, ipv4 if found.version == 4 else IPV6_BITS), strict=False))


def client_of(address: str) -> str:
    """Return the client that an address belongs to: one for all loopback addresses, else its network.

    Examples:
        >>> client_of("192.0.2.7"), client_of("127.8.9.10"), client_of("::1")
        ('192.0.2.0/24', '127.0.0.1', '127.0.0.1')
    """
    found = _parsed(address)
    return LOOPBACK if found is not None and found.is_loopback else network(address)


def _parsed(address: str) -> IPv4Address | IPv6Address | None:
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return None
    return found if isinstance(found, IPv4Address) else found.ipv4_mapped or found
