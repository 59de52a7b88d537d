"""The common rules for the tables of several packs."""

import re

ENTRY = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,62}[A-Za-z0-9_])?", re.ASCII)
"""Valid names of an entry of a table (a channel, a calendar)."""
