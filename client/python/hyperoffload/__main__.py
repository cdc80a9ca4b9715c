"""`python -m hyperoffload ...` runs the command `hyperoffload ...`."""
import os
import sys

from ._plan.analyze import command


def main() -> None:
    """Becomes the command, with this process's arguments."""
    path = command()
    os.execv(path, [path, *sys.argv[1:]])


if __name__ == "__main__":
    main()
