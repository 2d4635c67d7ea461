# SPDX-License-Identifier: MIT
"""Draws the pictures of docs/assets/screens: a terminal of tmux as SVG, pages in a headless Chromium as PNG. scripts/screenshots.sh calls it.

Usage: screenshots.py BIN SITE CHROMIUM   folders of the programs and of the site, and the browser's program
"""
import atexit
import base64
import html
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

ANSI = re.compile(r"\033\[([0-9;]*)m")
# Of the terminal, dark whatever the page is: colours by their number in the escape sequence.
COLOURS = {31: "#ff7b72", 32: "#7ee787", 33: "#e3b341", 34: "#79c0ff", 35: "#d2a8ff", 36: "#76e3ea"}
PAPER, INK, FAINT = "#161b22", "#e6edf3", "#9aa7b4"


ROOT = pathlib.Path(__file__).resolve().parent.parent
SCREENS = ROOT / "docs/assets/screens"
PROMPT = r"^\$ ?$"
TRAIN = """tessera-finetune-squad --model_config bloom-mini --max_steps 40 \\
--tokenizer examples/data/tokenizer --max_seq_length 192 \\
--train_file examples/data/squad_sample.json --learning_rate 2e-3 \\
--validation_file examples/data/squad_sample.json \\
--ranks 2 --strategy zero2 --output_dir runs/first"""
COMPARE = """tessera-compare --config examples/compare/demo.json --max_steps 24 \\
--strategies ddp,zero2,zero3 --rank_counts 2 --launcher threads \\
--output_dir runs/compare"""


class Terminal:
    """bash in a window of so many columns and lines. It needs tmux."""

    number = 0

    def __init__(self, columns, lines, folder, path, environment=None):
        Terminal.number += 1
        self.name = f"shots{os.getpid()}-{Terminal.number}"
        settings = {"PS1": "$ ", "PS2": "    ", "PATH": f"{path}:{os.environ['PATH']}", "TERM": "tmux-256color", "OMP_NUM_THREADS": "1", "LC_ALL": "C.UTF-8",
                    **(environment or {})}
        given = [f"{key}={value}" for key, value in settings.items()]
        self.tmux("-f", "/dev/null", "new-session", "-d", "-x", str(columns), "-y", str(lines), "-c", str(folder), "env", *given,
                  "bash", "--norc", "--noprofile")
        atexit.register(self.close)
        time.sleep(0.5)

    def tmux(self, *words):
        return subprocess.run(["tmux", "-L", self.name, *words], check=True, capture_output=True, text=True).stdout

    def type(self, command):
        for line in command.split("\n"):
            self.tmux("send-keys", "-l", "--", line)
            self.tmux("send-keys", "Enter")

    def text(self, colours=False):
        return self.tmux("capture-pane", "-p", *(["-e"] if colours else []))

    def wait_for(self, pattern, seconds=300):
        """Until the window has a line that matches; PROMPT after a command."""
        until = time.monotonic() + seconds
        while not re.search(pattern, self.text(), re.MULTILINE):
            if time.monotonic() > until:
                raise SystemExit(f"screenshots: after {seconds} s the terminal does not show {pattern}:\n{self.text()}")
            time.sleep(0.1)

    def close(self):
        subprocess.run(["tmux", "-L", self.name, "kill-server"], check=False, capture_output=True)


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
    bold, faint, colour = False, False, ""
    for at, row in enumerate(rows):
        column, y = 0, pad + at * line + 13
        for i, piece in enumerate(ANSI.split(row)):
            if i % 2 == 1:
                for code in (int(word or 0) for word in piece.split(";")):
                    bold = code == 1 or (bold and code not in (0, 22))
                    faint = code == 2 or (faint and code not in (0, 22))
                    colour = COLOURS.get(code, "" if code in (0, 39) else colour)
                continue
            fill = colour or (FAINT if faint else "")
            for word in re.finditer(r"\S+(?: \S+)*", piece):
                style = (' font-weight="600"' if bold else "") + (f' fill="{fill}"' if fill else "")
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


def save(name, text, columns, said):
    (SCREENS / f"{name}.svg").write_text(terminal_svg(drop_prompt(text), columns, said), encoding="utf-8")


