"""Wait for what another process does."""

import time


def wait_until(true, seconds=10):
    """Look until something is true, and fail if it never is."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if true():
            return
        time.sleep(0.02)
    raise AssertionError(f"it never came to that in {seconds} s")
