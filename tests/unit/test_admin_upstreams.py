"""Where a replica that an operator adds may be: every way of writing an address that is barred."""

import ipaddress
from collections.abc import Sequence

import pytest

from gateway.admin.upstreams import ForbiddenUpstreamError, Upstreams, is_barred
from gateway.errors import BadRequestError

NAMES = {
    "gpu0": ["10.1.2.3"],
    "gpu1.example.org": ["192.0.2.7", "2001:db8::7"],
    "metadata.google.internal": ["169.254.169.254"],
    "half": ["10.1.2.3", "169.254.169.254"],
    "zone": ["fe80::1%eth0"],
    "nobody": [],
}


async def resolve(host: str, port: int) -> Sequence[str]:
    """The names above; literals are themselves."""
    if host in NAMES:
        return NAMES[host]
    try:
        return [str(ipaddress.ip_address(host))]
    except ValueError:
        raise OSError("no such name") from None


async def is_refused(rule: Upstreams, url: str) -> bool:
    """Whether a replica must not be at `url`."""
    params: list[str | None] = []
    try:
        await rule.check_url(url)
    except BadRequestError as error:
        params.append(error.param)
    assert params in ([], ["url"])
    return bool(params)


@pytest.mark.parametrize(
    "url",
    ["http://gpu0:8000", "http://gpu1.example.org", "http://127.0.0.1:8000", "http://[::1]:8000",
     "http://10.0.0.1", "http://192.168.1.1", "http://[fd00::1]", "http://GPU0.:8000"],
)  # fmt: skip
async def test_engines_are_found_where_engines_are(url: str) -> None:
    """Private networks and this machine are where most of them live."""
    assert not await is_refused(Upstreams(resolve=resolve), url)


@pytest.mark.parametrize(
    "url",
    ["http://169.254.169.254", "http://169.254.0.1:8000", "http://[fe80::1]:8000",
     "http://[fd00:ec2::254]", "http://100.100.100.200", "http://168.63.129.16",
     "http://metadata.google.internal", "http://half:8000", "http://zone",
     "http://[::ffff:169.254.169.254]", "http://[::ffff:a9fe:a9fe]", "http://[::169.254.169.254]",
     "http://[64:ff9b::a9fe:a9fe]", "http://[2002:a9fe:a9fe::1]", "http://0.0.0.0",
     "http://0.1.2.3", "http://[::]", "http://224.0.0.1", "http://[ff02::1]",
     "http://255.255.255.255", "http://nobody", "http://unheard.of", "http://METADATA.google.INTERNAL."],
)  # fmt: skip
async def test_what_only_this_machine_can_reach_is_barred(url: str) -> None:
    """The metadata service hands the machine's credentials to whoever asks from inside."""
    assert await is_refused(Upstreams(resolve=resolve), url)


@pytest.mark.parametrize(
    "written", ["2852039166", "0xa9fea9fe", "0251.0376.0251.0376", "169.254.43518"]
)
async def test_an_address_that_is_written_otherwise_is_the_same(written: str) -> None:
    """The system's own resolver reads all of these, and so must the rule."""
    assert await is_refused(Upstreams(), f"http://{written}:80")


@pytest.mark.parametrize(
    ("allowed", "url", "may"),
    [(["gpu0"], "http://gpu0:8000", True), (["gpu0"], "http://gpu1.example.org", False),
     (["*.example.org"], "http://gpu1.example.org", True),
     (["*.example.org"], "http://example.org.evil", False), (["*.org"], "http://gpu0", False),
     (["10.0.0.0/8"], "http://gpu0", True), (["10.0.0.0/8"], "http://half", False),
     (["10.0.0.0/8"], "http://127.0.0.1", False), (["10.1.2.3"], "http://gpu0", True),
     (["192.0.2.0/24"], "http://gpu1.example.org", False),
     (["192.0.2.0/24", "2001:db8::/32"], "http://gpu1.example.org", True),
     (["169.254.0.0/16"], "http://169.254.7.7", True), (["nobody"], "http://nobody", True)],
)  # fmt: skip
async def test_a_list_allows_what_it_names_and_nothing_else(
    allowed: list[str], url: str, may: bool
) -> None:
    """Where it is written, it is the whole rule; all addresses of a name must be in it."""
    assert await is_refused(Upstreams(allowed, resolve=resolve), url) is not may


async def test_a_dns_name_is_judged_in_the_same_way() -> None:
    """It is looked up again and again; what is behind it now says where it may lead."""
    rule = Upstreams(resolve=resolve)
    await rule.check_dns("gpu0:8000")
    with pytest.raises(ForbiddenUpstreamError) as caught:
        await rule.check_dns("half:8000")
    assert caught.value.param == "dns"
    rule.configure(["half"])
    await rule.check_dns("half:8000")


async def test_a_resolver_that_does_not_answer_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An operator's request must end."""
    import asyncio

    async def never(host: str, port: int) -> Sequence[str]:
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr("gateway.admin.upstreams.RESOLVE_S", 0.01)
    assert await is_refused(Upstreams(resolve=never), "http://slow")


def test_public_addresses_are_not_barred() -> None:
    """An engine may be rented."""
    assert not is_barred(ipaddress.ip_address("93.184.216.34"))
    assert not is_barred(ipaddress.ip_address("::1"))
