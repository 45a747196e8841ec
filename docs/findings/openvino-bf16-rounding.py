"""OpenVINO's rounding of numbers to bf16, and its effect on attention. Needs only openvino and numpy."""

from _openvino import BLOCK, paged_attention
from _template import finish, requirements, show

with requirements("openvino numpy"):
    import numpy as np
    import openvino as ov
    from openvino import opset13 as op


class Attention:
    """One request without a past on one KV head, in the first block of a cache."""

    def __init__(self, dim):
        properties = {"INFERENCE_PRECISION_HINT": "bf16", "KV_CACHE_PRECISION": "bf16"}
        self.model = paged_attention(1, dim, dim, **properties)
        self.request = self.model.create_infer_request()

    def __call__(self, q, k, v, scale):
        """Return the output of the last token, whose key and those before it are in the cache."""
        caches = []
        for tokens in (k, v):
            block = np.zeros((1, 1, BLOCK, tokens.shape[1]), np.float32)
            block[0, 0, : len(tokens)] = tokens
            # The upper halves of float32 numbers are those of bfloat16.
            upper = (block.view(np.uint32) >> 16).astype(np.uint16)
            caches.append(ov.Tensor(upper, ov.Shape(upper.shape), ov.Type.bf16))
        integers = [np.array(each, np.int32) for each in ([len(k) - 1], [0, 1], [0], [0, 1])]
        scalars = [np.array(scale, np.float32), np.array(0, np.int32), np.array(len(k), np.int32)]
        return next(iter(self.request.infer([q, k[-1:], v[-1:], *caches, *integers, *scalars]).values()))


def weight(dim):
    """Return the weight of the first of two keys, seen and expected. All numbers are exact in bfloat16."""
    step, scale = 2.0**-7, 4096.0
    q, k, v = (np.zeros((rows, dim), np.float32) for rows in (1, 2, 2))
    q[0, :7], q[0, 7] = 1 + step, 1
    k[0, :7] = 1 + step
    k[1, :7], k[1, 7] = 1, 7 * step
    v[0] = 1
    logits = scale * (k.astype(np.float64) @ q[0])
    return float(Attention(dim)(q, k, v, scale)[0, 0]), 1 / (1 + np.exp(logits[1] - logits[0]))


def converted(numbers):
    """Return the numbers after a conversion to bf16 and back, which the library does when it builds the model."""
    back = op.convert(op.convert(op.constant(numbers), "bf16"), "f32")
    model = ov.Core().compile_model(ov.Model([back.output(0)], []), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return next(iter(model([]).values()))


print(f"openvino {ov.__version__}")
# bf16 has steps of 1/128 here.
numbers = np.array([0.3, 0.9, 1.3, 1.9], np.float32) / 128 + 1
steps = [round(float(each - 1) * 128, 2) for each in converted(numbers)]
print(f"0.3, 0.9, 1.3 and 1.9 steps above 1: expected [0.0, 1.0, 1.0, 2.0], seen {steps}")
wrong = steps != [0, 1, 1, 2]
for dim in (8, 16):
    seen, expected = weight(dim)
    show(
        f"weight of a key, head size {dim}: expected {expected:.3f}, seen {seen:.3f}", wrong=abs(seen - expected) > 0.01
    )
finish()
