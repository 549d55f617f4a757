"""A made-up checkout of SGLang: the stand-in with trees of its own, told by a flag and a variable of its own."""

from __future__ import annotations

import shutil
from pathlib import Path

from engines import STAND_IN

SERVER = '''
import argparse, os, sys
from http.server import ThreadingHTTPServer

from sglang import stock_server
from sglang.core import Core


class Branch(Core):
    """Its settings say the drafter's block, not its trees; it adapts what it is told where a test asks for that."""

    def _shape_of(self, algorithm):
        if algorithm != "DDTREE":
            return super()._shape_of(algorithm)
        self.args |= {"speculative_num_draft_tokens": 8, "disable_overlap_schedule": True}
        budget, width = self.args["speculative_ddtree_budget"], int(os.environ["SGLANG_DDTREE_MAX_TOPK"])
        self.args["speculative_ddtree_budget"] = int(os.environ.get("BRANCH_ADAPTS", budget))
        return {"name": "ddtree", "width": width, "depth": 7, "nodes": budget}


own = argparse.ArgumentParser(allow_abbrev=False)
own.add_argument("--speculative-ddtree-budget", type=int)
mine, rest = own.parse_known_args(sys.argv[1:])
args = stock_server.Handler.args = stock_server.settings(rest) | vars(mine)
stock_server.Handler.core = Branch(args)
print("branch of", __file__, "plug-ins", os.environ.get("SGLANG_PLUGINS"), "told", sys.argv[1:], flush=True)
print(os.environ.get("BRANCH_SAYS", ""), flush=True)
ThreadingHTTPServer(("127.0.0.1", args["port"]), stock_server.Handler).serve_forever()
'''


def write_checkout(folder: Path) -> Path:
    """A folder with ``python/sglang``, as a checkout of SGLang has it."""
    package = folder / "python" / "sglang"
    shutil.copytree(STAND_IN / "sglang", package, ignore=shutil.ignore_patterns("__pycache__"))
    (package / "launch_server.py").rename(package / "stock_server.py")
    (package / "launch_server.py").write_text(SERVER, encoding="utf-8")
    return folder
