"""Tests of sessions, which only older revisions have."""
