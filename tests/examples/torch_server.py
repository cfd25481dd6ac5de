#!/usr/bin/env python3
"""usage: torch_server.py SLUICE CLIENT_LIBRARY   (beside a simulated GPU)

examples/torch_server/README.md: its commands, with a module in place of PyTorch and with a daemon on the simulated GPU;
then how the server answers, and how both programs end without PyTorch."""

import http.client
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

SLUICE, LIBRARY = map(os.path.abspath, sys.argv[1:3])
TREE = pathlib.Path(__file__).resolve().parents[2]
PAGE = TREE / "examples/torch_server/README.md"
PATIENCE = 60

def wait_until(what, condition):
    deadline = time.monotonic() + PATIENCE
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {PATIENCE} s: {what}")
        time.sleep(0.01)
    return value


class TorchServer(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.environment = {**os.environ, "PYTHONPATH": str(TREE / "tests/examples/pretended"),
                            "SLUICE_DIRECTORY": str(self.folder), "SLUICE_CLIENT_SOCKET": str(self.folder / "clients.sock"), "SLUICE_ROLES": "store = ''",
                            "SLUICE_BREAKERS": str(self.folder / "breakers"), "PYTHONDONTWRITEBYTECODE": "1"}

    def start(self, text):
        """Runs commands of the page; returns the file of what they print. They end with the test."""
        output = self.folder / "output"
        with open(output, "wb") as file:
            process = subprocess.Popen(["bash", "-c", text + "\nwait"], cwd=TREE, env=self.environment, stdout=file,
                                       stderr=file, start_new_session=True)

        def end():
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(PATIENCE)

        self.addCleanup(end)
        return output

    def typed(self, text):
        """The commands with this test's paths and port."""
        configuration = (TREE / "examples/torch_server/sluice.toml").read_text()
        (self.folder / "sluice.toml").write_text(
            configuration.replace("[daemon]\n", f'[daemon]\ndriver = "nvidia"\ndirectory = "{self.folder}"\n'))
        for old, new in (("examples/torch_server/sluice.toml", str(self.folder / "sluice.toml")),
                         ("$PWD/build/release/lib/libsluice_client.so.0", LIBRARY),
                         ("build/release/bin/sluice", SLUICE), ("--port 8000", "--port 0")):
            text = text.replace(old, new)
        return text

    def ask(self, port, method, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        connection.request(method, path, body)
        answer = connection.getresponse()
        content = json.loads(answer.read())
        connection.close()
        return answer.status, content

    def status(self):
        done = subprocess.run([SLUICE, "status", "--json"], env=self.environment, capture_output=True, text=True)
        return json.loads(done.stdout) if done.returncode == 0 else {"clients": []}

    def test_the_page(self):
        start, use = re.findall(r"^```sh\n(.*?)^```$", PAGE.read_text(), re.M | re.S)[:2]
        output = self.start(self.typed(start))
        text = lambda: output.read_text(errors="replace")
        port = int(wait_until(f"address of the server: {text()}",
                              lambda: re.search(r"serving on http://127\.0\.0\.1:(\d+)", text()))[1])
        wait_until("the server is a client", lambda: "torch_server" in [each["name"] for each in self.status()["clients"]])
        wait_until("the role of the training", lambda: re.search(r"process \d+ \(train\) .*registered as offline", text()))
        begun = self.status()["statistics"]["begins"]
        done = subprocess.run(["bash", "-e", "-c", self.typed(use).replace(":8000", f":{port}")], cwd=TREE,
                              env=self.environment, capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(json.loads(done.stdout.splitlines()[0]), {"embedding": [0.5] * 8})
        self.assertIn("torch_server", done.stdout)
        wait_until("one request", lambda: self.status()["statistics"]["begins"] == begun + 1)
        wait_until("progress of the training", lambda: re.search(r"^step \d+, \d+\.\d+ s, loss 0\.2500$", text(), re.M))
        # What is wrong is not online work.
        for request, code in ((("GET", "/healthz"), 200), (("GET", "/other"), 404), (("POST", "/other", "{}"), 404),
                              (("POST", "/embed", "text"), 400), (("POST", "/embed", '{"text": 1}'), 400),
                              (("POST", "/embed", "[]"), 400), (("POST", "/embed", "x" * 65537), 400)):
            status, content = self.ask(port, *request)
            self.assertEqual(status, code, request[:2])
            self.assertIn("status" if code == 200 else "error", content)
        self.assertEqual(self.ask(port, "POST", "/embed", '{"text": ""}')[0], 200)
        wait_until("one more request", lambda: self.status()["statistics"]["begins"] >= begun + 2)
        self.assertEqual(self.status()["statistics"]["begins"], begun + 2)

    def test_without_a_package(self):
        self.environment["PYTHONPATH"] = f"{self.folder}:{self.environment['PYTHONPATH']}"
        for package, what in (("torch", "PyTorch"), ("sluice", "sluice")):
            missing = self.folder / f"{package}.py"
            missing.write_text("raise ImportError('no such module')")
            for program in ("server.py", "train.py"):
                done = subprocess.run([sys.executable, TREE / "examples/torch_server" / program], env=self.environment,
                                      capture_output=True, text=True, check=False)
                self.assertEqual((done.returncode, done.stdout), (1, ""))
                self.assertRegex(done.stderr, f"^{program}: cannot import {what}: no such module; (install|add) .*\n$")
            missing.unlink()


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