def terminal_pictures(folder, programs):
    """Of 80 columns unless the name says otherwise. Leaves the runs in `folder`."""
    terminal = Terminal(80, 60, folder, programs)
    terminal.type(TRAIN)
    terminal.wait_for(r"^step 1[4-8]/")
    time.sleep(0.3)
    save("train", terminal.text(True), 80, "A training run: what it found, a line for some steps, and a progress bar")
    terminal.wait_for(PROMPT)
    text = terminal.text(True)
    save("train_end", text[text.index("eval at step 40"):], 80, "The end of a run: results, memory beside its plan, files, and the next commands")
    terminal.close()

    for name, columns in (("compare", 80), ("compare_wide", 140)):
        terminal = Terminal(columns, 60, folder, programs)
        terminal.type(COMPARE if name == "compare" else COMPARE.replace("\\\n", ""))  # the second call finds all runs done
        terminal.wait_for(r"^report: ", 600)
        terminal.wait_for(PROMPT)
        save(name, terminal.text(True), columns, "tessera-compare: speed, memory, and the differences of the numbers of each strategy")
        terminal.close()

    for name, lines, commands, said in (
            ("help", 24, ["tessera-finetune-squad --help"], "--help on a terminal of 24 lines: twenty flags with type and default"),
            ("help_all", 400, ["tessera-finetune-squad --help all"], "The first lines of --help all, in a window of 80 columns"),
            ("error", 24, ["tessera-finetune-squad --model_config bloom-mini --stratgy zero2",
                           "tessera-finetune-squad --model_config bloom-mini --strategy zero9",
                           "tessera-compare --strategies ddp --output_dir out --task sqad"], "Three mistakes, and what is said of them"),
            ("no_color", 60, ["NO_COLOR=1 tessera-finetune-squad --model_config bloom-mini \\\n--random_rows 16 --max_seq_length 64 --max_steps 2 --output_dir runs/plain"],
             "A run with NO_COLOR set")):
        terminal = Terminal(80, lines, folder, programs)
        for command in commands:
            terminal.type(command)
            time.sleep(2)  # the prompt of before is gone
            terminal.wait_for(PROMPT)
        text = terminal.text(True)
        save(name, "\n".join(text.split("\n")[:30]) if name == "help_all" else text, 80, said)
        terminal.close()


def report_pictures(folder, programs, browser):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}

    def run(*command):
        return subprocess.Popen([f"{programs}/{command[0]}", *command[1:]], cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    page = f"file://{folder}/runs/compare/report.html"
    for name, width, height, dark in (("report_light", 1280, 860, False), ("report_dark", 1280, 860, True), ("report_phone_light", 390, 844, False),
                                      ("report_phone_dark", 390, 844, True)):
        browser.open(page, width, height, dark)
        if dark:
            browser.evaluate("document.getElementById('memory').scrollIntoView()")
        shoot(browser, name)
    words = TRAIN.replace("\\\n", "").replace("--max_steps 40", "--max_steps 200").replace("runs/first", "runs/long").split()
    training = run(*words)
    time.sleep(20)
    watching = run("tessera-report", "runs/long", "--watch", "--output_dir", "runs/watch")
    time.sleep(5)
    for name, width, height in (("watch", 1280, 860), ("watch_phone", 390, 844)):
        browser.open(f"file://{folder}/runs/watch/report.html", width, height, False)
        shoot(browser, name)
    for process in (watching, training):
        process.terminate()
        process.wait()


def site_pictures(site, browser):
    for name, page, width, height, dark in (("site_light", "index", 1280, 800, False), ("site_dark", "get-started/quickstart", 1280, 800, True),
                                            ("site_phone_light", "index", 390, 844, False), ("site_phone_dark", "guides/comparing", 390, 844, True)):
        browser.open(f"file://{site}/{page}.html", width, height, dark)
        shoot(browser, name)


def shoot(browser, name):
    if browser.sideways():
        raise SystemExit(f"screenshots: {name}: the page is wider than its window")
    path = SCREENS / f"{name}.png"
    browser.picture(path)
    subprocess.run(["pngquant", "--force", "--strip", "--speed", "1", "--output", path, "48", path], check=True)


def main():
    programs, site, chromium = sys.argv[1:]
    SCREENS.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="screens") as folder:
        (pathlib.Path(folder) / "examples").symlink_to(ROOT / "examples")
        terminal_pictures(folder, pathlib.Path(programs).resolve())
        browser = Browser(chromium)
        report_pictures(folder, pathlib.Path(programs).resolve(), browser)
        site_pictures(pathlib.Path(site).resolve(), browser)
        browser.close()
    for path in sorted(SCREENS.iterdir()):
        print(f"{path.stat().st_size:7d} {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
