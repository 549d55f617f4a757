"""DDTree's pieces, usable by themselves: build a draft tree, lay it out for one target pass, verify what came back.

Nothing here needs more than torch and numpy (and numba, if asked for the compiled build). See docs/tree.md.
"""

from ddbench.tree.build import build_tree
from ddbench.tree.compiled import build_tree_compiled
from ddbench.tree.eagle import EagleExpansion
from ddbench.tree.heap import build_tree_heap
from ddbench.tree.layout import RaggedLayout, ancestor_mask, child_links, pack, position_ids, row_parents
from ddbench.tree.sampling import draw, filtered_probs, keyed_uniforms
from ddbench.tree.shape import PADDING, ROOT, Tree
from ddbench.tree.verify import Walk, greedy, sample_and_match, walk

__all__ = [
    "PADDING",
    "ROOT",
    "EagleExpansion",
    "RaggedLayout",
    "Tree",
    "Walk",
    "ancestor_mask",
    "build_tree",
    "build_tree_compiled",
    "build_tree_heap",
    "child_links",
    "draw",
    "filtered_probs",
    "greedy",
    "keyed_uniforms",
    "pack",
    "position_ids",
    "row_parents",
    "sample_and_match",
    "walk",
]
