"""The sections of the page; each returns lines of markdown."""
