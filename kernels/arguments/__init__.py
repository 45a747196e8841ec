"""Variation of arguments that leaves the answer as it is: their forms, their edges, and earlier uses of an object."""
