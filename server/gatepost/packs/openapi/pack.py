"""What the modules of this package add their tools to."""

from gatepost.tools.pack import Pack

pack = Pack("openapi")
