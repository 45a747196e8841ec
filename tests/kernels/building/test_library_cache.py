"""The cache of compiled kernels."""

from pathlib import Path

import pytest

from attnfuzz.kernels.building import library_cache


@pytest.fixture
def no_cache_variables(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.delenv("ATTNFUZZ_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    return monkeypatch


def test_the_cache_follows_the_environment(no_cache_variables: pytest.MonkeyPatch) -> None:
    no_cache_variables.setenv("HOME", "/home/somebody")
    assert library_cache.cache_folder() == Path("/home/somebody/.cache/attnfuzz")
    no_cache_variables.setenv("XDG_CACHE_HOME", "/caches")
    assert library_cache.cache_folder() == Path("/caches/attnfuzz")
    no_cache_variables.setenv("ATTNFUZZ_CACHE", "/own")
    assert library_cache.cache_folder() == Path("/own")
