"""Every problem of a configuration that `gatepost check` reports."""
