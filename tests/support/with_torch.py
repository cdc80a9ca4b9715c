"""Imports PyTorch for a test, in the interpreter that has it; without any the test is skipped.

Before a test reads its arguments: `from with_torch import torch`."""

import os
import sys

try:
    import torch  # noqa: F401
except ImportError:
    # The interpreter that CMake found need not be the one for which PyTorch is installed.
    SYSTEM = "/usr/bin/python3"
    if os.path.exists(SYSTEM) and os.path.realpath(SYSTEM) != os.path.realpath(sys.executable):
        os.execv(SYSTEM, [SYSTEM] + sys.argv)
    import needs
    needs.skip(f"no PyTorch in {sys.executable}")
