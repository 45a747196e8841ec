"""What is tested: backends, their planners and routers, and the native CPU kernels below them."""
