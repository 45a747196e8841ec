"""Backends of recurrent state: a capability, a session of steps on one pool, and functions of one step."""
