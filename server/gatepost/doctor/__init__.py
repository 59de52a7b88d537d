"""Connect to any MCP server as a client would, and report in one sentence what is wrong."""

from gatepost.doctor.examination import examine
from gatepost.doctor.report import Report, Step
from gatepost.doctor.token import DoctorCredentials

__all__ = ["DoctorCredentials", "Report", "Step", "examine"]
