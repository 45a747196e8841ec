"""The platform of the process."""

_current_platform: object = None


def __getattr__(name: str) -> object:
    if name == "current_platform" and _current_platform is not None:
        return _current_platform
    raise AttributeError(name)
