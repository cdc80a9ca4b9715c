"""A GPT that trains at a pool."""
import json
import pathlib
import re
import subprocess
import time


class Job:
    """Its words and its result go to files: nobody reads while it runs, and a pipe would fill."""

    def __init__(self, gpt, folder, pool, transport, steps, *more):
        name = f"job{time.monotonic_ns()}"
        self.out, self.err = (pathlib.Path(folder) / f"{name}.{end}" for end in ("out", "err"))
        with open(self.out, "w") as out, open(self.err, "w") as err:
            self.process = subprocess.Popen(
                [gpt, "train", "--layers", "2", "--dim", "64", "--heads", "2", "--seq", "32", "--batch", "2",
                 "--device-memory", "40%", "--transport", transport, "--pool", pool, "--steps", str(steps), *more, "-o",
                 "json"], stdout=out, stderr=err)

    def said(self):
        return self.err.read_text()

    def at_step(self):
        """The last step that it has said, or -1."""
        found = re.findall(r"^step (\d+):", self.said(), re.M)
        return int(found[-1]) if found else -1

    def ended(self):
        return self.process.poll() is not None

    def wait_for(self, words, seconds=120):
        """Until it has said them. @return false: it ended before, well."""
        end = time.monotonic() + seconds
        while words not in self.said():
            if self.ended():
                assert self.process.returncode == 0, self.said()[-3000:]
                return words in self.said()
            assert time.monotonic() < end, (f"it did not say: {words}", self.said()[-2000:])
            time.sleep(0.005)
        return True

    def end(self):
        """Waits for its end. @return the exit code."""
        return self.process.wait(timeout=400)

    def result(self):
        """Waits for its end, which must be good."""
        assert self.end() == 0, (self.process.returncode, self.said()[-3000:])
        return json.loads(self.out.read_text())

    def gaps_ms(self):
        """How long it was without a daemon, each time."""
        return [int(word.split("=")[1]) for line in self.said().splitlines() if "session is resumed" in line
                for word in line.split() if word.startswith("gone_ms=")]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if not self.ended():
            self.process.kill()
            self.process.wait()
