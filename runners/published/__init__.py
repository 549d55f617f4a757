"""The published DDTree implementation as an engine, run from a checkout that the user names; nothing of it is kept."""
