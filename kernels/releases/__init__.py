"""Code that engines share: releases of LLM servers on disk, their import, and the kernels below them."""
