"""jax.nn.dot_product_attention of float16 works on a CPU, but not under jax.jit. Needs only jax."""

import os

from _template import finish, requirements, show

os.environ.setdefault("JAX_PLATFORMS", "cpu")
with requirements("jax"):
    import jax
    import jax.numpy as jnp

print(f"jax {jax.__version__}")
tokens = jnp.ones((1, 2, 1, 8), jnp.float16)
for name, function in (("eager", jax.nn.dot_product_attention), ("jitted", jax.jit(jax.nn.dot_product_attention))):
    try:
        show(f"{name}: {function(tokens, tokens, tokens).ravel()[0]}")
    except ValueError as error:
        show(f"{name}: {str(error).splitlines()[0]}", wrong=True)
finish()
