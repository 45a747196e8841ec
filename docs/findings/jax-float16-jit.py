"""jax.nn.dot_product_attention of float16 works on a CPU, but not under jax.jit. Needs only jax."""

import os
import sys

os.environ.setdefault("JAX_PLATFORMS", "cpu")
try:
    import jax
    import jax.numpy as jnp
except ImportError as error:
    print(f"{error}: pip install jax")
    sys.exit(2)

print(f"jax {jax.__version__}")
tokens = jnp.ones((1, 2, 1, 8), jnp.float16)
wrong = False
for name, function in (("eager", jax.nn.dot_product_attention), ("jitted", jax.jit(jax.nn.dot_product_attention))):
    try:
        print(f"{name}: {function(tokens, tokens, tokens).ravel()[0]}")
    except ValueError as error:
        wrong = True
        print(f"{name}: {str(error).splitlines()[0]}")
sys.exit(wrong)
