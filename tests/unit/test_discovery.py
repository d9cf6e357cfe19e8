"""The watch over a DNS name tells what came and what vanished, and holds still when it is blind."""

import asyncio
import socket

import pytest

from gateway.upstream.discovery import ADDRESSES_MAX, DnsWatch, resolved_by_system

Look = list[str] | Exception
FAILED = socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")


class Name:
    """A scripted resolver: each look-up takes the next answer; then the watch is stopped."""

    def __init__(self, *looks: Look, host: str = "vllm-headless", scheme: str = "http") -> None:
        self.looks = list(looks)
        self.asked: list[tuple[str, int]] = []
        self.pauses: list[float] = []
        self.changes: list[tuple[set[str], set[str]]] = []
        self.watch = DnsWatch(
            host,
            8000,
            5.0,
            on_change=lambda added, vanished: self.changes.append((added, vanished)),
            resolve=self.resolve,
            sleep=self.pause,
            scheme=scheme,
        )

    async def resolve(self, host: str, port: int) -> list[str]:
        """The next answer of the script."""
        self.asked.append((host, port))
        look = self.looks.pop(0)
        if isinstance(look, Exception):
            raise look
        return look

    async def pause(self, wait_s: float) -> None:
        """No time passes; the watch is cancelled when the script is over."""
        self.pauses.append(wait_s)
        if not self.looks:
            raise asyncio.CancelledError

    async def run(self) -> list[tuple[set[str], set[str]]]:
        """The changes told over the whole script."""
        with pytest.raises(asyncio.CancelledError):
            await self.watch.run()
        return self.changes


async def test_pods_that_come_and_go_are_told_once() -> None:
    """A scaled deployment would keep sending to pods that are gone, and ignore the new ones."""
    name = Name(
        ["10.0.0.2", "10.0.0.1"],
        ["10.0.0.1", "10.0.0.2"],
        ["10.0.0.2", "10.0.0.3"],
        ["10.0.0.2", "10.0.0.3", "10.0.0.3"],
    )
    assert await name.run() == [
        ({"http://10.0.0.1:8000", "http://10.0.0.2:8000"}, set()),
        ({"http://10.0.0.3:8000"}, {"http://10.0.0.1:8000"}),
    ]
    assert name.asked == [("vllm-headless", 8000)] * 4
    assert name.pauses == [5.0] * 4


@pytest.mark.parametrize("blind", [FAILED, TimeoutError(), UnicodeError("label too long"), []])
async def test_a_look_up_that_gives_nothing_changes_nothing(blind: Look) -> None:
    """A resolver's hiccup would drain the whole fleet at once."""
    name = Name(["10.0.0.1"], blind)
    assert await name.run() == [({"http://10.0.0.1:8000"}, set())]
    assert name.watch.urls == {"http://10.0.0.1:8000"}
    assert name.watch.last_error is not None
    assert name.watch.last_error.startswith("vllm-headless: ")


async def test_a_good_look_up_clears_the_error_and_tells_the_difference_to_the_last_good_one() -> (
    None
):
    """After the hiccup the changes of that time must still be seen."""
    name = Name(["10.0.0.1"], FAILED, ["10.0.0.2"])
    assert (await name.run())[1:] == [({"http://10.0.0.2:8000"}, {"http://10.0.0.1:8000"})]
    assert name.watch.last_error is None


async def test_ipv6_addresses_stand_in_brackets() -> None:
    """Without them the port reads as the last group of the address."""
    name = Name(["2001:db8::7", "fe80::1%eth0"], scheme="https")
    assert await name.run() == [
        ({"https://[2001:db8::7]:8000", "https://[fe80::1%25eth0]:8000"}, set())
    ]


async def test_a_name_with_too_many_addresses_is_cut_the_same_way_each_time() -> None:
    """A wildcard record must not open thousands of probes, nor drain and add at random."""
    everyone = [f"10.0.{high}.{low}" for high in range(8) for low in range(200)]
    name = Name(everyone, everyone[::-1])
    ((added, vanished),) = await name.run()
    assert (len(added), vanished) == (ADDRESSES_MAX, set())


async def test_the_system_resolver_knows_loopback() -> None:
    """The default must fit the interface that the fakes stand in for."""
    assert await resolved_by_system("127.0.0.1", 80) == ["127.0.0.1"]
