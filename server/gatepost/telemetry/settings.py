"""The settings of what the server tells about itself."""

from gatepost.table import Table


class TelemetrySettings(Table, frozen=True, kw_only=True):
    """What is told of calls beside the log, and to whom; `listen.metrics` is where it is read."""

    tenant_label: bool = False
    """
    Whether `/metrics` tells calls by tenant: those that the configuration names, all others as
    `other`. Whoever may read `/metrics` then learns who the tenants are and how busy.
    """
