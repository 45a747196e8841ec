"""The kernel as a backend of attnfuzz. Only tests import this module."""

from attnfuzz import Capability, FunctionBackend, NoiseModel
from paged_attention import attend


def paged_attention(*, out, query, k_cache, v_cache, block_tables, seq_lens, cum_seq_lens_q, scale, **_):
    """Call the kernel with the arguments of a batch."""
    attend(out, query, k_cache, v_cache, block_tables, seq_lens, cum_seq_lens_q, scale)


BACKEND = FunctionBackend(
    paged_attention,
    capability=Capability(max_head_dim=128),
    noise_model=NoiseModel.fp32_arithmetic(),
)
