"""Addresses that count as one client."""

from ipaddress import ip_address

from hypothesis import given
from hypothesis import strategies as st

from acclimate.serve.networks import client_of, network


def test_addresses_of_one_machine_or_network_are_one_client():
    assert {client_of(f"127.{i % 7}.{i}.{i + 1}") for i in range(60)} == {"127.0.0.1"} == {client_of("::1")}
    assert client_of("::ffff:127.0.0.9") == "127.0.0.1"
    assert client_of("10.1.2.3") == client_of("10.1.2.250") == client_of("::ffff:10.1.2.9") == "10.1.2.0/24"
    assert client_of("10.1.3.3") != client_of("10.1.2.3")
    assert client_of("2001:db8:1:2::1") == client_of("2001:db8:1:2:ffff::9") == "2001:db8:1:2::/64"
    assert client_of("fe80::1%eth0") == "fe80::/64"
    assert client_of("") == "unknown"


@given(st.integers(0, 2**128 - 1))
def test_any_address_belongs_to_one_client(number):
    address = str(ip_address(number))
    assert client_of(client_of(address).partition("/")[0]) == client_of(address)


def test_connections_count_ipv4_addresses_one_by_one():
    assert network("10.0.0.1", ipv4=32) == network("::ffff:10.0.0.1", ipv4=32) != network("10.0.0.2", ipv4=32)
    assert network("2001:db8::1", ipv4=32) == network("2001:db8::ffff:2") != network("2001:db8:0:1::1")
    assert network("fe80::1%eth0", ipv4=32) == network("fe80::2")
    assert network("/run/a.sock") == "/run/a.sock"
