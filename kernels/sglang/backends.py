"""The backends of a release of SGLang, or of a source tree, on the CPU: its own classes, on this project's kernels."""

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from packaging.version import Version

from attnfuzz.kernels.interface.backend import Bench, Op, Session
from attnfuzz.kernels.interface.ops_table import OpsTable
from attnfuzz.kernels.libraries.interpreted import no_interpreter
from attnfuzz.kernels.native import build
from attnfuzz.kernels.native.ops import NATIVE
from attnfuzz.kernels.releases.entry_points_below import KernelsBelow
from attnfuzz.kernels.releases.naming import Named
from attnfuzz.kernels.releases.release import release_of
from attnfuzz.kernels.sglang.orders import orders_of
from attnfuzz.kernels.sglang.project import SGLANG
from attnfuzz.reference.calibration import shipped_noise
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Case, KvView, Mode, QueryView
from attnfuzz.reference.contract import Contract, Holds
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.geometry import KvLayout
from attnfuzz.reference.noise import NoiseModel

CONTRACT: Final = Contract(
    padded_rows=Holds.ANYTHING,
    sources={
        "padded_rows": "a padded row attends to the tokens of row 0 of req_to_token, or of the request that was there "
        "before (0.5.9: model_executor/input_buffers.py:157); a server's pool holds old keys there, ours NaN"
    },
)
"""SGLang returns no LSE."""

_DTYPES: Final = (DType.BFLOAT16, DType.FLOAT16)
"""The dtypes of served models. The kernels of latent attention return bfloat16 for any dtype (FlashInfer 0.6.3,
mla.py, trtllm_batch_decode_with_kv_cache_mla)."""

NEEDS: Final = ("triton", "flashinfer", "orjson", "psutil", "pybase64", "zmq", "PIL", "starlette", "pydantic")
"""The packages that a release imports besides torch. They are only needed to run one."""


@dataclass(frozen=True)
class SglangBackend:
    """An attention backend of a release, identified by `named`, on the kernels in `table`."""

    named: Named
    capability: Capability
    table: OpsTable = NATIVE
    contract: Contract = CONTRACT

    @property
    def name(self) -> str:
        """A name such as sglang==0.5.9:trtllm_mha."""
        return str(self.named)

    def noise(self, dtype: DType) -> NoiseModel:
        """Return the noise of the native kernels in fp32: calibrations of our own backend on them apply here too."""
        return shipped_noise(self.named.kind, dtype, NoiseModel.fp32_arithmetic())

    @property
    def ops(self) -> Mapping[str, Op]:
        """The kernels in `table`."""
        return {op.name: op for op in self.table.ops()}

    def missing(self) -> str | None:
        """Return the packages that SGLang's modules lack, or the reason that native kernels can't be compiled."""
        return absent() or no_interpreter() or build.missing()

    def prepare(self, progress: Callable[[str], None]) -> None:
        """Fetch the release, and compile or load the kernels."""
        release_of(SGLANG, self.named.release, progress=progress)
        self.table.prepare(progress)

    def open(self, case: Case, bench: Bench) -> Session:
        """Open a session on one case. Imports the release, if this process has not."""
        return open_session(self.named.release, KernelsBelow(self.table.ops()), case, bench)


def capability_of(kind: str, version: Version) -> Capability:
    """Return the cases that a version's backend of this kind (`trtllm_mha` or `trtllm_mla`) supports.

    Servers have no request with fewer keys than queries. FP8 caches are excluded: from 0.5.17 on they are written by a
    CUDA kernel without an alternative (kernels/ops/kvcache/fused_fp8_qkv_kv_cache.py:19). Page sizes are those that
    server_args.py does not change (0.5.9: lines 1884 and 1904; 0.5.23: arg_groups/overrides.py:1159 and 1183).
    """
    orders = orders_of(version)
    latent = kind == "trtllm_mla"
    widest = () if latent or version < Version("0.5.23") else (128,)
    return Capability(
        modes=tuple(mode for mode in Mode if mode in orders.eager),
        graph_modes=tuple(mode for mode in Mode if mode in orders.graphs[kind]),
        dtypes=_DTYPES[:1] if latent else _DTYPES,
        latent=latent,
        max_head_dim=576 if latent else 256,
        page_sizes=(32, 64) if latent else (16, 32, 64, *widest),
        layouts=(KvLayout.HND,),
        windows=not latent,
        sinks=not latent,
        padding=True,
        empty_kv=False,
        kv_shorter_than_q=False,
        query_views=(QueryView.CONTIGUOUS, QueryView.FUSED_QKV),
        kv_views=(KvView.TOKEN_MAJOR,),
        table_gaps=False,
        # SGLang's Triton kernels run in an interpreter, program by program.
        patience=4.0,
    )


def open_session(release: str, kernels: KernelsBelow, case: Case, bench: Bench) -> Session:
    """Return a session on one case. Imports the release, if this process has not. Raises ReleaseError, Unsupported."""
    # Imported here because these modules need a release's packages, which only a process that runs one must have.
    from attnfuzz.kernels.sglang.loader import load  # noqa: PLC0415
    from attnfuzz.kernels.sglang.session import SglangMhaSession, SglangMlaSession  # noqa: PLC0415

    session = SglangMlaSession if case.geometry.latent else SglangMhaSession
    return session(load(release_of(SGLANG, release), hopper=bench.device.type == "cuda"), kernels, case, bench)


def absent() -> str | None:
    """Return one line with a release's missing packages and the command to install them; None if none is missing."""
    lacking = [package for package in NEEDS if importlib.util.find_spec(package) is None]
    return f"needs {', '.join(lacking)}: pip install 'attnfuzz[sglang]'" if lacking else None
