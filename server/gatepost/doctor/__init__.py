"""Walks a client's way to any MCP server and says in one sentence what is wrong."""

from gatepost.doctor.report import Report, Step
from gatepost.doctor.token import Credentials
from gatepost.doctor.walk import examine

__all__ = ["Credentials", "Report", "Step", "examine"]
