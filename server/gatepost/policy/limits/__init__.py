"""
Limit how much tenants, callers and tools may do at once and over time, and order waiting calls
fairly.
"""
