"""The dashboard: pages where approvers see calls and decide approval requests."""
