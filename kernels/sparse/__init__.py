"""Backends of sparse attention: the steps of a server as inputs of ops, sessions, and the native kernels.

Each op of a step gets right inputs: after a launch, the session keeps a copy of the kernel's result, and puts a right
one in its place before the next op reads it.
"""
