"""SGLang's fa3 plans no chunks of attention for verifies in graphs. Needs an unpacked sglang, which is only read.

It looks at the branches on the forward's mode in the method that plans a graph, and names those that set chunks.
"""

import ast

from _template import finish, show
from _vllm import installed

source = installed("sglang", pip="sglang") / "srt/layers/attention/flashattention_backend.py"
methods = {each.name: each for each in ast.walk(ast.parse(source.read_text())) if isinstance(each, ast.FunctionDef)}


def sets_chunks(mode):
    """Return whether the branch for a mode of the forward plans chunks of attention in a graph."""
    tests = (each for each in ast.walk(methods["_apply_cuda_graph_metadata"]) if isinstance(each, ast.If))
    branch = next(each for each in tests if mode in ast.unparse(each.test))
    return any("local_attn" in ast.unparse(line) for line in branch.body)


for words, mode in (("a decode", "is_decode_or_idle"), ("a verify", "is_target_verify")):
    there = sets_chunks(mode)
    show(f"{words} in a graph: chunks are {'set' if there else 'not set'}", wrong=not there)
finish()
