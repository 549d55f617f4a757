"""The time of a step: measured points, a convex fit of them, and files that hold for one setup (docs/step_cost.md)."""

from ddbench.cost.form import Fit, Hinges, Range
from ddbench.cost.inside import inside, prefill_of
from ddbench.cost.late import late_steps
from ddbench.cost.model import SCHEMA, CostModel, cost_from, load_cost
from ddbench.cost.points import KINDS, STAGES, Point

__all__ = [
    "KINDS",
    "SCHEMA",
    "STAGES",
    "CostModel",
    "Fit",
    "Hinges",
    "Point",
    "Range",
    "cost_from",
    "inside",
    "late_steps",
    "load_cost",
    "prefill_of",
]
