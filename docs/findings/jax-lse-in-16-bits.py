"""The log-sum-exp of jax.nn.dot_product_attention is rounded to the dtype of the keys. Needs only jax."""

import os

from _template import finish, requirements, show

os.environ.setdefault("JAX_PLATFORMS", "cpu")
with requirements("jax"):
    import jax
    import jax.numpy as jnp

print(f"jax {jax.__version__}")
query = jnp.full((1, 1, 1, 1), 17.0, jnp.bfloat16)
keys = jnp.array([17.0, 17.0], jnp.bfloat16).reshape(1, 2, 1, 1)
values = jnp.array([0.0, 1.0], jnp.bfloat16).reshape(1, 2, 1, 1)
# Attend to each key alone, and merge by the LSEs, as ring attention does.
parts = []
for part, factor in ((slice(0, 1), 1.0), (slice(1, 2), 1.0037)):
    out, lse = jax.nn.dot_product_attention(query, keys[:, part], values[:, part], scale=factor, return_residual=True)
    parts.append((out.astype(jnp.float32).item(), lse.astype(jnp.float32).item()))
    show(f"logit {17 * 17 * factor:.4f}: log-sum-exp {parts[-1][1]}, in {lse.dtype}")
(first, one), (second, other) = parts
share = 1 / (1 + jnp.exp(one - other)).item()
due = 1 / (1 + jnp.exp(-289 * 0.0037)).item()
wrong = abs(share - due) > 0.01
show(f"merged: expected {due:.4f}, seen {first * (1 - share) + second * share:.4f}", wrong=wrong)
finish()
