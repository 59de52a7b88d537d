"""Calendars from iCalendar files, URLs and CalDAV servers, as one tool reads them."""
