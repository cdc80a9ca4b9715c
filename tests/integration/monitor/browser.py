"""Chromium without a window, driven over its debugging pipe: JSON messages that end with a zero byte."""
import base64
import json
import os
import subprocess
import tempfile
import time


class Browser:
    """One tab of a browser with a profile of its own. Ends with the block."""

    def __enter__(self):
        self.profile = tempfile.TemporaryDirectory(prefix="ho-browser-", ignore_cleanup_errors=True)
        ours_in, theirs_out = os.pipe()
        theirs_in, ours_out = os.pipe()

        def move_pipes():  # the browser reads descriptor 3 and writes 4
            reading, writing = os.dup(theirs_in), os.dup(theirs_out)
            os.dup2(reading, 3)
            os.dup2(writing, 4)

        self.log = open(os.path.join(self.profile.name, "log"), "w", encoding="utf-8")
        self.process = subprocess.Popen(
            ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
             "--disable-dev-shm-usage", "--no-first-run", "--hide-scrollbars", "--remote-debugging-pipe",
             f"--user-data-dir={self.profile.name}/profile", "about:blank"],
            preexec_fn=move_pipes, close_fds=False, stdout=self.log, stderr=self.log,
            env={**os.environ, "HOME": self.profile.name})
        os.close(theirs_in)
        os.close(theirs_out)
        self.read, self.write = os.fdopen(ours_in, "rb", buffering=0), os.fdopen(ours_out, "wb", buffering=0)
        self.left, self.number, self.session = b"", 0, None
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.ask("Page.enable")
        return self

    def __exit__(self, *_):
        self.session = None
        try:
            self.ask("Browser.close")
        except (OSError, EOFError):
            pass
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.read.close()
        self.write.close()
        self.log.close()
        self.profile.cleanup()

    def ask(self, method, **parameters):
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        self.write.write(json.dumps(message).encode() + b"\0")
        while True:  # events come in between
            while b"\0" not in self.left:
                part = self.read.read(65536)
                if not part:
                    raise EOFError("the browser has ended")
                self.left += part
            text, _, self.left = self.left.partition(b"\0")
            answer = json.loads(text)
            if answer.get("id") == self.number:
                assert "error" not in answer, answer
                return answer["result"]

    def evaluate(self, expression):
        result = self.ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def open(self, url, width=1280, height=900, dark=False, phone=False):
        """Opens the page and waits until it has shown its first data."""
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=2 if phone else 1,
                 mobile=phone)
        self.ask("Emulation.setEmulatedMedia",
                 features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])
        self.ask("Page.navigate", url=url)
        end = time.monotonic() + 30
        while self.evaluate("document.body && document.body.dataset.shown") != "yes":
            assert time.monotonic() < end, self.evaluate("document.documentElement.outerHTML")
            time.sleep(0.05)

    def picture(self):
        return base64.b64decode(self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=True)["data"])
