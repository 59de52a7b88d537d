"""Revocations and suspensions, known to every replica within a second without a query per call."""
