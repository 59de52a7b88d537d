"""Calendars from iCalendar files, URLs and CalDAV servers, read by one tool."""
