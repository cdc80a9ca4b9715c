"""Holds back Ctrl-C, and what other handlers of signals raise, while the package keeps its books.

Python runs a handler between any two of its instructions. An exception there would end a call half-way:
a storage would be away that the library takes for present.
"""

import contextlib
import functools
import signal
import sys
import threading

import torch.utils._python_dispatch

from . import dispatch

# PyTorch's own books, of dispatch modes, which an exception in the midst of them leaves wrong.
_DISPATCH = (torch.utils._python_dispatch.__file__, dispatch.__file__)
_FRAMES_MAX = 6  # from there to what it calls


def _in_dispatch(frame):
    for _ in range(_FRAMES_MAX):
        if frame is None:
            return False
        if frame.f_code.co_filename in _DISPATCH:
            return True
        frame = frame.f_back
    return False


class Guard:
    """While `inside` is set, handlers wait; deliver() runs them. Signals come to the main thread alone, and
    so this is for a job that trains there; in other threads nothing has to be held back.
    """

    def __init__(self):
        self._thread = threading.get_ident()
        self.inside = False
        self.pending = []  # (handler, number)
        self._outer = []

    def install(self, stack):
        """Stands between signals and their handlers, also those that the script installs from now on,
        until `stack` ends."""
        if threading.current_thread() is not threading.main_thread():
            return
        install = signal.signal

        def ours(number, handler):
            return install(number, self._held(handler) if callable(handler) else handler)

        def restore():
            signal.signal = install
            for number in signal.valid_signals():
                handler = signal.getsignal(number)
                if getattr(handler, "held_by", None) is self:
                    install(number, handler.__wrapped__)

        stack.callback(restore)
        signal.signal = functools.wraps(install)(ours)
        for number in signal.valid_signals():
            handler = signal.getsignal(number)
            if callable(handler):
                install(number, self._held(handler))

    def _held(self, handler):
        def later(number, frame):
            if self.inside or _in_dispatch(frame):
                self.pending.append((handler, number))
            else:
                handler(number, frame)

        later.__wrapped__, later.held_by = handler, self
        return later

    def deliver(self):
        """Runs the handlers that have waited. Raises what they raise."""
        while self.pending:
            handler, number = self.pending.pop(0)
            handler(number, sys._getframe(1))

    def is_of_this_thread(self):
        return threading.get_ident() == self._thread

    def __enter__(self):
        if self.is_of_this_thread():
            self._outer.append(self.inside)
            self.inside = True

    def __exit__(self, kind, *_):
        if not self.is_of_this_thread():
            return
        self.inside = self._outer.pop()
        if not self.inside and self.pending and kind is None:
            self.deliver()

    @contextlib.contextmanager
    def quietly(self):
        """The same, where nobody would hear what a handler raises: handlers wait for the next end."""
        outer, self.inside = self.inside, True
        try:
            yield
        finally:
            self.inside = outer
