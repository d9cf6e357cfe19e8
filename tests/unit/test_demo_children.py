"""The demo's processes: none outlives it, and one that dies is named."""

import asyncio
import os
import socket
from pathlib import Path

import pytest

from gateway.demo.children import ChildFailedError, Children, free_port_from
from gateway.demo.site import emulate_arguments, sees_all, serve_arguments


async def test_leaving_ends_every_process(tmp_path: Path) -> None:
    """A forgotten emulator would hold its port and a processor until the next reboot."""
    async with Children(tmp_path) as children:
        started = [await children.start(f"sleeper {n}", emulate_arguments(0, n)) for n in (1, 2)]
        assert all(child.process.returncode is None for child in started)
    for child in started:
        assert child.process.returncode is not None
        with pytest.raises(ProcessLookupError):
            os.kill(child.process.pid, 0)


async def test_processes_end_when_the_demo_fails(tmp_path: Path) -> None:
    """A bug of ours must not leave processes on other people's machines."""
    started = []

    async def broken_demo() -> None:
        async with Children(tmp_path) as children:
            started.append(await children.start("sleeper", emulate_arguments(0, 1)))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await broken_demo()
    assert [child.process.returncode is None for child in started] == [False]


async def test_the_first_to_die_is_named_with_its_last_words(tmp_path: Path) -> None:
    """Who starts it on a fresh machine has nothing but this message."""
    async with Children(tmp_path) as children:
        await children.start("sleeper", emulate_arguments(0, 1))
        await children.start("wrong one", ["emulate", "--profile", "abacus"])
        with pytest.raises(ChildFailedError, match=r"wrong one ended with status 2") as failure:
            async with asyncio.timeout(20):
                await children.watch()
    assert "abacus" in str(failure.value)


def test_a_taken_port_is_passed_over() -> None:
    """8080 is the most popular port there is."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert free_port_from(port) > port


def test_a_replica_varies_its_answers() -> None:
    """Answers of one length would end in step, and waits would come in steps of a second."""
    arguments = emulate_arguments(9001, 1)
    assert arguments[arguments.index("--output-jitter") + 1] == "0.5"


def test_a_gateway_gets_all_replicas() -> None:
    """One replica behind one gateway and two behind the other would be no comparison."""
    arguments = serve_arguments(8080, "fifo", ["http://a", "http://b"])
    assert arguments[-4:] == ["--replica", "http://a", "--replica", "http://b"]
    assert arguments[arguments.index("--policy") + 1] == "fifo"


@pytest.mark.parametrize(
    ("ups", "is_ready"),
    [([True, True], True), ([True, False], False), ([True], False), ([], False)],
)
def test_ready_means_both_replicas(ups: list[bool], is_ready: bool) -> None:
    """Half the capacity at the start would be blamed on the policy."""
    replicas = {f"replica-{n}": {"up": up} for n, up in enumerate(ups)}
    assert sees_all({"replicas": replicas}) is is_ready
