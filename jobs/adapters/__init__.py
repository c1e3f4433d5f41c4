"""Readings of other libraries' errors. Each module needs its library, and is imported by nobody but
the application that wants it."""
