"""Several processes behind one port: what they share, and the process above them.

Each worker is a whole gateway of the cluster. Here are only the sockets, the key and the folder
that they have in common; who decides what goes where is the cluster's affair.
"""

import logging
import os
import shutil
import socket
import sys
import tempfile
from pathlib import Path
from secrets import token_urlsafe

from gateway.announced import announce
from gateway.runtime.berth import VARIABLE, Berth
from gateway.runtime.crew import Crew
from gateway.runtime.listening import bound, is_shareable
from gateway.runtime.supervisor import Spawned, Supervisor, spawned
from gateway.settings import Settings
from gateway.telemetry.last_words import add_to_gone
from gateway.telemetry.log import set_log_level
from gateway.tenancy.keys import key_hash

WORKERS_MAX = 64
KEY_BYTES = 24
GRACE_S = 20.0
"""Beyond the limit of a shutdown: what a worker may take for its last steps."""
START_FAILURE = 3
"""Exit status of a gateway that could not listen."""
LOGGER = logging.getLogger("fairgate.workers")


def objection(settings: Settings, workers: int) -> str | None:
    """Why there cannot be so many workers; None: there can."""
    if workers == 1:
        return None
    if settings.redis.url is None:
        return (
            f"--workers {workers} needs Redis (--redis URL, or redis.url): without it each of the "
            "processes would have a queue, limits and gates of its own, and none would be fair"
        )
    if not is_shareable():
        return "--workers above 1 needs SO_REUSEPORT, which this system does not have"
    return None


def supervise(settings: Settings, workers: int, *, hears_again: bool) -> int:
    """Run `workers` gateways on one port until told to stop; the exit status.

    `hears_again`: SIGHUP has them read the settings again, and does not end them.
    """
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    set_log_level(settings.log.level)
    try:
        house = SharedHouse(settings, workers)
    except OSError as error:
        LOGGER.error("it cannot be listened on %s: %s", settings.listen.host, error)
        return START_FAILURE
    announce(house.settings, house.made_key)
    shutdown = settings.shutdown
    try:
        crew = Crew(workers, leaves_within_s=shutdown.lag_s + shutdown.limit_s + GRACE_S)
        return Supervisor(crew, house, hears_again=hears_again).run()
    finally:
        house.close()


class SharedHouse:
    """What all workers of one machine have in common."""

    def __init__(self, settings: Settings, workers: int) -> None:
        """Raises OSError where it cannot be listened."""
        listen = settings.listen
        self._places: list[_Sockets | None] = [None] * workers
        first = self._places[0] = _Sockets.bound(
            listen.host, listen.port, listen.admin_port, is_first=True
        )
        self._host = listen.host
        self._port, self._admin_port = first.ports
        self.settings = settings.model_copy(
            update={
                "listen": listen.model_copy(
                    update={"port": self._port, "admin_port": self._admin_port}
                )
            }
        )
        """With the ports that were got."""
        is_configured = settings.admin.key_sha256 is not None or bool(settings.admin.keys)
        self.made_key = None if is_configured else f"fgadm-{token_urlsafe(KEY_BYTES)}"
        self._folder = Path(tempfile.mkdtemp(prefix="fairgate-"))
        self._alive, self._held = os.pipe()

    def spawn(self, place: int) -> Spawned:
        """See `House.spawn`."""
        sockets = self._places[place]
        if sockets is None:
            sockets = _Sockets.bound(self._host, self._port, self._admin_port)
            self._places[place] = sockets
        berth = Berth(
            place=place,
            of=len(self._places),
            sockets=sockets.numbers(sockets.clients),
            operators=sockets.numbers(sockets.operators),
            alive=self._alive,
            folder=self._folder,
            admin_sha256=None if self.made_key is None else key_hash(self.made_key.encode()),
        )
        environ = {**os.environ, VARIABLE: berth.written()}
        return spawned(command(), environ, (*berth.sockets, *berth.operators, self._alive))

    def ended(self, pid: int) -> None:
        """See `House.ended`."""
        try:
            (self._folder / f"{pid}.sock").unlink(missing_ok=True)
            add_to_gone(self._folder, pid)
        except OSError as error:
            LOGGER.error("what worker %d had counted is lost: %s", pid, error)

    def vacate(self, place: int) -> None:
        """See `House.vacate`."""
        sockets, self._places[place] = self._places[place], None
        if sockets is not None:
            sockets.close()

    def close(self) -> None:
        """Let go of everything."""
        for place in range(len(self._places)):
            self.vacate(place)
        for each in (self._alive, self._held):
            os.close(each)
        shutil.rmtree(self._folder, ignore_errors=True)


class _Sockets:
    """The listening sockets of one place."""

    def __init__(
        self, clients: tuple[socket.socket, ...], operators: tuple[socket.socket, ...]
    ) -> None:
        self.clients = clients
        self.operators = operators

    @classmethod
    def bound(
        cls, host: str, port: int, admin_port: int | None, *, is_first: bool = False
    ) -> "_Sockets":
        """Raises OSError."""
        clients = bound(host, port, is_first=is_first)
        try:
            if admin_port is None:
                return cls(clients, ())
            return cls(clients, bound(host, admin_port, is_first=is_first))
        except OSError:
            for each in clients:
                each.close()
            raise

    @property
    def ports(self) -> tuple[int, int | None]:
        """Those of clients and of operators."""
        operators = self.operators[0].getsockname()[1] if self.operators else None
        return self.clients[0].getsockname()[1], operators

    def numbers(self, sockets: tuple[socket.socket, ...]) -> tuple[int, ...]:
        """Their descriptors."""
        return tuple(each.fileno() for each in sockets)

    def close(self) -> None:
        """A worker that has them keeps its own."""
        for each in (*self.clients, *self.operators):
            each.close()


def command() -> list[str]:
    """What this process was started with: a worker is started with the same words."""
    return [sys.executable, *sys.orig_argv[1:]]
