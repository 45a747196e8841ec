"""The pytest plugin, and shards for its workers.

Only the fixture `attn_fuzz` searches by itself. With `--attn-home`, its test is a campaign. Without, a shard runs a
campaign's slices (`search.hunt.Hunt`) in the test's own process, on workers that all of its tests share, and skips
failures that other tests have claimed: it compares no causes, keeps no cases, and has no home and no log. In tests with
`@given(cases(...))`, Hypothesis searches; `check` judges one case, and shrinks the first that fails.
"""
