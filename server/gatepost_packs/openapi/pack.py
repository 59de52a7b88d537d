"""The pack that the modules of this package add their tools to."""

from gatepost import Pack

pack = Pack("openapi")
