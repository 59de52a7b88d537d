"""Ask issuers about signed tokens as well, for revocation and for claims that the tokens lack."""

import time
from collections.abc import Callable, Mapping

from gatepost_authz.answer_cache import REFUSED_S, AnswerCache, digest_of
from gatepost_authz.claim_values import MISSING, first_text, lookup
from gatepost_authz.claims import MAX_CLIENT_ID, scopes_of
from gatepost_authz.errors import InvalidToken, IssuerUnavailable
from gatepost_authz.introspector import Introspectors
from gatepost_authz.issuers import TrustedIssuer
from gatepost_authz.presets import Preset


class SignedTokenIntrospection:
    """Confirms proved tokens by introspection, at issuers whose settings ask for it."""

    def __init__(
        self, introspectors: Introspectors, *, clock: Callable[[], float] = time.time
    ) -> None:
        self.introspectors = introspectors
        self.clock = clock
        self._inactive: AnswerCache[bool] = AnswerCache()

    async def claims_of(
        self, token: str, proved: Mapping[str, object], trusted: TrustedIssuer
    ) -> dict[str, object]:
        """
        Return the claims of the token and of the issuer's answer about it.

        InvalidToken: it is not active, or the answer is about another token. IssuerUnavailable:
        the issuer cannot be asked, so nothing says that the token is not revoked.
        """
        key = (digest_of(token), trusted.settings.issuer, "", 0)
        if self._inactive.get(key, self.clock()):
            raise InvalidToken("inactive")
        try:
            answer = await self.introspectors.ask(token, trusted)
        except InvalidToken:
            now = self.clock()
            self._inactive.put(key, True, now=now, until=now + REFUSED_S)
            raise
        return agreed(proved, answer, trusted.preset)


async def introspected_claims(
    signed_introspection: SignedTokenIntrospection | None,
    token: str,
    proved: dict[str, object],
    trusted: TrustedIssuer,
) -> dict[str, object]:
    """Return the claims to judge: those of the token alone unless its issuer is asked about it."""
    if not trusted.introspects_signed:
        return proved
    if signed_introspection is None:
        # Without an answer, the token may have been revoked.
        raise IssuerUnavailable("introspection_failed")
    return await signed_introspection.claims_of(token, proved, trusted)


def agreed(
    proved: Mapping[str, object], answer: Mapping[str, object], preset: Preset
) -> dict[str, object]:
    """
    Return the claims of both; a claim that both have comes from the token.

    Issuer, subject, client and audience must agree. The earlier end counts, and of the scopes those
    that both name.
    """
    for name in dict.fromkeys(("iss", "sub", "jti", "act", *preset.subject_claims)):
        proved_value, answer_value = lookup(proved, name), lookup(answer, name)
        if MISSING not in (proved_value, answer_value) and proved_value != answer_value:
            raise InvalidToken("answer_disagrees").with_details(claim=name)
    clients = [first_text(claims, preset.client_claims, limit=MAX_CLIENT_ID)
               for claims in (proved, answer)]  # fmt: skip
    if None not in clients and clients[0] != clients[1]:
        raise InvalidToken("answer_disagrees").with_details(claim=preset.client_claims[0])
    for name in ("aud", *preset.audience_claims):
        proved_value, answer_value = lookup(proved, name), lookup(answer, name)
        if MISSING not in (proved_value, answer_value) and as_list(proved_value) != as_list(
            answer_value
        ):
            raise InvalidToken("answer_disagrees").with_details(claim=name)
    # A member with a dotted name would be found before the token's claim at that path.
    added = {name: value for name, value in answer.items() if lookup(proved, name) is MISSING}
    merged = {**added, **proved}
    expiries = [claims["exp"] for claims in (proved, answer) if "exp" in claims]
    if len(expiries) > 1:
        merged["exp"] = earlier(*expiries)
    granted, confirmed_scopes = scopes_of(proved, preset), scopes_of(answer, preset)
    if granted is not None and confirmed_scopes is not None:
        # As one claim, because the answer may name its scopes in a claim that counts before the
        # token's.
        merged = {name: value for name, value in merged.items() if name not in preset.scope_claims}
        merged[preset.scope_claims[0]] = " ".join(sorted(granted & confirmed_scopes))
    return merged


def as_list(value: object) -> list[str]:
    """Return the audiences of a claim in one order, whether it is a text or a list."""
    return sorted(map(str, value)) if isinstance(value, list) else [str(value)]


def earlier(first: object, second: object) -> object:
    """Return the earlier of two times; the token's if the answer's is none."""
    if isinstance(first, int | float) and isinstance(second, int | float):
        return min(first, second)
    raise InvalidToken("bad_exp")
