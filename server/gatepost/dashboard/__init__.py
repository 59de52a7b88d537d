"""The dashboard: what people see and decide in a browser, behind a sign-in of its own."""
