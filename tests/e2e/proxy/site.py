"""Real proxies, started from the very recipes in deploy/: only names, ports and files are replaced.

What a recipe says about streams, time limits and connections is never touched here.
"""

import asyncio
import os
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests.support.ports import free_port

ROOT = Path(__file__).resolve().parents[3]
DEPLOY = ROOT / "deploy"
START_S_MAX = 15.0


@dataclass(frozen=True)
class Certificate:
    """A certificate for this machine, signed by itself."""

    chain: Path
    key: Path

    def trusted(self) -> ssl.SSLContext:
        """For clients that trust it and nothing else."""
        return ssl.create_default_context(cafile=str(self.chain))


@dataclass(frozen=True)
class Started:
    """How to start one proxy: its command, and what its own files are."""

    command: list[str]
    scheme: str


Recipe = Callable[[Path, int, int, Certificate], Started]
"""Folder, port to listen on, port of the gateway, certificate."""


def certificate_in(folder: Path) -> Certificate:
    """Make one; skips the test where there is no openssl."""
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl")
    made = Certificate(folder / "chain.pem", folder / "key.pem")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", str(made.key),
         "-out", str(made.chain), "-days", "2", "-subj", "/CN=localhost", "-addext",
         "subjectAltName=DNS:localhost,IP:127.0.0.1"],
        check=True, capture_output=True,
    )  # fmt: skip
    return made


def adapted(path: Path, changes: Mapping[str, str]) -> str:
    """The recipe with these texts replaced, each of which is there."""
    text = path.read_text()
    for old, new in changes.items():
        assert old in text, f"{path.name} no longer says {old!r}"
        text = text.replace(old, new)
    return text


def nginx(folder: Path, port: int, gateway: int, certificate: Certificate) -> Started:
    """deploy/proxy/nginx.conf inside the least that nginx wants around it."""
    program = _found("nginx", Path("/usr/sbin/nginx"))
    site = adapted(
        DEPLOY / "proxy" / "nginx.conf",
        {
            "127.0.0.1:8080": f"127.0.0.1:{gateway}",
            "listen 443": f"listen 127.0.0.1:{port}",
            "gateway.example.org": "localhost",
            "/etc/ssl/fairgate/fullchain.pem": str(certificate.chain),
            "/etc/ssl/fairgate/privkey.pem": str(certificate.key),
        },
    )
    (folder / "site.conf").write_text(site)
    user = "user root;" if os.geteuid() == 0 else ""
    scratch = "".join(
        f"{name}_temp_path {folder}/{name};"
        for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    main = folder / "nginx.conf"
    main.write_text(
        f"{user} daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log stderr warn;"
        f"events {{}} http {{ access_log off; {scratch} include {folder}/site.conf; }}"
    )
    return Started([program, "-p", str(folder), "-e", "stderr", "-c", str(main)], "https")


def caddy(folder: Path, port: int, gateway: int, certificate: Certificate) -> Started:
    """deploy/proxy/Caddyfile, with a certificate of ours instead of one that it fetches."""
    program = _found("caddy")
    site = adapted(
        DEPLOY / "proxy" / "Caddyfile",
        {
            "{\n\tservers {": "{\n\tadmin off\n\tauto_https disable_redirects\n\tservers {",
            "gateway.example.org {\n": f"https://127.0.0.1:{port}, https://localhost:{port} {{\n"
            f"\ttls {certificate.chain} {certificate.key}\n",
            "127.0.0.1:8080": f"127.0.0.1:{gateway}",
        },
    )
    file = folder / "Caddyfile"
    file.write_text(site)
    return Started([program, "run", "--config", str(file), "--adapter", "caddyfile"], "https")


def haproxy(folder: Path, port: int, gateway: int, certificate: Certificate) -> Started:
    """deploy/compose/haproxy.cfg, whose other two gateways are not there."""
    program = _found("haproxy", Path("/usr/sbin/haproxy"))
    config = adapted(
        DEPLOY / "compose" / "haproxy.cfg",
        {
            "bind :8080": f"bind 127.0.0.1:{port}",
            "gateway-0:8080": f"127.0.0.1:{gateway}",
            "gateway-1:8080": f"127.0.0.1:{free_port()}",
            "gateway-2:8080": f"127.0.0.1:{free_port()}",
        },
    )
    file = folder / "haproxy.cfg"
    file.write_text(config)
    return Started([program, "-W", "-db", "-f", str(file)], "http")


@asynccontextmanager
async def standing_before(
    recipe: Recipe, folder: Path, gateway: int, certificate: Certificate
) -> AsyncIterator[str]:
    """The URL of a proxy that answers for the gateway on this port; ended with the block."""
    port = free_port()
    started = recipe(folder, port, gateway, certificate)
    url = f"{started.scheme}://127.0.0.1:{port}"
    environ = {**os.environ, "HOME": str(folder), "XDG_DATA_HOME": str(folder)}
    log = folder / "proxy.log"
    with log.open("wb") as file:
        process = await asyncio.create_subprocess_exec(
            *started.command, env=environ, stdout=file, stderr=file
        )
    try:
        await _until_answered(url, certificate, process, log)
        yield url
    finally:
        if process.returncode is None:
            process.terminate()
            try:
                await asyncio.wait_for(process.wait(), 10)
            except TimeoutError:
                process.kill()
                await process.wait()


async def _until_answered(
    url: str, certificate: Certificate, process: asyncio.subprocess.Process, log: Path
) -> None:
    async with (
        httpx.AsyncClient(verify=certificate.trusted()) as client,
        asyncio.timeout(START_S_MAX),
    ):
        while True:
            assert process.returncode is None, f"it ended by itself: {log}"
            try:
                if (await client.get(f"{url}/readyz")).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            await asyncio.sleep(0.1)


def _found(name: str, place: Path | None = None) -> str:
    """The program; skips the test, aloud, where it is not there."""
    found = shutil.which(name)
    if found is None and place is not None and place.exists():
        found = str(place)
    if found is None:
        pytest.skip(f"{name.upper()} NOT TESTED, which is no pass: it is not installed")
    return found
