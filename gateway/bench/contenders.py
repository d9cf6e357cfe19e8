"""The programs that can stand between client and engine: how each is found, set up and started.

Every one gets a single worker and a single upstream; what it costs is measured elsewhere.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gateway import __version__
from gateway.bench.launch import free_port
from gateway.bench.replies import MODEL

VERSION_WAIT_S = 20.0
OPEN_SEQUENCES = 4096
"""More than any scenario keeps open, so that the gate never makes a request wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Where a contender runs: a folder of its own, its port, the engine's, the clients' key."""

    folder: Path
    port: int
    upstream_port: int
    key: str

    def write(self, name: str, text: str) -> str:
        """Write a configuration file; return its path."""
        path = self.folder / name
        path.write_text(text)
        return str(path)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """One gateway to measure. `prepare` writes its files and returns the command."""

    name: str
    binary: str
    prepare: Callable[[str, Site], list[str]]
    install: str
    version_flag: str = "--version"
    ready_path: str = "/v1/models"

    def find(self) -> str | None:
        """The program: `BENCH_<NAME>` in the environment, else on the PATH; None when missing."""
        named = os.environ.get(self.variable)
        return shutil.which(named or self.binary)

    @property
    def variable(self) -> str:
        """The environment variable that names the program."""
        return f"BENCH_{self.name.upper().replace('-', '_')}"

    def version(self, program: str) -> str:
        """The first line with a digit that the program prints about itself."""
        if program == sys.executable:
            return __version__
        try:
            done = subprocess.run(  # noqa: S603 - the operator names the program
                [program, self.version_flag],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=VERSION_WAIT_S,
                check=True,
            )
        except (OSError, subprocess.SubprocessError):
            return "unknown"
        lines = done.stdout.decode(errors="replace").splitlines()
        return next((line.strip()[:80] for line in lines if any(map(str.isdigit, line))), "unknown")


def fairgate_config(site: Site) -> dict[str, object]:
    """The gateway's settings: auth, scheduling, metrics and accounting on, the gate wide open."""
    replica = {
        "url": f"http://127.0.0.1:{site.upstream_port}",
        "max_num_seqs": OPEN_SEQUENCES,
    }
    key = {
        "tenant": "bench",
        "user": "bench",
        "tier": "standard",
        "key_sha256": hashlib.sha256(site.key.encode()).hexdigest(),
    }
    return {
        "listen": {"host": "127.0.0.1", "port": site.port},
        "models": [{"name": MODEL, "replicas": [replica]}],
        "tenants": [{"name": "bench", "users": {"bench": {"weight": 1}}}],
        "keys": [key],
    }


def _fairgate(program: str, site: Site) -> list[str]:
    # JSON is YAML, so that no YAML writer is needed.
    config = site.write("fairgate.yaml", json.dumps(fairgate_config(site), indent=2))
    return [program, "-m", "gateway", "serve", "--config", config]


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
    config = {"model_list": [{"model_name": MODEL, "litellm_params": engine}]}
    path = site.write("litellm.yaml", json.dumps(config))
    return [program, "--config", path, "--host", "127.0.0.1", "--port", str(site.port)]


def _rust_router(program: str, site: Site, *verb: str) -> list[str]:
    return [
        program,
        *verb,
        *("--host", "127.0.0.1", "--port", str(site.port)),
        *("--worker-urls", f"http://127.0.0.1:{site.upstream_port}"),
        *("--policy", "round_robin", "--log-level", "error"),
        *("--prometheus-host", "127.0.0.1", "--prometheus-port", str(free_port())),
    ]


def _smg(program: str, site: Site) -> list[str]:
    return _rust_router(program, site, "launch")


def _production_stack(program: str, site: Site) -> list[str]:
    return [
        program,
        *("--host", "127.0.0.1", "--port", str(site.port)),
        *("--service-discovery", "static", "--routing-logic", "roundrobin"),
        *("--static-backends", f"http://127.0.0.1:{site.upstream_port}"),
        *("--static-models", MODEL),
    ]


FAIRGATE = Contender(
    name="fairgate",
    binary=sys.executable,
    prepare=_fairgate,
    install="it is this package",
    ready_path="/readyz",
)

PEERS = (
    Contender(
        name="nginx",
        binary="nginx",
        prepare=_nginx,
        install="apt-get install nginx-light",
        version_flag="-v",
    ),
    Contender(
        name="haproxy",
        binary="haproxy",
        prepare=_haproxy,
        install="apt-get install haproxy",
        version_flag="-v",
    ),
    Contender(
        name="litellm",
        binary="litellm",
        prepare=_litellm,
        install="pip install 'litellm[proxy]'",
    ),
    Contender(
        name="vllm-router",
        binary="vllm-router",
        prepare=_rust_router,
        install="pip install vllm-router",
    ),
    Contender(name="smg", binary="smg", prepare=_smg, install="pip install smg"),
    Contender(
        name="production-stack",
        # Its command is called vllm-router too, so that the PATH cannot tell the two apart.
        binary="production-stack-router",
        prepare=_production_stack,
        install="vllm-router of github.com/vllm-project/production-stack, named by the variable",
    ),
)


def peer_named(name: str) -> Contender:
    """The peer called `name`; raises ValueError that lists the names there are."""
    for peer in PEERS:
        if peer.name == name:
            return peer
    raise ValueError(f"no peer {name!r}; there are: {', '.join(peer.name for peer in PEERS)}")
