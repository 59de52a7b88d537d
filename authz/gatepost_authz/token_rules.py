"""The settings by which one issuer's tokens differ from its preset."""

import msgspec


class CallerMark(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """
    A mark that shows whether a token's caller is a machine or a person.

    Exactly one of ``no_subject``, ``subject_is_client``, ``subject``, ``claim`` and ``absent`` is
    set. Only ``subject`` and ``claim`` mark a person, because a missing claim proves no person.
    """

    no_subject: bool = False
    """
    A machine: no claim of `subject_claims` is present, and no other claim speaks of a person
    (`sub`, `username`, `preferred_username`, `email`, `upn`, `auth_time`, `amr`).
    """
    subject_is_client: bool = False
    """A machine: the subject is the client id."""
    suffix: str = ""
    """With `subject_is_client`: what the subject adds to the client id (Auth0: `@clients`)."""
    subject: bool = False
    """A person: the first of `subject_claims` is present and is not the client id."""
    claim: str = ""
    """The claim (a dotted path reaches into objects) that must be present."""
    value: str = ""
    """With `claim`: the exact value that it must have."""
    absent: str = ""
    """A machine: this claim, which the issuer writes for every person, is missing."""


class TokenRules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    How the tokens of one issuer differ from its preset.

    An omitted setting keeps the preset's rule. No setting turns off the checks of issuer, audience,
    signature and expiry. A claim is a name, or a dotted path into objects.
    """

    types: tuple[str, ...] | None = None
    """The accepted `typ` headers, without `application/`; `""` accepts tokens without `typ`."""
    required_claims: tuple[str, ...] | None = None
    """
    The claims that must be present. The list replaces the preset's, but `iss`, `exp`, the audience
    and the claims that tell the provider's access tokens from its ID tokens are always required.
    """
    audience_claims: tuple[str, ...] | None = None
    """
    The claims that may name the audience, in this order, if there is no `aud`. If there is an
    `aud`, it alone decides.
    """
    client_as_audience: bool | None = None
    """Whether a token without audience is accepted if its client id is one of `audiences`."""
    subject_claims: tuple[str, ...] | None = None
    """
    The first is the claim with the stable id of a person, and no other claim identifies people.
    Further claims identify machines whose tokens lack the first.
    """
    client_claims: tuple[str, ...] | None = None
    """The claims with the client id; the first that is present decides."""
    scope_claims: tuple[str, ...] | None = None
    """The claims with the scopes, as text or list; the first that is present decides."""
    scope_list: bool | None = None
    """Whether `scope` itself may be a list. Other claims may be."""
    token_id_claims: tuple[str, ...] | None = None
    """The claims with the token's id; the first that is present decides."""
    forbidden: dict[str, tuple[str, ...]] = {}
    """
    Claim = the values that show another kind of token, in addition to the preset's; an empty list
    forbids the claim.
    """
    must_equal: dict[str, str] = {}
    """Claim = the value that every access token has, in addition to the preset's."""
    machine: tuple[CallerMark, ...] | None = None
    """The marks of a machine's token; one mark is enough. The list replaces the preset's."""
    person: tuple[CallerMark, ...] | None = None
    """
    The marks of a person's token, if it has none of `machine`; one mark is enough. The list
    replaces the preset's. A token without any mark is refused.
    """


NO_SUBJECT = CallerMark(no_subject=True)
SUBJECT_IS_CLIENT = CallerMark(subject_is_client=True)
SUBJECT = CallerMark(subject=True)
