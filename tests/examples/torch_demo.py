#!/usr/bin/env python3
"""usage: torch_demo.py SLUICE OFFLINE_DEMO   (beside a simulated GPU)

examples/torch_server/README.md: `examples/demo.sh --gpu`, with a module in place of PyTorch. offline_demo is what sluice
holds, because that module uses no GPU. No test judges a latency."""

import html.parser
import importlib.util
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

SLUICE, OFFLINE = map(os.path.abspath, sys.argv[1:3])
TREE = pathlib.Path(__file__).resolve().parents[2]
PAGE = TREE / "examples/torch_server/README.md"
PATIENCE = 120
VOID = {"meta", "link", "br"}


class Tags(html.parser.HTMLParser):
    """Whether each tag of a page is closed, and what its cells contain."""

    def __init__(self, text):
        super().__init__()
        self.open, self.wrong, self.count, self.cells = [], [], {}, []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.count[tag] = self.count.get(tag, 0) + 1
        if tag not in VOID:
            self.open.append(tag)
        self.wrong += [f"{tag} {key}" for key, value in attrs if key in ("src", "href")]

    def handle_startendtag(self, tag, attrs):
        self.count[tag] = self.count.get(tag, 0) + 1

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.wrong.append(f"/{tag}")

    def handle_data(self, data):
        if self.open and self.open[-1] == "td":
            self.cells.append(data)


def left_running(folder):
    """Processes whose environment has that folder as TMPDIR."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"TMPDIR={folder}".encode() in path.read_bytes().split(b"\0"):
                found.append((path.parent / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            pass  # It has ended, or is another's.
    return found


class Demo(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        scratch = self.folder / "scratch"
        scratch.mkdir()
        self.environment = {**os.environ, "PYTHONPATH": str(TREE / "tests/examples/pretended"), "TMPDIR": str(scratch),
                            "SLUICE_DIRECTORY": str(self.folder), "SLUICE_BIN": str(pathlib.Path(SLUICE).parent),
                            "PYTHONDONTWRITEBYTECODE": "1"}

    def command(self, seconds):
        """The command of the page, with this test's files and duration."""
        text = re.search(r"^examples/demo\.sh --gpu .*$", PAGE.read_text(), re.M)[0]
        self.assertIn("--report", text)
        for name in re.findall(r"(?:--report|--trace-out) (\S+)", text):
            text = text.replace(name, str(self.folder / pathlib.Path(name).name))
        return f"{text} --seconds {seconds}"

    def offline(self):
        process = subprocess.Popen([OFFLINE], env={**os.environ, "AMD_QUEUE_TAG": "OFFLINE_AI"}, stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL)
        self.addCleanup(process.wait)
        self.addCleanup(process.terminate)
        return process

    def check_all_ended(self):
        self.assertEqual(left_running(self.folder / "scratch"), [])
        self.assertEqual(list((self.folder / "scratch").iterdir()), [])

    def refused(self, *options, **environment):
        done = subprocess.run([TREE / "examples/demo.sh", "--gpu", *options], env={**self.environment, **environment},
                              capture_output=True, text=True, timeout=PATIENCE, check=False)
        self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
        self.assertRegex(done.stderr, r"^demo\.sh: [^\n]+\n$")
        self.check_all_ended()
        return done.stderr

    def test_a_run(self):
        process = self.offline()
        done = subprocess.run(["bash", "-c", self.command(2)], cwd=TREE, env=self.environment, capture_output=True,
                              text=True, timeout=PATIENCE, check=False)
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
        for name in ("server alone", "training alone", "together, no scheduler", "together, under sluice"):
            self.assertRegex(done.stdout, rf"(?m)^{name} +\d+ +0 +")
        self.assertRegex(done.stdout, rf"(?m)^torch_server held offline_demo \({process.pid}\) \d+ times, for ")
        page = next(self.folder.glob("*.html")).read_text(encoding="utf-8")
        tags = Tags(page)
        self.assertEqual((tags.open, tags.wrong), ([], []))
        self.assertEqual(tags.count["table"], 2)
        self.assertIn(tags.count["svg"], (2, 3))  # On a busy machine, the training may print too few lines.
        self.assertIn("The GPU is simulated", page)
        self.assertIn(f"offline_demo ({process.pid})", tags.cells)
        events = json.loads(next(self.folder.glob("*.json")).read_text(encoding="utf-8"))
        names = {each["name"] for each in events}
        self.assertTrue({"online work", "request", "queues suspended or in doubt"} <= names, names)
        self.check_all_ended()
        self.assertIsNone(process.poll())

    def test_an_interrupt(self):
        """In the middle of a run under sluice, which holds a process."""
        process = self.offline()
        output = self.folder / "output"
        with open(output, "wb") as file:
            demo = subprocess.Popen(["bash", "-c", "exec " + self.command(1)], cwd=TREE, env=self.environment, stdout=file,
                                    stderr=file, start_new_session=True)
        until = time.monotonic() + PATIENCE
        while "together, under sluice" not in output.read_text() and demo.poll() is None and time.monotonic() < until:
            time.sleep(0.05)
        time.sleep(0.2)
        os.killpg(demo.pid, signal.SIGINT)
        self.assertEqual(demo.wait(PATIENCE), 130, output.read_text())
        self.assertNotIn("Traceback", output.read_text())
        self.assertEqual(list(self.folder.glob("*.html")), [])
        self.check_all_ended()
        self.assertIsNone(process.poll())

    def test_what_is_missing(self):
        self.assertIn("no NVIDIA driver is loaded", self.refused(SLUICE_NVIDIA_PROC=str(self.folder)))
        if not importlib.util.find_spec("torch"):
            self.assertIn("PyTorch is not installed", self.refused(PYTHONPATH=""))
        self.assertIn("build sluice, or use --bundle DIR", self.refused("--bundle", str(self.folder)))
        self.assertIn("out of range; expected 1 to 600", self.refused("--seconds", "0"))
        self.assertIn("unrecognized arguments: --load", self.refused("--load", "long"))
        self.assertIn("cannot write", self.refused("--report", str(self.folder / "missing/page.html")))

    def test_a_server_that_cannot_start(self):
        (self.folder / "torch.py").write_text("raise ImportError('no CUDA here')")
        done = subprocess.run([TREE / "examples/demo.sh", "--gpu"], env={**self.environment, "PYTHONPATH": str(self.folder)},
                              capture_output=True, text=True, timeout=PATIENCE, check=False)
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, r"^demo\.sh: server\.py ended with code 1: server\.py: cannot import PyTorch: .*\n$")
        self.check_all_ended()


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
