"""The parameters that GPU kernels are compiled for: calls that agree in them run the same ones."""

from collections.abc import Hashable

from attnfuzz.harness.reduce.meaning import Meaning
from attnfuzz.kernels.entry_points.forms import window_of
from attnfuzz.reference.calls import CallCase

_AXES = ("qk dim", "vo dim", "slots")


def compiled_for(case: CallCase) -> Hashable:
    """Head dims, slots of a page, query heads per KV head, and whether there is a window.

    XQA's modules are compiled for these (gen_xqa_module, flashinfer/jit/xqa.py), others for some of them; element
    types are left out, since no edit changes them.
    """
    meaning = Meaning(case)
    heads = meaning.size("q heads") / max(1, meaning.size("kv heads"))
    windows = tuple(window_of(call.arguments) >= 0 for call in case.calls)
    return (*map(meaning.size, _AXES), heads, windows)
