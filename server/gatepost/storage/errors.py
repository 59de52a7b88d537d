"""The errors of a store that cannot be used."""


class StoreUnavailable(Exception):
    """The database or the shared store does not answer; a caller gets 503 and may try again."""


class StoreRefused(Exception):
    """A store cannot be used as it is, and waiting does not help; the message is a sentence."""
