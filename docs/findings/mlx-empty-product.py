"""A product of an MLX array without rows and a strided one corrupts the heap on a CPU. Needs mlx[cpu]."""

import importlib.metadata
import subprocess
import sys

PRODUCTS = """
import mlx.core as mx
import numpy as np

for i in range(3000):
    keys = 64 + i * 7 % 500
    strided = mx.array(np.ones((8, keys, 64), np.float32))[:, :, ::2]
    np.array(mx.zeros((8, 0, keys)) @ strided)
"""

try:
    version = importlib.metadata.version("mlx")
except importlib.metadata.PackageNotFoundError:
    print("no mlx: pip install 'mlx[cpu]'")
    sys.exit(2)

# In its own process, which a corrupted heap ends.
ended = subprocess.run([sys.executable, "-c", PRODUCTS], check=False).returncode
print(f"mlx {version}: 3,000 products without rows end with exit code {ended}")
sys.exit(ended != 0)
