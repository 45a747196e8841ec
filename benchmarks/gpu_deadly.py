"""For benchmarks/deaths.py: a GPU backend whose kernel reads far outside its tensors in every case."""

from dataclasses import replace

from attnfuzz.kernels.cuda import stray
from attnfuzz.kernels.gpu.direct.states import CUDA_FIXUP, FixupSession
from attnfuzz.kernels.interface.backend import Output

_FAR = 1 << 40


class DeadlySession(FixupSession):
    """The fixup's session, with a stray read after each step."""

    def forward(self, index: int) -> Output:
        """Run one step, which kills the worker."""
        output = super().forward(index)
        self._bench.launcher.launch(stray.STRAY, tensor=output.out, distance=_FAR, write=False)
        return output


DEADLY = replace(
    CUDA_FIXUP,
    name="DEADLY",
    session=DeadlySession,
    kernels=(*CUDA_FIXUP.kernels, stray.STRAY),
    own=(*CUDA_FIXUP.own, (stray.SOURCE,)),
)
