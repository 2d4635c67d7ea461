# SPDX-License-Identifier: MIT
"""What scripts/screenshots.sh draws with: a terminal of tmux as SVG, and pages in a headless Chromium as PNG."""
import base64
import html
import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import time

ANSI = re.compile(r"\033\[([0-9;]*)m")
# Of the terminal, dark whatever the page is: colours by their number in the escape sequence.
COLOURS = {31: "#ff7b72", 32: "#7ee787", 33: "#e3b341", 34: "#79c0ff", 35: "#d2a8ff", 36: "#76e3ea"}
PAPER, INK, FAINT = "#161b22", "#e6edf3", "#9aa7b4"


class Terminal:
    """bash in a window of so many columns and lines. It needs tmux."""

    number = 0

    def __init__(self, columns, lines, folder, path, environment=None):
        Terminal.number += 1
        self.name = f"shots{os.getpid()}-{Terminal.number}"
        settings = {"PS1": "$ ", "PATH": f"{path}:{os.environ['PATH']}", "TERM": "tmux-256color", "OMP_NUM_THREADS": "1", "LC_ALL": "C.UTF-8",
                    **(environment or {})}
        given = [f"{key}={value}" for key, value in settings.items()]
        self.tmux("-f", "/dev/null", "new-session", "-d", "-x", str(columns), "-y", str(lines), "-c", str(folder), "env", *given,
                  "bash", "--norc", "--noprofile")
        time.sleep(0.5)

    def tmux(self, *words):
        return subprocess.run(["tmux", "-L", self.name, *words], check=True, capture_output=True, text=True).stdout

    def type(self, command):
        self.tmux("send-keys", "-l", command)
        self.tmux("send-keys", "Enter")

    def text(self, colours=False):
        return self.tmux("capture-pane", "-p", *(["-e"] if colours else []))

    def wait_for(self, pattern, seconds=300):
        """Until the window has a line that matches; after a command "^\\$ ?$" is the prompt."""
        until = time.monotonic() + seconds
        while not re.search(pattern, self.text(), re.MULTILINE):
            if time.monotonic() > until:
                raise SystemExit(f"screenshots: after {seconds} s the terminal does not show {pattern}:\n{self.text()}")
            time.sleep(0.1)

    def close(self):
        self.tmux("kill-server")


def drop_prompt(text):
    """Without the empty lines and the waiting prompt at the end."""
    lines = text.rstrip().split("\n")
    return "\n".join(lines[:-1] if ANSI.sub("", lines[-1]).strip() == "$" else lines)


def terminal_svg(text, columns, said):
    """The text of capture-pane -e as a picture; `said` is what it is to somebody who does not see it."""
    cell, line, pad = 8, 18, 14
    rows = text.rstrip("\n").split("\n")
    width, height = columns * cell + 2 * pad, len(rows) * line + 2 * pad
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
           f'font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, \'DejaVu Sans Mono\', monospace" font-size="13" fill="{INK}" role="img" '
           f'aria-label="{html.escape(said)}" xml:space="preserve">', f'<rect width="{width}" height="{height}" rx="8" fill="{PAPER}"/>']
    bold, colour = False, ""
    for at, row in enumerate(rows):
        column, y = 0, pad + at * line + 13
        for i, piece in enumerate(ANSI.split(row)):
            if i % 2 == 1:
                for code in (int(word or 0) for word in piece.split(";")):
                    bold = code == 1 or (bold and code not in (0, 22))
                    colour = FAINT if code == 2 else COLOURS.get(code, "" if code in (0, 22, 39) else colour)
                continue
            for word in re.finditer(r"\S+(?: \S+)*", piece):
                style = (' font-weight="600"' if bold else "") + (f' fill="{colour}"' if colour else "")
                length = len(word.group()) * cell
                out.append(f'<text x="{pad + (column + word.start()) * cell}" y="{y}" textLength="{length}"{style}>{html.escape(word.group(), quote=False)}</text>')
            column += len(piece)
    return "\n".join([*out, "</svg>"]) + "\n"


class Browser:
    """A headless Chromium, spoken to through a pipe."""

    def __init__(self, program):
        self.profile = tempfile.mkdtemp(prefix="screenshots")
        ours_in, theirs_out = os.pipe()
        theirs_in, ours_out = os.pipe()
        command = [program, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--allow-file-access-from-files",
                   f"--user-data-dir={self.profile}", "--remote-debugging-pipe", "about:blank"]
        self.process = subprocess.Popen(["bash", "-c", f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}', "chromium", *command], pass_fds=(theirs_in, theirs_out),
                                        stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        os.close(theirs_in)
        os.close(theirs_out)
        self.reads, self.writes, self.number, self.rest = ours_in, ours_out, 0, b""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.call("Page.enable")

    def messages(self):
        while True:
            *whole, self.rest = (self.rest + os.read(self.reads, 1 << 20)).split(b"\0")
            yield from map(json.loads, whole)

    def call(self, method, **parameters):
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if hasattr(self, "session"):
            message["sessionId"] = self.session
        os.write(self.writes, json.dumps(message).encode() + b"\0")
        for answer in self.messages():
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise SystemExit(f"screenshots: {method}: {answer['error']['message']}")
                return answer["result"]

    def evaluate(self, script):
        return self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)["result"].get("value")

    def open(self, url, width, height, dark):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])
        self.call("Page.navigate", url=url)
        for _ in range(100):
            time.sleep(0.1)
            if self.evaluate("location.href != 'about:blank' && document.readyState == 'complete'"):
                break
        time.sleep(0.4)

    def sideways(self):
        """The pixels by which the page is wider than the window."""
        return self.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")

    def picture(self, path, clip=None, whole=False):
        """PNG of the window; of the whole page; or of clip, (x, y, width, height) of the page."""
        parameters = {}
        if whole:
            size = self.call("Page.getLayoutMetrics")["cssContentSize"]
            clip = (0, 0, size["width"], min(size["height"], 12000))
        if clip:
            parameters = {"clip": dict(zip(("x", "y", "width", "height"), clip), scale=1), "captureBeyondViewport": True}
        pathlib.Path(path).write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png", **parameters)["data"]))

    def close(self):
        self.call("Browser.close")
        self.process.wait(20)
        shutil.rmtree(self.profile, ignore_errors=True)
