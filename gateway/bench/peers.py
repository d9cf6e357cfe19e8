"""The gateways that can be measured beside ours: how each is set up, found and installed."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from os import environ
from pathlib import Path

from gateway.bench.contenders import Contender, Site
from gateway.bench.replies import MODEL

INSTALL_WAIT_S = 900.0


def _nginx(program: str, site: Site) -> list[str]:
    folder = site.folder
    temporary = "\n".join(
        f"  {kind}_temp_path {folder}/{kind};"
        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    config = f"""
daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log {folder}/error.log crit;
worker_rlimit_nofile 16384;
events {{ worker_connections 8192; }}
http {{
  access_log off; keepalive_requests 100000000; tcp_nodelay on;
{temporary}
  upstream engine {{
    server 127.0.0.1:{site.upstream_port}; keepalive 2048; keepalive_requests 100000000;
  }}
  server {{
    listen 127.0.0.1:{site.port} backlog=4096;
    location / {{
      proxy_pass http://engine; proxy_http_version 1.1; proxy_set_header Connection "";
      proxy_buffering off; proxy_read_timeout 600s;
    }}
  }}
}}
"""
    return [program, "-p", str(folder), "-c", site.write("nginx.conf", config)]


def _haproxy(program: str, site: Site) -> list[str]:
    config = f"""
global
  nbthread 1
  maxconn 8000
defaults
  mode http
  option http-no-delay
  http-reuse always
  timeout connect 5s
  timeout client 600s
  timeout server 600s
frontend front
  bind 127.0.0.1:{site.port}
  default_backend engine
backend engine
  server one 127.0.0.1:{site.upstream_port}
"""
    return [program, "-db", "-f", site.write("haproxy.cfg", config)]


def _litellm(program: str, site: Site) -> list[str]:
    engine = {
        "model": f"openai/{MODEL}",
        "api_base": f"http://127.0.0.1:{site.upstream_port}/v1",
        "api_key": "none",
    }
    config = {
        "model_list": [{"model_name": MODEL, "litellm_params": engine}],
        # It starts no longer without one, so that it checks a key as we do.
        "general_settings": {"master_key": site.key},
    }
    path = site.write("litellm.yaml", json.dumps(config))
    return [program, "--config", path, "--host", "127.0.0.1", "--port", str(site.port)]


def _rust_router(
    *verb: str, warning: str = "warn", policy: str | None = "round_robin"
) -> Callable[[str, Site], list[str]]:
    """The three routers of one family take the same flags, but for a verb and one level's name.

    `policy` None leaves them their own, which looks at prompts and at the engine's load.
    """
    choice = () if policy is None else ("--policy", policy)

    def prepare(program: str, site: Site) -> list[str]:
        level = warning if site.log_level == "warning" else site.log_level
        return [
            program,
            *verb,
            *("--host", "127.0.0.1", "--port", str(site.port)),
            *("--worker-urls", f"http://127.0.0.1:{site.upstream_port}"),
            *choice,
            *("--log-level", level),
            *("--prometheus-host", "127.0.0.1", "--prometheus-port", str(site.spare_port)),
        ]

    return prepare


def _production_stack(program: str, site: Site) -> list[str]:
    return [
        program,
        *("--host", "127.0.0.1", "--port", str(site.port)),
        *("--service-discovery", "static", "--routing-logic", "roundrobin"),
        *("--static-backends", f"http://127.0.0.1:{site.upstream_port}"),
        *("--static-models", MODEL, "--log-level", site.log_level),
    ]


PEERS = (
    Contender(
        name="nginx",
        binary="nginx",
        prepare=_nginx,
        install="apt-get install nginx-light",
        version_arguments=("-v",),
    ),
    Contender(
        name="haproxy",
        binary="haproxy",
        prepare=_haproxy,
        install="apt-get install haproxy",
        version_arguments=("-v",),
    ),
    Contender(
        name="litellm",
        binary="litellm",
        prepare=_litellm,
        install="pip install 'litellm[proxy]'",
        packages=("litellm[proxy]",),
    ),
    Contender(
        name="vllm-router",
        binary="vllm-router",
        prepare=_rust_router(warning="warning"),
        install="pip install vllm-router",
        packages=("vllm-router",),
    ),
    Contender(
        name="vllm-router-default",
        binary="vllm-router",
        home="vllm-router",
        prepare=_rust_router(warning="warning", policy=None),
        install="pip install vllm-router",
        packages=("vllm-router",),
    ),
    Contender(
        name="sglang-router",
        binary="sglang-router",
        prepare=_rust_router("launch"),
        install="pip install sglang-router",
        # Its own list of requirements lacks the second.
        packages=("sglang-router", "setproctitle"),
    ),
    Contender(
        name="smg",
        binary="smg",
        prepare=_rust_router("launch"),
        install="pip install smg",
        packages=("smg",),
    ),
    Contender(
        name="production-stack",
        # Its command is called vllm-router too, so that the PATH cannot tell the two apart.
        binary="vllm-router",
        is_name_shared=True,
        prepare=_production_stack,
        install="from the sources of vLLM's production-stack; no package index has it",
    ),
)


def peer_named(name: str) -> Contender:
    """The peer called `name`; raises ValueError that lists the names there are."""
    for peer in PEERS:
        if peer.name == name:
            return peer
    raise ValueError(f"no peer {name!r}; there are: {', '.join(peer.name for peer in PEERS)}")


def find(contender: Contender, folder: Path | None = None) -> str | None:
    """The program of `contender`; None when it is missing.

    What its variable in the environment names, else in `folder` (`bin/`, or a virtual environment
    whose name ends with the contender's, or any other), else on the PATH.
    """
    named = environ.get(contender.variable)
    if named:
        return shutil.which(named)
    for place in _places(contender, folder) if folder else ():
        program = shutil.which(contender.binary, path=str(place))
        if program is not None:
            return program
    return None if contender.is_name_shared else shutil.which(contender.binary)


def _places(contender: Contender, folder: Path) -> Iterator[Path]:
    """Folders with programs; one that is the contender's by name comes first."""
    own = [each for each in sorted(folder.glob("*/bin")) if _is_named(each.parent, contender)]
    yield from own
    if not contender.is_name_shared:
        yield folder / "bin"
        yield from (
            each
            for each in sorted(folder.glob("*/bin"))
            if not any(_is_named(each.parent, peer) for peer in PEERS)
        )


def _is_named(folder: Path, contender: Contender) -> bool:
    name = contender.home or contender.name
    return folder.name == name or folder.name.endswith(f"-{name}")


def install(contender: Contender, folder: Path) -> str | None:
    """Install into a virtual environment of its own below `folder`; return why that failed."""
    assert contender.packages, f"{contender.name} is not installed by pip"
    place = folder / (contender.home or contender.name)
    steps = (
        [sys.executable, "-m", "venv", str(place)],
        [str(place / "bin" / "python"), "-m", "pip", "install", "--quiet", *contender.packages],
    )
    for step in steps:
        try:
            subprocess.run(  # noqa: S603 - our own commands, and packages named above
                step, check=True, capture_output=True, timeout=INSTALL_WAIT_S
            )
        except subprocess.SubprocessError as error:
            told = getattr(error, "stderr", None) or b""
            return f"{error}\n{told.decode(errors='replace')}".strip()
    return None
