"""Recurrent state: layers that keep a state per request in place of keys, in a pool of slots.

`case` has the cases, `features` their table, `values` their inputs, and `recurrence` the right answers with bounds on
the error of a correct kernel, whose operations `noise` describes.
"""
