"""The pytest plugin, and `check` for tests of Hypothesis.

Only the fixture `attn_fuzz` searches by itself: its test is a campaign. In tests with `@given(cases(...))`, Hypothesis
searches; `check` judges one case, and shrinks the first that fails.
"""
