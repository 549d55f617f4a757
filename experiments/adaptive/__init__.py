"""Adaptive budgets: as arms of a sweep, and compared with all fixed ones from a recording (see docs/adaptive.md)."""
