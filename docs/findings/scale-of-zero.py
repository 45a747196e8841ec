"""onnxruntime's GroupQueryAttention treats a scale of 0 as unset. Needs onnx, onnxruntime and numpy."""

from _template import finish, requirements, show

with requirements("onnx onnxruntime numpy"):
    import numpy as np
    import onnxruntime as ort
    from onnx import TensorProto, helper


def attend(scale: float | None) -> float:
    """Attend with a query that sees two keys: one with the value 1 and a large logit, one with 0 and 0."""
    given = {} if scale is None else {"scale": scale}
    names = ["query", "key", "value"]
    node = helper.make_node(
        "GroupQueryAttention",
        [*names, "", "", "last_key", "total"],
        ["out", "present_key", "present_value"],
        domain="com.microsoft",
        num_heads=1,
        kv_num_heads=1,
        **given,
    )
    states = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 2, 8]) for name in names]
    lengths = [helper.make_tensor_value_info(name, TensorProto.INT32, [1]) for name in ("last_key", "total")]
    out = helper.make_tensor_value_info("out", TensorProto.FLOAT, None)
    graph = helper.make_graph([node], "attention", [*states, *lengths], [out])
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    first = np.zeros((1, 2, 8), np.float32)
    first[0, 0] = 1
    query, last, total = np.full_like(first, 2), np.array([1], np.int32), np.array([2], np.int32)
    feed = {"query": query, "key": first, "value": first, "last_key": last, "total": total}
    return float(session.run(["out"], feed)[0][0, 1, 0])


print(f"onnxruntime {ort.__version__}")
print(f"no scale: {attend(None):.4f}")
for scale in (0.25, -0.25):
    print(f"scale {scale}: expected {1 / (1 + np.exp(-16 * scale)):.4f}, seen {attend(scale):.4f}")
seen = attend(0.0)
show(f"scale 0: expected 0.5000, seen {seen:.4f}", wrong=abs(seen - 0.5) > 0.01)
finish()
