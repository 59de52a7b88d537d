"""Tests of the tasks extension."""
