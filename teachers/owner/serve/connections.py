"""A server's connections: late ones are closed, and the longest-waiting of too many."""

import asyncio
import time

from uvicorn.protocols.http.h11_impl import H11Protocol

# a client may take so long to send a request's head, to send its body, and to read the answer
REQUEST_SECONDS = 60.0
# for each one more, the one that has waited for its client for the longest is closed
MAX_CONNECTIONS = 128


class Connection(H11Protocol):
    """A connection, closed where it is late or one of too many; uvicorn bounds idle ones.

    ``waits``: for what of its client, ``since`` when; empty while answering.
    """

    waits = ""
    since = 0.0
    request: object = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.watch()
        if len(self.connections) > MAX_CONNECTIONS:
            waiting = [
                other
                for other in self.connections
                if isinstance(other, Connection) and other.look()
            ]
            min(waiting, key=lambda other: other.since).transport.abort()

    def watch(self) -> None:
        """Once a second, until it is closed: late is late, however much has come meanwhile."""
        if self.look() and self.waits != "idle" and time.monotonic() - self.since > REQUEST_SECONDS:
            self.transport.abort()
        elif not self.transport.is_closing():
            self.loop.call_later(1.0, self.watch)

    def look(self) -> bool:
        """Note for what, and in which request, it waits; whether for anything."""
        cycle = self.cycle
        waits = ""
        if self.transport.get_write_buffer_size():
            waits = "reader"
        elif cycle is None or cycle.response_complete:
            waits = "head" if self.timeout_keep_alive_task is None else "idle"
        elif cycle.more_body:
            waits = "body"
        if (waits, cycle) != (self.waits, self.request):
            self.waits = waits
            self.request = cycle
            self.since = time.monotonic()
        return bool(waits) and not self.transport.is_closing()
