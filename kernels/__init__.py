"""The code under test: backends, their planners and routers, and the native CPU kernels below them."""
