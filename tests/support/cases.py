"""Helpers of parametrised tests: slow cases, and the messages of calls that must fail."""

import pytest


def slow(*values):
    """Mark a case of a parametrised test as slow."""
    return pytest.param(*values, marks=pytest.mark.slow)


def error_message(call, *args) -> str:
    """Return the message of the ValueError that a call raises; it must be a single line."""
    with pytest.raises(ValueError) as excinfo:
        call(*args)
    message = str(excinfo.value)
    assert "\n" not in message
    return message
