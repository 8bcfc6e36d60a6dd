"""Tests run without a network: a connection to another machine is refused in every Python that they start."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import urllib.request

import pytest

ELSEWHERE = "203.0.113.7"  # of the block that is kept for documentation


def test_a_connection_to_another_machine_is_refused() -> None:
    with socket.socket() as ours, pytest.raises(OSError, match=f"tried to reach {ELSEWHERE} port 80"):
        ours.settimeout(1)
        ours.connect((ELSEWHERE, 80))
    with socket.socket() as ours, pytest.raises(OSError, match="tried to reach"):
        ours.settimeout(1)
        ours.connect_ex((ELSEWHERE, 443))


def test_a_datagram_to_another_machine_is_refused() -> None:
    with socket.socket(type=socket.SOCK_DGRAM) as ours, pytest.raises(OSError, match="tried to reach"):
        ours.sendto(b"x", (ELSEWHERE, 53))


def test_the_name_of_another_machine_is_not_asked_for() -> None:
    with pytest.raises(OSError, match="asked for the address of 'example.org'"):
        socket.getaddrinfo("example.org", 443)
    with pytest.raises(OSError, match="asked for the address"):
        urllib.request.urlopen("https://example.org", timeout=1)


def test_this_machine_can_be_reached() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        answering = threading.Thread(target=lambda: server.accept()[0].close())
        answering.start()
        with socket.create_connection(("localhost", server.getsockname()[1]), timeout=5):
            pass
        answering.join(5)


def test_a_python_that_a_test_starts_is_refused_too() -> None:
    code = f"import socket; socket.create_connection(({ELSEWHERE!r}, 80), timeout=1)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1 and "NetworkRefused" in done.stderr
