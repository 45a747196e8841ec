"""cuDNN's functions: which of their exceptions say that a call is not supported."""

from typing import Any

import pytest

from attnfuzz.kernels.gpu import flashinfer_op
from attnfuzz.kernels.gpu.direct.cudnn import PREFILL_OP
from attnfuzz.kernels.interface.backend import Unsupported

NO_ENGINE = type("cudnnGraphNotSupportedError", (RuntimeError,), {})
AVOIDED = ValueError("cuDNN < 9.27 mis-stores a ragged Stats tensor for single-token GQA (NVBug 6783545)")


@pytest.mark.parametrize(
    ("error", "raised"),
    [(NO_ENGINE("no plan"), Unsupported), (AVOIDED, Unsupported), (ValueError("lse must be contiguous"), ValueError)],
)
def test_an_avoided_defect_and_a_missing_engine_are_not_supported(
    error: Exception, raised: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **arguments: Any) -> None:
        del arguments
        raise error

    monkeypatch.setattr(flashinfer_op, "call", refuse)
    with pytest.raises(raised, match=str(error)[:20]):
        PREFILL_OP.function(q=None)
