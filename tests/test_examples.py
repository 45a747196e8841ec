"""The examples in docs/examples whose errors the documentation shows."""

from pathlib import Path

import msgspec
from small_cases import HEADS, run, step

from attnfuzz.reference.case import Case, Mode, Scales
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.geometry import KvLayout

EXAMPLE = Path(__file__).parents[1] / "docs" / "examples" / "my_subtle_backend.py"


def test_the_subtle_error_is_found_and_explained() -> None:
    assert len(EXAMPLE.read_text().splitlines()) <= 30
    case = Case(
        backend=f"{EXAMPLE}:SUBTLE",
        geometry=msgspec.structs.replace(
            HEADS, head_dim_qk=40, head_dim_vo=40, kv_layout=KvLayout.NHD, dtype=DType.FLOAT32, kv_dtype=DType.FLOAT32
        ),
        steps=(step(Mode.DECODE, *[(1, 3)] * 20),),
        scales=Scales(softmax=1.7),
    )
    (failure,) = run(case).failures
    assert "\nas if the logits were multiplied by 1.0027" in failure.message
