"""Gateways over a Redis that fails over, one that is a cluster, and one that is encrypted."""

import asyncio
import subprocess
from pathlib import Path

import pytest

from gateway.cluster.ports import Bid
from tests.support.ports import free_port
from tests.support.redis_groups import clustered_redis, watched_redis
from tests.support.redis_parties import Party, parties, until
from tests.support.redis_server import running_redis


async def says(a: Party, b: Party, number: int) -> None:
    """What one posts the other hears."""
    a.say(b, number)
    await until(lambda: b.numbers[-1:] == [number])


@pytest.mark.parametrize("how", ["kill", "pause"])
async def test_after_a_failover_all_meet_at_the_new_master(tmp_path: Path, how: str) -> None:
    """Operators who run sentinels expect that nobody is woken at night."""
    with watched_redis(tmp_path) as group:
        async with parties(group.url, "a", "b") as (a, b):
            await says(a, b, 1)
            bid = Bid(gateway=a.own.gateway, wants=("p",))
            first = await a.own.lease.beat(bid)
            if how == "kill":
                group.master.kill()
            else:
                group.master.pause()
            await until(lambda: a.losses and b.losses)
            await until(lambda: group.knows() == group.replica.port)
            await until(lambda: a.own.transport.is_up and b.own.transport.is_up)
            await says(a, b, 2)
            second = await a.own.lease.beat(bid)
            assert second.leaders["p"].epoch >= first.leaders["p"].epoch
            if how == "pause":
                group.master.resume()


async def test_a_replica_is_not_taken_for_the_master(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What is published at a replica is heard there only, and a lease there is none."""
    with watched_redis(tmp_path) as group:
        task = asyncio.create_task(parties(group.replica.url, "a").__aenter__())
        await until(lambda: "is a replica, and not the master" in caplog.text)
        assert not task.done()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_all_meet_at_the_node_of_a_cluster_that_has_the_slot(tmp_path: Path) -> None:
    """Each gateway may be given the address of another node."""
    with clustered_redis(tmp_path) as nodes:
        urls = [f"redis+cluster://127.0.0.1:{node.port}" for node in nodes]
        async with parties(urls[0], "a") as (a,), parties(urls[1], "b") as (b,):
            await says(a, b, 1)
            await says(b, a, 2)
            assert a.own.link.is_sharded
            bid = Bid(gateway=a.own.gateway, wants=("p", "q"), keeps={"p": b"x"})
            standing = await a.own.lease.beat(bid)
            assert set(standing.leaders) == {"p", "q"}


async def test_an_encrypted_line_is_used_and_a_foreign_certificate_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Names of users cross the network; whoever claims to be Redis must be able to prove it."""
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    subprocess.run(  # noqa: ASYNC221 - nothing else goes on yet
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", str(key), "-out",
         str(certificate), "-days", "2", "-subj", "/CN=localhost", "-addext",
         "subjectAltName=DNS:localhost,IP:127.0.0.1"],
        check=True, capture_output=True,
    )  # fmt: skip
    port = free_port()
    options = (
        "--save", "", "--tls-port", str(port), "--tls-cert-file", str(certificate),
        "--tls-key-file", str(key), "--tls-auth-clients", "no",
    )  # fmt: skip
    with running_redis(tmp_path, options):
        url = f"rediss://127.0.0.1:{port}"
        async with parties(f"{url}?ca_file={certificate}", "a", "b") as (a, b):
            await says(a, b, 1)
        task = asyncio.create_task(parties(url, "c").__aenter__())
        await until(lambda: "certificate verify failed" in caplog.text.lower())
        assert not task.done()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
