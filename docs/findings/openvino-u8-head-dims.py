"""PagedAttention with a u8 cache whose values have a smaller head size than keys. Needs only openvino and numpy."""

import sys

from _openvino import paged_attention
from _template import finish, in_child, requirements, show

with requirements("openvino numpy"):
    import numpy as np
    import openvino as ov


class Attention:
    """One request without a past on one KV head, in the first block of a cache."""

    def __init__(self, heads, dim_k, dim_v, mode):
        properties = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "u8", "KEY_CACHE_QUANT_MODE": mode}
        self.model = paged_attention(heads, dim_k, dim_v, **properties)
        self.request = self.model.create_infer_request()
        self.caches = [
            np.zeros([1, *(each.get_length() for each in list(self.model.inputs[at].partial_shape)[1:])], np.uint8)
            for at in (3, 4)
        ]

    def __call__(self, q, k, v):
        """Return the attention of all tokens."""
        integers = [np.array(each, np.int32) for each in ([0], [0, len(q)], [0], [0, 1])]
        scalars = [np.array(0.1, np.float32), np.array(0, np.int32), np.array(len(q), np.int32)]
        return next(iter(self.request.infer([q, k, v, *self.caches, *integers, *scalars]).values()))


def decode():
    """Print the largest error of each head in three calls on one key, whose value is the output up to a u8 step."""
    random, heads, dim_v = np.random.default_rng(1), 4, 64
    attention = Attention(heads, 128, dim_v, "BY_CHANNEL")
    for call in (1, 2, 3):
        q, k, v = (random.standard_normal((1, width), np.float32) for width in (heads * 128, 128, dim_v))
        errors = np.abs(attention(q, k, v).reshape(heads, dim_v) - v).max(1)
        seen = [round(float(each), 3) for each in errors]
        show(f"call {call}: errors of the heads expected below 0.02, seen {seen}", wrong=not errors.max() < 0.02)


def prefill():
    """Run two queries of one head many times, in a separate process that may crash."""
    attention = Attention(1, 256, 8, "BY_TOKEN")
    for _ in range(200):
        attention(np.ones((2, 256), np.float32), np.ones((2, 256), np.float32), np.ones((2, 8), np.float32))


if sys.argv[1:] == ["prefill"]:
    prefill()
    sys.exit(0)
print(f"openvino {ov.__version__}")
decode()
seen, code = in_child("prefill")
show(f"prefill, keys by token: expected an answer, seen {seen}", wrong=code)
finish()
