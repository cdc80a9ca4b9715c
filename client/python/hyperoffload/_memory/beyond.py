"""Calls for which a budget is too small, whatever leaves."""

from .._torch.script import where


def is_small_part(size, limit):
    """Whether a limit may be exceeded by so many bytes where nothing more can leave."""
    return 100 * size <= limit


class Beyond:
    """Keeps the line of the script that needs most. A person hears of each line once, and again if it needs twice that."""

    def __init__(self):
        self._bytes, self._function, self._line = 0, None, ""
        self._told = {}  # line -> the bytes that a person has heard of

    def note(self, function, bytes_needed):
        """A call is about to exceed the limit of now: it takes and makes so much, with what cannot leave."""
        if bytes_needed > self._bytes:
            self._bytes, self._function, self._line = bytes_needed, function, where()

    def told(self, limit):
        """What a person has to know of calls since the last time that exceeded this limit; or None."""
        needed, self._bytes = self._bytes, 0
        if is_small_part(needed - limit, limit) or needed < 2 * self._told.get(self._line, 0):
            return None
        self._told[self._line] = needed
        return (f"the budget of {int(limit)} bytes is too small for one call: {self._function} at {self._line} needs {needed} "
                "bytes at a time, with what it takes, what it makes, and what cannot leave the device. What would help: "
                f"device_memory of at least {needed} bytes, or a smaller batch there")
