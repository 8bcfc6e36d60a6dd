"""How bytes get from one process to another: files in a directory, or frames on a socket.

Every transport has two verbs, and may lose what it is given: a message sent while nobody listens is gone.
That is enough, since packets are chained and a request names the link it needs (`worker.py`).

    send(data)             never blocks for the reader
    receive(timeout)       the next message, or None

Left out: encryption and authentication. A directory is as private as its file permissions, a socket is
meant for one machine or a trusted network (an ssh tunnel, say).
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import time
from pathlib import Path
from typing import Protocol

LENGTH = 8
CHUNK = 1 << 20
LARGEST = 1 << 40
"""No frame is longer than a terabyte: a length beyond comes from a stranger."""


class Transport(Protocol):
    """One end of a two-way channel of whole messages."""

    def send(self, data: bytes) -> None:
        """Hand a message over; it may get lost."""

    def receive(self, timeout: float) -> bytes | None:
        """The next message, waiting up to `timeout` seconds for it."""

    def close(self) -> None:
        """Let go of files or sockets."""


class Directory:
    """Messages as files, each written whole before it gets its name, read once and deleted.

    Args:
        path: a folder that both processes see; made if it isn't there.
        side: "trainer" or "worker".
        poll: seconds between two looks.

    Raises:
        ValueError: for another side.
    """

    def __init__(self, path: str | Path, side: str, *, poll: float = 0.02) -> None:
        if side not in ("trainer", "worker"):
            raise ValueError(f'side={side!r}: choose "trainer" or "worker"')
        boxes = [Path(path) / "to-worker", Path(path) / "to-trainer"]
        self.outbox, self.inbox = boxes if side == "trainer" else reversed(boxes)
        self.poll, self._last = poll, 0
        for box in boxes:
            box.mkdir(parents=True, exist_ok=True)

    def send(self, data: bytes) -> None:
        """Write a file; its name sorts after those sent before, also by an earlier process."""
        self._last = max(self._last + 1, time.time_ns())
        name = f"{self._last:020d}"
        partial = self.outbox / f"{name}.{os.getpid()}.partial"
        with open(partial, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, self.outbox / f"{name}.safetensors")

    def receive(self, timeout: float) -> bytes | None:
        """The oldest message."""
        deadline = time.monotonic() + timeout
        while True:
            for file in sorted(self.inbox.glob("*.safetensors")):
                with contextlib.suppress(FileNotFoundError):  # another reader was faster
                    data = file.read_bytes()
                    file.unlink()
                    return data
            if time.monotonic() >= deadline:
                return None
            time.sleep(min(self.poll, max(0.0, deadline - time.monotonic())))

    def close(self) -> None:
        """Nothing to let go of."""


class Stream:
    """Frames (an 8-byte length, then the bytes) on a connected socket or a pair of them; for one thread.

    Raises:
        ConnectionError: on use after the other end is gone.
    """

    def __init__(self, connection: socket.socket) -> None:
        self.connection, self._buffer = connection, bytearray()
        connection.setblocking(False)

    def send(self, data: bytes) -> None:
        """Write one frame; reads meanwhile, so that two ends that send at once don't wait for each other."""
        left = memoryview(len(data).to_bytes(LENGTH, "little") + data)
        while left:
            readable, writable, _ = select.select([self.connection], [self.connection], [])
            if readable:
                self._read()
            if writable:
                with contextlib.suppress(BlockingIOError):
                    left = left[self.connection.send(left[:CHUNK]) :]

    def receive(self, timeout: float) -> bytes | None:
        """The next whole frame; a part of one is kept for the next call."""
        deadline = time.monotonic() + timeout
        while (frame := self._frame()) is None:
            ready, _, _ = select.select([self.connection], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                return None
            self._read()
        return frame

    def close(self) -> None:
        """Close the socket."""
        self.connection.close()

    def _read(self) -> None:
        try:
            received = self.connection.recv(CHUNK)
        except BlockingIOError:  # it looked ready and was not
            return
        if not received:
            raise ConnectionError("the other end closed the connection: start it again")
        self._buffer += received

    def _frame(self) -> bytes | None:
        length = int.from_bytes(self._buffer[:LENGTH], "little")
        if length > LARGEST:
            raise ConnectionError(
                f"a frame of {length} bytes was announced: the other end is no logra_lab process"
            )
        if len(self._buffer) < LENGTH + length or len(self._buffer) < LENGTH:
            return None
        frame = bytes(self._buffer[LENGTH : LENGTH + length])
        del self._buffer[: LENGTH + length]
        return frame


class Server:
    """The trainer's end of a socket: one worker at a time, which may die, come back or come late.

    Args:
        host, port: where to listen; port 0 picks a free one, see `address`.
    """

    def __init__(self, host: str = "127.0.0.1", port: int = 0) -> None:
        self._listener = socket.create_server((host, port))
        self._stream: Stream | None = None

    @property
    def address(self) -> tuple[str, int]:
        """Host and port that a worker connects to."""
        return self._listener.getsockname()[:2]

    def send(self, data: bytes) -> None:
        """Send to the worker; without one the message is lost."""
        self._accept(0.0)
        if self._stream is not None:
            try:
                self._stream.send(data)
            except OSError:
                self._drop()

    def receive(self, timeout: float) -> bytes | None:
        """The next message of the worker that is there, or of the next one to come."""
        deadline = time.monotonic() + timeout
        while True:
            left = max(0.0, deadline - time.monotonic())
            self._accept(left)
            if self._stream is None:
                return None
            try:
                return self._stream.receive(left)
            except OSError:
                self._drop()

    def close(self) -> None:
        """Stop listening."""
        self._drop()
        self._listener.close()

    def _accept(self, timeout: float) -> None:
        """Take the next worker, if there is none; one that waits replaces one that is there."""
        waiting = bool(select.select([self._listener], [], [], timeout if self._stream is None else 0.0)[0])
        if waiting:
            self._drop()
            self._stream = Stream(self._listener.accept()[0])

    def _drop(self) -> None:
        if self._stream is not None:
            self._stream.close()
        self._stream = None


def connect(host: str, port: int, timeout: float = 30.0) -> Stream:
    """The worker's end; tries until the trainer listens.

    Raises:
        ConnectionError: naming the address, if nobody listens in time.
    """
    deadline = time.monotonic() + timeout
    while True:
        try:
            return Stream(socket.create_connection((host, port), timeout=max(0.1, timeout)))
        except OSError as error:
            if time.monotonic() >= deadline:
                raise ConnectionError(
                    f"nobody listens at {host}:{port} ({error}): start the trainer first, or correct the address"
                ) from error
            time.sleep(0.1)
