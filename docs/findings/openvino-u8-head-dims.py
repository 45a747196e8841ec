"""PagedAttention with a u8 cache whose values have a smaller head size than keys. Needs only openvino and numpy."""

import subprocess
import sys

try:
    import numpy as np
    import openvino as ov
    from openvino import opset13 as op
    from openvino.op import _PagedAttentionExtension as PagedAttention
except ImportError as error:
    print(f"{error}: pip install openvino numpy")
    sys.exit(2)

BLOCK = 32
TYPES = {"f": (ov.Type.f32, np.float32), "i": (ov.Type.i32, np.int32), "b": (ov.Type.u8, np.uint8)}


class Attention:
    """One request without a past on one KV head, in the first block of a cache."""

    def __init__(self, heads, dim_k, dim_v, mode):
        inputs = {
            "q": ("f", [-1, heads * dim_k]), "k": ("f", [-1, dim_k]), "v": ("f", [-1, dim_v]),
            "key_cache": ("f", [-1, 1, BLOCK, dim_k]), "value_cache": ("f", [-1, 1, BLOCK, dim_v]),
            "past_lens": ("i", [-1]), "subsequence_begins": ("i", [-1]), "block_indices": ("i", [-1]),
            "block_indices_begins": ("i", [-1]), "scale": ("f", []), "sliding_window": ("i", []), "": ("f", [0]),
            "max_context_len": ("i", []),
        }  # fmt: skip
        parameters = [op.parameter(shape, TYPES[kind][0], name=name) for name, (kind, shape) in inputs.items() if name]
        given = iter(parameters)
        arguments = [
            (next(given) if name else op.constant(np.zeros(shape, np.float32))).output(0)
            for name, (_, shape) in inputs.items()
        ]
        # Windows of scores, rotation, sparsity, sinks, eviction, token types, biases: none.
        for kind, shape in zip("iiiffiifiiiiibi", ([0], [0], [0], [0], [0], [], [], [0], [], *[[0]] * 6), strict=True):
            arguments.append(op.constant(np.zeros(shape, TYPES[kind][1])).output(0))
        node = PagedAttention(arguments)
        info = node.get_rt_info()
        info["num_k_heads"], info["k_head_size"], info["num_v_heads"], info["v_head_size"] = 1, dim_k, 1, dim_v
        model = ov.Model([node.output(0)], parameters)
        properties = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "u8", "KEY_CACHE_QUANT_MODE": mode}
        self.model = ov.Core().compile_model(model, "CPU", properties | {"INFERENCE_NUM_THREADS": 1, "NUM_STREAMS": 1})
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
    attention, wrong = Attention(heads, 128, dim_v, "BY_CHANNEL"), False
    for call in (1, 2, 3):
        q, k, v = (random.standard_normal((1, width), np.float32) for width in (heads * 128, 128, dim_v))
        errors = np.abs(attention(q, k, v).reshape(heads, dim_v) - v).max(1)
        wrong |= not errors.max() < 0.02
        print(
            f"call {call}: errors of the heads expected below 0.02, seen {[round(float(each), 3) for each in errors]}"
        )
    return wrong


def prefill():
    """Run two queries of one head many times, in a separate process that may crash."""
    attention = Attention(1, 256, 8, "BY_TOKEN")
    for _ in range(200):
        attention(np.ones((2, 256), np.float32), np.ones((2, 256), np.float32), np.ones((2, 8), np.float32))


if sys.argv[1:] == ["prefill"]:
    prefill()
    sys.exit(0)
print(f"openvino {ov.__version__}")
wrong = decode()
died = subprocess.run([sys.executable, __file__, "prefill"], stderr=subprocess.PIPE, text=True, check=False)
print(f"prefill, keys by token: expected the exit code 0, seen {died.returncode} ({died.stderr.strip()[:80]})")
sys.exit(wrong or died.returncode != 0)
