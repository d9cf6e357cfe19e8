"""The process above the workers, without any: what it hears, and whom it tells."""

import logging
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from typing import cast

import pytest

from gateway.runtime.crew import Crew
from gateway.runtime.supervisor import Spawned, Supervisor


class FakeProcess:
    """One worker."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.status: int | None = None
        self.heard: list[int] = []

    def poll(self) -> int | None:
        """Its exit status."""
        return self.status

    def send_signal(self, number: int) -> None:
        """Note it."""
        self.heard.append(number)


class FakeHouse:
    """Workers that are nothing but a pipe each."""

    def __init__(self) -> None:
        self.processes: list[FakeProcess] = []
        self.pipes: list[int] = []

    def spawn(self, place: int) -> Spawned:
        """See `House`."""
        reading, writing = os.pipe()
        process = FakeProcess(1_000 + len(self.processes))
        self.processes.append(process)
        self.pipes.append(writing)
        return Spawned(cast("subprocess.Popen[bytes]", process), reading)

    def ended(self, pid: int) -> None:
        """See `House`."""

    def vacate(self, place: int) -> None:
        """See `House`."""


class Scene:
    """A supervisor of two workers, whose signals are put in by hand."""

    def __init__(self, house: FakeHouse, supervisor: Supervisor, signals: socket.socket) -> None:
        self.house = house
        self.supervisor = supervisor
        self.signals = signals

    def serves(self, index: int) -> None:
        """This worker says that it serves."""
        os.write(self.house.pipes[index], b"1")
        self.supervisor.turn()

    def hears(self, number: int) -> None:
        """The supervisor gets this signal."""
        self.signals.send(bytes([number]))
        self.supervisor.turn()


@pytest.fixture
def scene() -> Iterator[Scene]:
    """Both are starting."""
    house = FakeHouse()
    supervisor = Supervisor(Crew(2, leaves_within_s=1.0), house, hears_again=True)
    here, there = socket.socketpair()
    with here, there:
        here.setblocking(False)
        supervisor.listen(here)
        supervisor.look()
        yield Scene(house, supervisor, there)
        for each in house.pipes:
            os.close(each)


def test_two_that_die_together_do_not_take_the_rest_with_them(scene: Scene) -> None:
    """Where memory runs out they do; the supervisor must be the last to fall."""
    for index in range(2):
        scene.serves(index)
    scene.hears(signal.SIGUSR2)
    scene.supervisor.look()  # a successor is starting
    for each in scene.house.processes:
        each.status = -9
    os.close(scene.house.pipes.pop())
    scene.hears(signal.SIGCHLD)
    scene.supervisor.look()
    assert len(scene.house.processes) > 3


def test_a_starting_worker_hears_of_new_settings_once_it_serves(scene: Scene) -> None:
    """Before it would be its end, and afterwards it would go on with the old ones for ever."""
    scene.serves(0)
    scene.hears(signal.SIGHUP)
    first, second = scene.house.processes
    assert (first.heard, second.heard) == ([signal.SIGHUP], [])
    scene.serves(1)
    assert (first.heard, second.heard) == ([signal.SIGHUP], [signal.SIGHUP])


def test_whoever_is_told_to_go_while_it_starts_does_no_wrong(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    """A stop right after a start would be an error in the log, and a failed unit."""
    scene.serves(0)
    scene.hears(signal.SIGTERM)
    serving, starting = scene.house.processes
    starting.status, serving.status = -signal.SIGTERM, 0
    with caplog.at_level("INFO", "fairgate.workers"):
        scene.hears(signal.SIGCHLD)
    assert {record.levelname for record in caplog.records} == {"INFO"}
    assert scene.supervisor.status == 0


def test_whoever_dies_of_anything_else_at_the_end_is_told_of(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    """A worker that serves and breaks while it leaves has cut its streams off."""
    for index in range(2):
        scene.serves(index)
    scene.hears(signal.SIGTERM)
    first, second = scene.house.processes
    first.status, second.status = -signal.SIGTERM, -signal.SIGSEGV
    scene.hears(signal.SIGCHLD)
    faults = [each for each in caplog.records if each.levelno > logging.INFO]
    assert [each.levelname for each in faults] == ["ERROR", "ERROR"]
    assert scene.supervisor.status == 128 + signal.SIGTERM
