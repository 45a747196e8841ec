"""A product of an MLX array without rows and a strided one corrupts the heap on a CPU. Needs mlx[cpu]."""

import importlib.metadata
import subprocess
import sys

from _template import finish, requirements, show

PRODUCTS = """
import mlx.core as mx
import numpy as np

for i in range(3000):
    keys = 64 + i * 7 % 500
    strided = mx.array(np.ones((8, keys, 64), np.float32))[:, :, ::2]
    np.array(mx.zeros((8, 0, keys)) @ strided)
"""

with requirements("'mlx[cpu]'"):
    version = importlib.metadata.version("mlx")

# In its own process, which a corrupted heap ends.
ended = subprocess.run([sys.executable, "-c", PRODUCTS], check=False).returncode
show(f"mlx {version}: 3,000 products without rows end with exit code {ended}", wrong=ended)
finish()
