"""Sign in at the authorization server of an MCP server: authorization code with PKCE."""

import base64
import hashlib
import secrets
from collections.abc import Callable, Mapping
from urllib.parse import urlencode, urlsplit

import httpx2
import msgspec
from msgspec.structs import replace

from gatepost.credentials.token_endpoint import covers
from gatepost.doctor.http import (
    HttpAnswer,
    HttpProbe,
    ServerUnreachable,
    is_loopback,
    problem_of_address,
)
from gatepost.doctor.resource import appended, inserted
from gatepost.mcp_client.kept_sign_in import KeptTokens, tokens_of
from gatepost.mcp_client.loopback import CallbackReceiver
from gatepost_authz.discovery import DiscoveryLocation, IssuerMetadata, locations, metadata_of
from gatepost_authz.fetch import FetchError

NAME = "gatepost"
UNCHANGED_MEMBERS = (
    "url",
    "resource",
    "issuer",
    "client_id",
    "token_endpoint",
    "revocation_endpoint",
)
"""The members of kept tokens that a refresh does not change."""
JSON = {"accept": "application/json", "content-type": "application/json"}
FORM = {"accept": "application/json", "content-type": "application/x-www-form-urlencoded"}


class SignInFailed(Exception):
    """There is no token; the message has the reason and the next step."""


class SignInServer(msgspec.Struct, frozen=True):
    """The authorization server of a resource, and its unchanged metadata."""

    metadata: IssuerMetadata
    document: Mapping[str, object]
    resource: str

    def text(self, member: str) -> str:
        """Return a member of the metadata, empty if it is no text."""
        value = self.document.get(member)
        return value if isinstance(value, str) else ""


