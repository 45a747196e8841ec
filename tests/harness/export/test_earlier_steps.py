"""A script makes the calls of earlier steps, too, if a kernel's failure follows from what it keeps of them."""

from pathlib import Path

import pytest
from small_cases import step

from attnfuzz.harness.export import Exporter
from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.reference.case import Case, Mode
from attnfuzz.reference.geometry import Geometry, KvLayout

FILE = """
import torch
from attnfuzz import FunctionBackend
KEPT = []

def attend(out, query, k_cache, v_cache, block_tables, seq_lens, scale, most):
    for b, kv_len in enumerate(seq_lens.tolist()):
        kv_len = min(kv_len, most)
        pages = block_tables[b, : -(-kv_len // k_cache.shape[1])]
        k, v = (cache[pages].flatten(0, 1)[:kv_len, 0].float() for cache in (k_cache, v_cache))
        out[b] = (query[b].float() @ k.T * scale).softmax(-1) @ v

def keeps(*, out, query, k_cache, v_cache, block_tables, seq_lens, scale, **_):
    KEPT.append(int(seq_lens.max()))
    attend(out, query, k_cache, v_cache, block_tables, seq_lens, scale, KEPT[0])

def drops(*, out, query, k_cache, v_cache, block_tables, seq_lens, scale, **_):
    attend(out, query, k_cache, v_cache, block_tables, seq_lens, scale, 5)

KEEPS, DROPS = map(FunctionBackend, (keeps, drops))
"""


@pytest.mark.slow
def test_the_calls_of_earlier_steps_are_made_if_the_last_ones_alone_pass(tmp_path: Path) -> None:
    # A user's file is imported by processes of its own.
    file = tmp_path / "mine.py"
    file.write_text(FILE)
    geometry = Geometry(q_heads=2, kv_heads=1, head_dim_qk=16, head_dim_vo=16, page_size=4, kv_layout=KvLayout.NHD)
    steps = step(Mode.DECODE, (1, 3)), step(Mode.DECODE, (1, 9))
    backends = [f"{file}:{name}" for name in ("KEEPS", "DROPS")]
    with Runner(backends) as runner:
        made = [Exporter(Case(backend=each, geometry=geometry, steps=steps), runner) for each in backends]
    assert [each.seen and each.seen.step for each in made] == [1, 1]
    assert [len(each.calls.calls) for each in made if each.calls] == [2, 1]
