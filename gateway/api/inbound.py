"""The client's side of a connection: uvicorn's protocol, with one gap closed."""

from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle


class ClientConnection(HttpToolsProtocol):
    """Tells the request under way that its client left, though others were pipelined behind it.

    uvicorn tells only the latest; the one that runs would go on to its end for nobody.
    """

    _under_way: RequestResponseCycle | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone."""
        super().connection_lost(exc)
        cycle = self._under_way
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._under_way = cycle
        super()._start_asgi_task(cycle, app)
