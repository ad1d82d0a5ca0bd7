"""Who may ask: the keys of a service, each of which is an account."""

import hmac
from collections.abc import Mapping, Sequence

from starlette.types import ASGIApp, Receive, Scope, Send

from dfme.teachers.owner.guard.accounts import require_once
from dfme.teachers.owner.guard.meter import Meter
from dfme.teachers.owner.guard.refusals import Rejected, refuse

KEY_HEADERS = ("authorization", "x-api-key")
PUBLIC_PATHS = ("/v2/health/live", "/v2/health/ready")  # paths that need no key


class Keys:
    """Require a key, ``Authorization: Bearer KEY`` or ``X-API-Key: KEY``: each is an account."""

    def __init__(self, app: ASGIApp, keys: Sequence[str], meter: Meter) -> None:
        self._app = app
        self._keys = {key: key.encode() for key in keys}
        self._meter = meter

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        try:
            require_once(scope["headers"], KEY_HEADERS, "key given twice")
        except Rejected as refused:
            await refuse(self._meter, refused)(scope, receive, send)
            return
        accounts = self._accounts(dict(scope["headers"]))
        if accounts:
            await self._app({**scope, "account": accounts[0]}, receive, send)
        elif scope["path"] in PUBLIC_PATHS:
            await self._app(scope, receive, send)
        else:
            text = "expected the API key of this service"
            unknown = Rejected(401, text, "unauthorised", {"WWW-Authenticate": "Bearer"})
            await refuse(self._meter, unknown)(scope, receive, send)

    def _accounts(self, headers: Mapping[bytes, bytes]) -> list[str]:
        """The account whose key is sent, if it is one's; all are compared, so that the time tells
        nothing.
        """
        scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
        sent = token if scheme.lower() == b"bearer" else headers.get(b"x-api-key", b"")
        return [name for name, key in self._keys.items() if hmac.compare_digest(sent.strip(), key)]
