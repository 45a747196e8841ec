"""The runs by which a failure of an attention case is traced."""

from small_cases import step

from attnfuzz.harness.families.attention import ATTENTION
from attnfuzz.reference.case import Case, Launch, Mode
from attnfuzz.reference.geometry import Geometry
from attnfuzz.reference.validity import validate


def test_a_failure_in_a_capture_is_traced_with_the_next_step_that_has_requests() -> None:
    capture = step(Mode.DECODE, launch=Launch.CAPTURE, rows=1)
    replay = step(Mode.DECODE, (1, 4), launch=Launch.REPLAY)
    geometry = Geometry(q_heads=1, kv_heads=1, head_dim_qk=8, head_dim_vo=8, page_size=4)
    case = Case(backend="trtllm_mha", geometry=geometry, steps=(capture, replay, replay))
    (part,) = ATTENTION.parts(case, 0)
    validate(part)
    assert part.steps == (capture, replay)
