"""SGLang 0.5.9 to 0.5.23, fa3: verifies of draft trees count a layer's sinks twice. Needs torch.

With topk above 1, fa3 attends to the prefix and to the drafts in two calls, and merges them by their LSE. Both calls
get the sinks, so that both LSE, and their sum, contain them.
"""

from _template import finish, requirements, show

with requirements("torch"):
    import torch

PREFIX, DRAFTS, DIM, SINK = 16, 2, 8, 1.0


def attend(logits, values, sink):
    """One call of flash_attn_with_kvcache: its LSE includes the sink."""
    lse = torch.logaddexp(logits.logsumexp(0), torch.tensor(sink))
    return (logits - lse).exp() @ values, lse


torch.manual_seed(0)
logits, values = torch.randn(PREFIX + DRAFTS), torch.randn(PREFIX + DRAFTS, DIM)
expected, _ = attend(logits, values, SINK)
# flashattention_backend.py 0.5.23, lines 1785 to 1870: kwargs["sinks"] is in both calls.
for name, sinks in (("in both calls", (SINK, SINK)), ("in the first call alone", (SINK, -torch.inf))):
    (out_a, lse_a), (out_b, lse_b) = (
        attend(logits[part], values[part], sink)
        for part, sink in zip((slice(PREFIX), slice(PREFIX, None)), sinks, strict=True)
    )
    lse = torch.logaddexp(lse_a, lse_b)
    out = (lse_a - lse).exp() * out_a + (lse_b - lse).exp() * out_b
    error = float((out - expected).abs().max() / expected.abs().max())
    show(f"sinks {name}: largest error {error:.1%}", wrong=error > 1e-3)
finish()
