"""Keep the redactors of tenants, and redact the answers of calls with them."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import msgspec
from msgspec import UNSET, Raw

from gatepost.redaction import json_document
from gatepost.redaction.clear_document import searched_and_cleaned
from gatepost.redaction.redactor import (
    Redactor,
    are_clear,
    cleaned_text,
    has_layers,
    is_prompt,
    quoted,
    redact_logs_of,
)
from gatepost.redaction.secret_search import BACKSLASH
from gatepost.tools.authoring.results import BEFORE_RESULT
from gatepost.tools.context.client import InputRequest
from gatepost.tools.offers.offer import Failure, Offer, Outcome, Tool
from gatepost.tools.schemas.argument_size import LONG_BYTES

MANY_SECRETS = 100
"""From this number of secrets on, a redactor is made in a thread; each takes 0.2 ms."""
MAX_MADE = 1_000
"""The number of cached redactors."""
MANY_BLOCKS = 1_000
"""An outcome of more content blocks is searched in a thread, even if they are short."""

_encode = msgspec.json.encode
_decode = msgspec.json.decode
_replace = msgspec.structs.replace


ONLY_TOKENS = Redactor({})
"""Redacts only tokens, which it recognizes by their form."""


class KnownSecrets(Protocol):
    """The secrets that no answer to a tenant may contain."""

    @property
    def version(self) -> int:
        """Return a number that changes with the values."""

    @property
    def values(self) -> Mapping[str, str]:
        """Return the secrets by the name that is shown in their place."""


class SecretSource(Protocol):
    """The tenants' secrets that this process knows; it knows a secret before any tool gets it."""

    @property
    def version(self) -> int:
        """Return a number that changes with the secrets of any tenant."""

    def known_secrets(self, tenant: str | None) -> KnownSecrets:
        """Return the secrets known now; None stands for the server itself."""

    def loaded(self, tenant: str) -> KnownSecrets | None:
        """Return the secrets if they are recent; None if they must be loaded."""

    async def load(self, tenant: str) -> KnownSecrets:
        """Load the tenant's secrets; raises StoreUnavailable."""


class NoSecrets:
    """A source for servers without a secret store."""

    version = 0
    values: Mapping[str, str] = {}

    def known_secrets(self, tenant: str | None) -> KnownSecrets:
        """Return no secrets."""
        return self

    def loaded(self, tenant: str) -> KnownSecrets | None:
        """Return no secrets."""
        return self

    async def load(self, tenant: str) -> KnownSecrets:
        """Return no secrets."""
        return self


class Redaction:
    """
    The redactors of tenants, each made once for each state of the tenant's secrets.

    Tenants without secrets share one, which knows the server's own secrets and the forms of tokens.
    """

    def __init__(self, secrets: SecretSource | None = None) -> None:
        self.secrets = secrets or NoSecrets()
        self._redactors: dict[int, Redactor] = {}
        self._last: dict[str | None, int] = {}
        self.redacted_outcomes = 0
        """The number of outcomes in which a secret was redacted."""
        redact_logs_of(self)

    def redactors(self) -> Iterable[Redactor]:
        """Return the redactor of the server and those of all tenants known here."""
        return [self.redactor_for(None), *self._redactors.values()]

    def at_hand(self, tenant: str) -> Redactor | None:
        """Return the redactor to start a call with; None if `prepare` must be awaited first."""
        secrets = self.secrets.loaded(tenant)
        if secrets is None:
            return None
        return self._redactors.get(secrets.version) if secrets.values else ONLY_TOKENS

    async def prepare(self, tenant: str) -> None:
        """Make the redactor for the tenant's current secrets; raises StoreUnavailable."""
        while self.at_hand(tenant) is None:
            secrets = self.secrets.loaded(tenant) or await self.secrets.load(tenant)
            if secrets.version in self._redactors or not secrets.values:
                return
            if len(secrets.values) < MANY_SECRETS:
                fast = secrets.version == self.secrets.known_secrets(None).version
                self._cache_redactor(tenant, secrets, Redactor(secrets.values, fast=fast))
            else:
                self._cache_redactor(
                    tenant, secrets, await asyncio.to_thread(Redactor, secrets.values)
                )

    def redactor_for(self, tenant: str | None) -> Redactor:
        """Return the redactor for all secrets known now, including those added during the call."""
        secrets = self.secrets.known_secrets(tenant)
        if not secrets.values:
            return ONLY_TOKENS
        redactor = self._redactors.get(secrets.version)
        if redactor is None:
            redactor = Redactor(secrets.values, fast=tenant is None)
            self._cache_redactor(tenant, secrets, redactor)
        return redactor

    def clean(self, tenant: str | None, text: str) -> str:
        """Redact a tenant's text, for instance before it is logged."""
        return cleaned_text(text, self.redactor_for(tenant))

    def _cache_redactor(
        self, tenant: str | None, secrets: KnownSecrets, redactor: Redactor
    ) -> None:
        before = self._last.pop(tenant, None)
        if before is not None and before != self.secrets.known_secrets(None).version:
            self._redactors.pop(before, None)
        self._redactors[secrets.version], self._last[tenant] = redactor, secrets.version
        if len(self._redactors) > MAX_MADE:
            del self._redactors[next(iter(self._redactors))]
        if len(self._last) > MAX_MADE:
            del self._last[next(iter(self._last))]


