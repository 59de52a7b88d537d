"""Approvals of calls by people: the policy, the service, the stage and real servers."""
