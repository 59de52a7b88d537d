"""Tests of `gatepost dev`."""
