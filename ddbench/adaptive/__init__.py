"""Adaptive node budgets: policies that choose, step by step, what the target verifies (see docs/adaptive.md).

Usable by themselves: torch and numpy are all they need.
"""

from ddbench.adaptive.caddtree import CaDDTree
from ddbench.adaptive.cost_optimal import CostOptimal
from ddbench.adaptive.fixed import Fixed
from ddbench.adaptive.mass import expectation, expectation_on_device, on_spine
from ddbench.adaptive.measured import MeasuredCosts
from ddbench.adaptive.named import POLICIES, policy_of, usual_candidates
from ddbench.adaptive.policy import OFF, ON, Adaptive, Candidates, Choice, Control, Offer, Policy, StepCosts, kept_of

__all__ = [
    "OFF",
    "ON",
    "POLICIES",
    "Adaptive",
    "CaDDTree",
    "Candidates",
    "Choice",
    "Control",
    "CostOptimal",
    "Fixed",
    "MeasuredCosts",
    "Offer",
    "Policy",
    "StepCosts",
    "expectation",
    "expectation_on_device",
    "kept_of",
    "on_spine",
    "policy_of",
    "usual_candidates",
]
