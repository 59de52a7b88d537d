"""`gatepost doctor`."""
