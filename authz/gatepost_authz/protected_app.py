"""Put the whole gate in front of an ASGI application."""

import logging
from collections.abc import Sequence

from starlette.routing import Match
from starlette.types import ASGIApp, Receive, Scope, Send

from gatepost_authz.challenge import Challenge
from gatepost_authz.check import problems
from gatepost_authz.config import Issuer, Network
from gatepost_authz.fetch import Fetcher
from gatepost_authz.issuer_key_sets import IssuerKeySets
from gatepost_authz.issuers import IssuerRegistry
from gatepost_authz.metadata import MetadataRoutes
from gatepost_authz.middleware import BearerMiddleware
from gatepost_authz.protected_resource import Resource
from gatepost_authz.tenant import Policy
from gatepost_authz.verdict_cache import VerdictCache
from gatepost_authz.verifier import JwtVerifier

log = logging.getLogger(__name__)


class ProtectedApp:
    """
    An ASGI application that passes only requests with a token for *resource* to *app*.

    Every path needs a token, except the paths of the metadata document (RFC 9728), by which
    clients find the issuers. Tokens are JWTs of *issuers*, with all *scopes*. The application
    reads its caller with `caller_of`, and gets lifespan messages as it would without the gate;
    WebSocket connections are refused. *name* is what clients show people. *development* allows
    plain HTTP on loopback.

    Raises ValueError with every error of the settings, and for an issuer with `introspection`:
    give `BearerMiddleware` an IntrospectionVerifier for such an issuer. Warnings are logged.
    """

    def __init__(  # noqa: PLR0913  # all are keywords, and each is one decision of the operator
        self,
        app: ASGIApp,
        *,
        resource: str,
        issuers: Sequence[Issuer],
        scopes: Sequence[str] = (),
        name: str = "",
        network: Network | None = None,
        development: bool = False,
    ) -> None:
        _refuse_problems(resource, issuers, scopes, development)
        registry, target = IssuerRegistry(issuers), Resource(resource)
        self._app = app
        self._fetcher = Fetcher(development=development, network=network)
        self._keys = IssuerKeySets(self._fetcher)
        policy = Policy(development=development)
        metadata = MetadataRoutes(
            target, authorization_servers=registry.for_tenant, scopes=scopes, name=name
        )
        self._bearer = BearerMiddleware(
            app,
            resource=target,
            verifier=JwtVerifier(registry, self._keys, VerdictCache(), policy=policy),
            challenge=Challenge(baseline=tuple(scopes)),
            baseline=frozenset(scopes),
        )
        self._routes = metadata.routes(root=True)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            await self._keys.aclose()
            await self._fetcher.aclose()
            return
        # Not a Router, which would enter itself in the scope: the application's `url_for` would
        # then look for names of its routes here.
        for route in self._routes:
            match, child_scope = route.matches(scope)
            if match is Match.FULL:
                await route.handle({**scope, **child_scope}, receive, send)
                return
        await self._bearer(scope, receive, send)


def _refuse_problems(
    resource: str, issuers: Sequence[Issuer], scopes: Sequence[str], development: bool
) -> None:
    """Raise ValueError if the settings have errors; log their warnings."""
    found_problems = list(
        problems(
            resource=resource, issuers=issuers, development=development, scopes={"scopes": scopes}
        )
    )
    lines = {
        problem: f"{problem.id} {problem.setting}: {problem.message}; {problem.hint}"
        for problem in found_problems
    }
    errors = [lines[problem] for problem in found_problems if problem.level == "error"]
    errors += [
        f"issuers[{index}].introspection: ProtectedApp verifies only JWTs; "
        "pass an IntrospectionVerifier to BearerMiddleware instead"
        for index, issuer in enumerate(issuers)
        if issuer.introspection is not None
    ]
    if errors:
        raise ValueError("the settings of the gate have errors:\n" + "\n".join(errors))
    for problem in found_problems:
        log.warning("%s", lines[problem])
