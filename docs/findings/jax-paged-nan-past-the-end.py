"""Pallas' paged attention: NaN in slots past a request's last key makes its output NaN. Needs only jax."""

import os

from _template import finish, requirements, show

os.environ.setdefault("JAX_PLATFORMS", "cpu")
with requirements("jax"):
    import jax
    import jax.numpy as jnp
    from jax.experimental.pallas.ops.gpu.paged_attention import paged_attention

print(f"jax {jax.__version__}, interpreted")
PAGE, DIM, LENGTH = 16, 16, 5
query = jnp.zeros((1, 1, DIM))
held = (jnp.arange(PAGE) < LENGTH)[None, None, :, None]
for in_keys, in_values in ((0.0, 0.0), (jnp.nan, 0.0), (0.0, jnp.nan)):
    keys = jnp.where(held, jnp.zeros((1, 1, PAGE, DIM)), in_keys)
    values = jnp.where(held, jnp.ones((1, 1, PAGE, DIM)), in_values)
    table, lengths = jnp.zeros((1, 1), jnp.int32), jnp.array([LENGTH], jnp.int32)
    seen = paged_attention(query, keys, values, table, lengths, k_splits=1, interpret=True)[0, 0, 0].item()
    show(
        f"{float(in_keys)} in K and {float(in_values)} in V: expected 1.0, seen {seen}", wrong=not abs(seen - 1) < 1e-3
    )
finish()
