"""varlen.cpp as a backend, called by ctypes."""

import ctypes
import shutil
import subprocess
from pathlib import Path

import torch

from attnfuzz import Capability, DType, FunctionBackend, KvLayout, NoiseModel

SOURCE = Path(__file__).with_name("varlen.cpp")
COMPILER, LIBRARY = shutil.which("g++") or "g++", SOURCE.with_suffix(".so")
if not LIBRARY.exists() or LIBRARY.stat().st_mtime < SOURCE.stat().st_mtime:
    subprocess.run([COMPILER, "-O2", "-shared", "-fPIC", "-o", str(LIBRARY), str(SOURCE)], check=True)
POINTER, INT = ctypes.c_void_p, ctypes.c_int
prefill = ctypes.CDLL(str(LIBRARY)).varlen_prefill
prefill.argtypes = [POINTER] * 7 + [INT] * 6 + [ctypes.c_int64] * 3 + [ctypes.c_float, POINTER]


def varlen(
    *,
    out: torch.Tensor,
    query: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    cum_seq_lens_q: torch.Tensor,
    scale: float,
    sinks: torch.Tensor | None,
    kv_layout: str,
) -> None:
    """Pass pointers, sizes and strides."""
    if kv_layout == "HND":
        _, kv_heads, page_size, dim = k_cache.shape
        page_stride, head_stride, slot_stride, _ = k_cache.stride()
    else:
        _, page_size, kv_heads, dim = k_cache.shape
        page_stride, slot_stride, head_stride, _ = k_cache.stride()
    prefill(
        out.data_ptr(),
        query.data_ptr(),
        k_cache.data_ptr(),
        v_cache.data_ptr(),
        block_tables.data_ptr(),
        seq_lens.data_ptr(),
        cum_seq_lens_q.data_ptr(),
        len(seq_lens),
        block_tables.stride(0),
        query.shape[1],
        kv_heads,
        dim,
        page_size,
        page_stride,
        slot_stride,
        head_stride,
        scale,
        None if sinks is None else sinks.data_ptr(),
    )


MINE = FunctionBackend(
    varlen,
    Capability(dtypes=(DType.BFLOAT16,), sinks=True, layouts=(KvLayout.NHD, KvLayout.HND)),
    noise_model=NoiseModel.fp32_arithmetic(),
)
