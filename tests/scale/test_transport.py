"""Messages arrive whole and in order, or not at all; a peer that dies and comes back is served again."""

from __future__ import annotations

import socket
import threading
import time

import pytest

from logra_lab.scale.transport import Directory, Server, Stream, connect


def pair(kind: str, folder):
    if kind == "directory":
        return Directory(folder, "trainer"), Directory(folder, "worker")
    if kind == "pipe":
        return tuple(Stream(end) for end in socket.socketpair())
    server = Server()
    client = connect(*server.address)
    return server, client


@pytest.fixture(params=["directory", "pipe", "server"])
def ends(request, tmp_path):
    both = pair(request.param, tmp_path)
    yield both
    for end in both:
        end.close()


def test_messages_arrive_whole_and_in_order_both_ways(ends):
    trainer, worker = ends
    messages = [b"", b"a", bytes(range(256)) * 5, b"last"]
    assert trainer.receive(0.0) is None and worker.receive(0.01) is None
    for message in messages:
        worker.send(message)
    assert [trainer.receive(2.0) for _ in messages] == messages
    for message in messages:
        trainer.send(message)
    assert [worker.receive(2.0) for _ in messages] == messages
    assert worker.receive(0.01) is None


def test_two_ends_that_send_much_at_once_dont_wait_for_each_other(ends):
    large = [bytes([number]) * 5_000_000 for number in range(2)]
    received: dict[int, bytes | None] = {}

    def exchange(number: int) -> None:
        ends[number].send(large[number])
        received[number] = ends[number].receive(20.0)

    ends[0].receive(0.0)  # a server takes its client
    threads = [threading.Thread(target=exchange, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20.0)
    assert received == {0: large[1], 1: large[0]}


def test_a_file_that_is_not_finished_is_not_read(tmp_path):
    trainer, worker = pair("directory", tmp_path)
    (trainer.outbox / "00000000000000000001.7.partial").write_bytes(b"half")
    assert worker.receive(0.05) is None
    trainer.send(b"whole")
    assert worker.receive(0.05) == b"whole"
    assert [file.suffix for file in trainer.outbox.iterdir()] == [".partial"]


def test_a_restarted_sender_keeps_the_order_of_files(tmp_path):
    for message in (b"1", b"2", b"3"):
        Directory(tmp_path, "trainer").send(message)
    worker = Directory(tmp_path, "worker")
    assert [worker.receive(0.0) for _ in range(3)] == [b"1", b"2", b"3"]


def test_a_part_of_a_frame_is_kept_until_the_rest_comes():
    left, right = socket.socketpair()
    stream = Stream(right)
    left.sendall((3).to_bytes(8, "little") + b"ab")
    assert stream.receive(0.05) is None
    left.sendall(b"c" + (1).to_bytes(8, "little"))
    assert stream.receive(0.05) == b"abc" and stream.receive(0.05) is None
    left.sendall((1 << 60).to_bytes(8, "little"))
    with pytest.raises(ConnectionError, match="is no logra_lab process"):
        for _ in range(2):
            stream.receive(0.05)


def test_a_server_without_a_worker_loses_messages_and_serves_the_next_one():
    server = Server()
    server.send(b"lost")
    assert server.receive(0.01) is None
    first = connect(*server.address)
    first.send(b"hello")
    assert server.receive(2.0) == b"hello"
    first.close()
    assert server.receive(0.05) is None
    second = connect(*server.address)
    second.send(b"again")
    assert server.receive(2.0) == b"again"
    third = connect(*server.address)  # the second hangs without closing
    third.send(b"third")
    time.sleep(0.05)
    assert server.receive(2.0) == b"third"
    with pytest.raises(ConnectionError, match="closed the connection"):
        second.receive(2.0)
    server.close()


def test_nobody_listening_is_said_with_the_address():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with pytest.raises(ConnectionError, match=f"nobody listens at 127.0.0.1:{port}"):
            connect("127.0.0.1", port, timeout=0.2)
    with pytest.raises(ValueError, match="side='nobody'"):
        Directory(".", "nobody")