def is_harmless(
    outcome: Outcome, redactor: Redactor, max_bytes: int = LONG_BYTES, *, promptly: bool = True
) -> bool:
    """
    Decide the usual case, one text and perhaps the same as JSON, without encoding it again.

    True means that there are no secrets and at most *max_bytes* bytes of each. False means nothing.
    *promptly*: a text that takes long to search is not searched.
    """
    label, value = outcome.untrusted, outcome.structured
    if label is not None and cleaned_text(label, redactor) != label:
        return False
    text = _only_text(outcome, max_bytes)
    if text is None:
        return False
    if value is UNSET:
        return _is_clear(text, redactor, redactor.clear, promptly=promptly)
    if not isinstance(value, Raw):
        return False
    encoded = bytes(value)
    if BACKSLASH in encoded or len(encoded) > max_bytes:
        return False
    # A private key in a list of its lines is known only by its beginning, as long as the text is
    # not taken apart.
    if not _is_clear(encoded, redactor, redactor.has_no_beginning, promptly=promptly):
        return False
    # If the text is that JSON, or the whole value of its only member, as `wrapped` makes, what is
    # found in it would be found in the JSON: around it are a name and an even number of quotation
    # marks, and nothing that an escape or a token may begin or end with.
    if text == encoded or encoded == b"".join((BEFORE_RESULT, text, b"}")):
        return True
    return _is_clear(text, redactor, redactor.clear, promptly=promptly)


def _only_text(outcome: Outcome, max_bytes: int) -> bytes | None:
    """Return the text of an outcome that consists of one text; None for any other or longer one."""
    content = outcome.content
    if len(content) != 1 or outcome.failure is not None:
        return None
    block = content[0]
    text = block.get("text")
    if len(block) != 2 or block.get("type") != "text" or not isinstance(text, str):
        return None
    if len(text) > max_bytes:
        return None  # nor is it encoded, which takes milliseconds
    try:
        encoded = text.encode()
    except UnicodeEncodeError:
        return None  # a lone surrogate, as in invalid file names
    return encoded if len(encoded) <= max_bytes else None


def _is_clear(
    text: bytes, redactor: Redactor, search: Callable[[bytes], bool], *, promptly: bool
) -> bool:
    """
    Return whether there are no secrets; False also means that it would take long to know.

    *search* returns whether a text that may take its time has none outside of quoted strings.
    """
    if not promptly or is_prompt(text, of_caller=redactor.of_caller):
        return search(text) and not quoted(text, redactor)
    return redactor.is_promptly_unsplit(text) and redactor.surely_clear(text)


def answer_without(outcome: Outcome, offer: Offer, redactor: Redactor) -> Outcome:
    """
    Redact the content and the structured value; return the same object if there are no secrets.

    A text that repeats the structured value is written again from the redacted value, so that
    neither of them shows what the other hides.
    """
    if outcome.structured is UNSET:
        clean = _clean_blocks(outcome.content, redactor)
        return outcome if clean is None else _replace(outcome, content=tuple(_decode(clean)))
    encoded, names = _encode(outcome.structured), frozenset[bytes]()
    structured = searched_and_cleaned(encoded, redactor)
    if structured is not None and isinstance(offer, Tool) and offer.output_schema:
        # A secret may equal a member's name in the schema, which must not be redacted.
        names = frozenset(names_in(offer.output_schema))
        structured = json_document.cleaned(encoded, redactor, names=names)
    copy = {"type": "text", "text": encoded.decode()}
    copies = [at for at, block in enumerate(outcome.content) if block == copy]
    content = [{} if block == copy else block for block in outcome.content]
    clean = _clean_blocks(content, redactor, names)
    if clean is None and structured is None:
        return outcome
    content = list(outcome.content) if clean is None else _decode(clean)
    text = encoded if structured is None else structured
    for at in copies:
        content[at] = {"type": "text", "text": text.decode()}
    value = outcome.structured if structured is None else Raw(structured)
    return _replace(outcome, content=tuple(content), structured=value)


def _clean_blocks(
    content: Sequence[Mapping[str, Any]], redactor: Redactor, names: frozenset[bytes] = frozenset()
) -> bytes | None:
    """Return content blocks redacted, as JSON, or None if they contain no secrets."""
    if _are_clear_texts([block for block in content if block], redactor):
        return None  # true for nearly all texts
    return searched_and_cleaned(_encode(content), redactor, blocks=True, names=names)


def _are_clear_texts(content: Sequence[Mapping[str, Any]], redactor: Redactor) -> bool:
    """Return True only if all content is text, and no secret is in a text or split over several."""
    texts: list[str] = []
    for block in content:
        text = block.get("text")
        if len(block) != 2 or block.get("type") != "text" or not isinstance(text, str):
            return False
        # Such a text is skipped where a reader may join the others.
        if text.encode(errors="replace") in json_document.PROTOCOL:
            return False
        texts.append(text)
    encoded = _encode(texts)
    # Those with several decodings take longer, and `searched_and_cleaned` decides about them.
    return not has_layers(encoded) and are_clear((encoded,), redactor)


def failure_without(failure: Failure, redactor: Redactor) -> Failure:
    """Redact a failure; return the same object if there are no secrets."""
    message = cleaned_text(str(failure.message), redactor)
    field = None if failure.field is None else redactor.clean(str(failure.field))
    if message == failure.message and field == failure.field:
        return failure
    return _replace(failure, message=message, field=field)


def request_without(request: InputRequest, redactor: Redactor) -> InputRequest:
    """Redact a request for input; return the same object if there are no secrets."""
    params = searched_and_cleaned(_encode(request.params), redactor)
    return request if params is None else InputRequest(request.method, _decode(params))


def names_in(schema: Any) -> Iterator[bytes]:
    """Yield the names of members in a schema."""
    if isinstance(schema, Mapping):
        properties = schema.get("properties")
        if isinstance(properties, Mapping):
            yield from (name.encode(errors="surrogatepass") for name in properties)
        schema = [*schema.values()]
    if isinstance(schema, Sequence) and not isinstance(schema, str):
        for inner in schema:
            yield from names_in(inner)
