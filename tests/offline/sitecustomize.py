"""Refuse connections to anywhere but this machine, in this Python and in those it starts.

tests/conftest.py puts this folder on PYTHONPATH, so that every Python which a test starts (a kernel, a worker,
JupyterLab) imports it first. An audit hook can't be taken back by the code it watches. Left out: what is not Python
(Chromium, gloo), and a Python started with -I or with an environment of its own.
"""

import ipaddress
import sys


class NetworkRefused(OSError):
    """A test tried to reach another machine; tests need no network."""


def is_here(host):
    """True for this machine: no name, localhost, a loopback or unspecified address."""
    if host is None or host in ("", b"", "localhost", b"localhost"):
        return True
    try:
        address = ipaddress.ip_address(host.decode() if isinstance(host, bytes) else host)
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified


def refuse(event, arguments):
    """The audit hook: connections and datagrams to other machines, and questions for their names."""
    if event in ("socket.connect", "socket.sendto"):
        address = arguments[1]
        if isinstance(address, tuple) and not is_here(address[0]):
            raise NetworkRefused(f"a test tried to reach {address[0]} port {address[1]}")
    elif event == "socket.getaddrinfo" and not is_here(arguments[0]):
        import socket

        if arguments[0] != socket.gethostname():
            raise NetworkRefused(f"a test asked for the address of {arguments[0]!r}")


def install():
    """Watch this process from now on; once is enough."""
    if not getattr(sys, "_logra_lab_offline", False):
        sys._logra_lab_offline = True
        sys.addaudithook(refuse)


install()
