"""jax.nn.dot_product_attention gives a query that sees no key the mean of all values. Needs only jax."""

import os

from _template import finish, requirements, show

os.environ.setdefault("JAX_PLATFORMS", "cpu")
with requirements("jax"):
    import jax
    import jax.numpy as jnp

print(f"jax {jax.__version__}")
query, key = jnp.zeros((1, 1, 1, 2)), jnp.zeros((1, 3, 1, 2))
value = jnp.array([1.0, 2.0, 6.0]).reshape(1, 3, 1, 1) * jnp.ones((1, 3, 1, 2))
ways = {
    "key_value_seq_lengths 0": {"key_value_seq_lengths": jnp.array([0])},
    "a mask that is False": {"mask": jnp.zeros((1, 1, 1, 3), bool)},
}
for way, arguments in ways.items():
    out, lse = jax.nn.dot_product_attention(query, key, value, return_residual=True, **arguments)
    seen = (out.ravel().tolist(), lse.item())
    show(f"{way}: expected ([0.0, 0.0], -inf), seen {seen}", wrong=seen != ([0.0, 0.0], float("-inf")))
finish()