class BrowserSignIn:
    """
    Gets access tokens for the MCP server at *url* by a sign-in in the browser.

    *client_id* is of a client that is registered, or the https URL of a client id metadata
    document; without one, a client is registered dynamically. *show* shows the sign-in page.
    """

    def __init__(
        self,
        client: httpx2.AsyncClient,
        url: str,
        *,
        client_id: str = "",
        scopes: str = "",
        show: Callable[[str], object],
    ) -> None:
        self._probe, self._url = HttpProbe(client), url
        self._client_id, self._scopes, self._show = client_id, scopes, show

    async def __call__(self, challenge: Mapping[str, str], scopes: str = "") -> KeptTokens:
        """
        Return tokens for what the challenge asks, and for *scopes*; raises SignInFailed.

        *scopes* are those of an earlier sign-in, so that a second one does not lose the first.
        """
        server = await self._server(challenge.get("resource_metadata", ""))
        async with CallbackReceiver() as receiver:
            client_id = self._client_id or await self._registered(server, receiver.redirect_uri)
            if client_id.startswith("https://"):
                self._check_client_document(server)
            verifier, state = secrets.token_urlsafe(48), secrets.token_urlsafe(24)
            digest = hashlib.sha256(verifier.encode()).digest()
            query = {
                "response_type": "code",
                "client_id": client_id,
                "redirect_uri": receiver.redirect_uri,
                "state": state,
                "code_challenge": base64.urlsafe_b64encode(digest).rstrip(b"=").decode(),
                "code_challenge_method": "S256",
                "resource": server.resource,
            }
            if scope := _joined(self._scopes or challenge.get("scope", ""), scopes):
                query["scope"] = scope
            endpoint = server.metadata.endpoint("authorization_endpoint")
            self._show(f"{endpoint}{'&' if '?' in endpoint else '?'}{urlencode(query)}")
            answer = await receiver.answer(state)
            code = self._code_of(answer, server)
            form = {
                "grant_type": "authorization_code",
                "code": code,
                "client_id": client_id,
                "redirect_uri": receiver.redirect_uri,
                "code_verifier": verifier,
                "resource": server.resource,
            }
            document = await self._token(server.metadata.endpoint("token_endpoint"), form)
        revocation = server.text("revocation_endpoint")
        return tokens_of(
            document,
            scope,
            url=self._url,
            resource=server.resource,
            issuer=server.metadata.issuer,
            client_id=client_id,
            token_endpoint=server.metadata.endpoint("token_endpoint"),
            revocation_endpoint="" if self._problem_of(revocation) else revocation,
        )

    async def refreshed(self, tokens: KeptTokens) -> KeptTokens:
        """Return new tokens for a refresh token (RFC 6749 section 6); raises SignInFailed."""
        if problem := self._problem_of(tokens.token_endpoint):
            raise SignInFailed(f"The token endpoint {tokens.token_endpoint} {problem}.")
        form = {
            "grant_type": "refresh_token",
            "refresh_token": tokens.refresh_token,
            "client_id": tokens.client_id,
            "resource": tokens.resource,
        }
        document = await self._token(tokens.token_endpoint, form)
        unchanged = {name: getattr(tokens, name) for name in UNCHANGED_MEMBERS}
        new = tokens_of(document, " ".join(tokens.scopes), **unchanged)
        # An issuer that does not rotate refresh tokens sends none.
        return replace(new, refresh_token=new.refresh_token or tokens.refresh_token)

    async def revoke(self, tokens: KeptTokens) -> bool:
        """Take the tokens back at their issuer (RFC 7009); return whether it did so."""
        endpoint = tokens.revocation_endpoint
        if not endpoint or self._problem_of(endpoint):
            return False
        token = tokens.refresh_token or tokens.access_token
        body = urlencode({"token": token, "client_id": tokens.client_id}).encode()
        try:
            answer = await self._probe.send("POST", endpoint, headers=FORM, body=body)
        except ServerUnreachable:
            return False
        return answer.status == 200

    async def _server(self, advertised: str) -> SignInServer:
        """Find the authorization server: RFC 9728, then RFC 8414 or OpenID Connect."""
        for document_url in dict.fromkeys((advertised, inserted(self._url), appended(self._url))):
            document = await self._document(document_url) if document_url else None
            if document is None:
                continue
            resource, servers = document.get("resource"), document.get("authorization_servers")
            if not isinstance(resource, str) or not covers(resource, self._url):
                # Another server's metadata would send the sign-in, and the token, elsewhere.
                raise SignInFailed(f"{document_url} is about another resource than {self._url}.")
            if not isinstance(servers, list) or not servers or not isinstance(servers[0], str):
                raise SignInFailed(f"{document_url} names no authorization server. Pass --token.")
            return await self._of_issuer(servers[0], resource)
        raise SignInFailed(
            f"{self._url} publishes no resource metadata, so its issuer is unknown. "
            "Pass an access token with --token."
        )

    async def _of_issuer(self, issuer: str, resource: str) -> SignInServer:
        if problem := self._problem_of(issuer):
            raise SignInFailed(f"The authorization server {issuer} {problem}.")
        for document_url in locations(issuer):
            document = await self._document(document_url)
            if document is None:
                continue
            try:
                metadata = metadata_of(DiscoveryLocation(issuer=issuer), document_url, document)
                metadata.endpoint("authorization_endpoint"), metadata.endpoint("token_endpoint")
            except FetchError as error:
                raise SignInFailed(
                    f"The metadata at {document_url} cannot be used: {error}."
                ) from None
            methods = document.get("code_challenge_methods_supported")
            if not isinstance(methods, list) or "S256" not in methods:
                raise SignInFailed(f"{issuer} does not offer PKCE with S256. Pass --token.")
            return SignInServer(metadata, document, resource)
        raise SignInFailed(f"The authorization server {issuer} publishes no metadata.")

    def _problem_of(self, url: str) -> str:
        """Return why an address that the server names is not used; empty if it is."""
        problem = problem_of_address(url)
        if not problem and is_loopback(url) and not is_loopback(self._url):
            # A server elsewhere must not reach programs of this machine.
            return "is on this machine, and the MCP server is not"
        return problem

    async def _document(self, url: str) -> dict[str, object] | None:
        if self._problem_of(url):
            return None
        answer = await self._probe.get(url)
        return answer.json_object() if answer.status == 200 else None

    def _check_client_document(self, server: SignInServer) -> None:
        if server.document.get("client_id_metadata_document_supported") is not True:
            raise SignInFailed(
                f"{server.metadata.issuer} takes no client id metadata documents. Pass the id of a "
                "registered client with --client-id."
            )

    async def _registered(self, server: SignInServer, redirect_uri: str) -> str:
        """Register a public client (RFC 7591) and return its id."""
        endpoint = server.text("registration_endpoint")
        if not endpoint or self._problem_of(endpoint):
            raise SignInFailed(
                f"{server.metadata.issuer} does not register clients. Register one there with the "
                "redirect address http://127.0.0.1/callback (any port), and pass --client-id."
            )
        client_metadata = {
            "client_name": NAME,
            "redirect_uris": [redirect_uri],
            "grant_types": ["authorization_code", "refresh_token"],
            "response_types": ["code"],
            "token_endpoint_auth_method": "none",
            "application_type": "native",
        }
        answer = await self._probe.send(
            "POST", endpoint, headers=JSON, body=msgspec.json.encode(client_metadata)
        )
        client_id = (answer.json_object() or {}).get("client_id")
        if answer.status not in {200, 201} or not isinstance(client_id, str):
            raise SignInFailed(_refusal("register a client", endpoint, answer))
        return client_id

    def _code_of(self, answer: Mapping[str, str], server: SignInServer) -> str:
        issuer_name = answer.get(
            "iss", "" if server.metadata.names_itself else server.metadata.issuer
        )
        if issuer_name != server.metadata.issuer:
            raise SignInFailed("The answer of the sign-in is from another issuer (RFC 9207).")
        if "code" in answer:
            return answer["code"]
        reason = answer.get("error_description") or answer.get("error") or "no reason given"
        raise SignInFailed(f"The sign-in was refused: {reason}")

    async def _token(self, endpoint: str, form: Mapping[str, str]) -> Mapping[str, object]:
        body = urlencode(form).encode()
        answer = await self._probe.send("POST", endpoint, headers=FORM, body=body)
        document = answer.json_object() or {}
        token = document.get("access_token")
        kind = document.get("token_type")
        bearer = isinstance(kind, str) and kind.lower() == "bearer"
        if answer.status != 200 or not isinstance(token, str) or not bearer:
            raise SignInFailed(_refusal("issue a token", endpoint, answer))
        if not (token.isascii() and token.isprintable()):
            # The error of the HTTP client would show the token.
            raise SignInFailed(
                f"{urlsplit(endpoint).netloc} issued a token that no header can carry."
            )
        return document


def _refusal(action: str, url: str, answer: HttpAnswer) -> str:
    document = answer.json_object() or {}
    reason = document.get("error_description") or document.get("error") or answer.described
    return f"{urlsplit(url).netloc} did not {action}: {reason}"


def _joined(*scopes: str) -> str:
    return " ".join(dict.fromkeys(" ".join(scopes).split()))
