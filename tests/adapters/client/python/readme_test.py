"""What the package's README.md says to type: its Python, and its commands where SLUICE_TEST_PREFIX has sluice
installed."""

import asyncio
import functools
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

from starlette.applications import Starlette

import sluice
from node import PATIENCE, NodeTest

TREE = pathlib.Path(__file__).resolve().parents[4]
README = TREE / "adapters/client/python/README.md"


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", README.read_text(), re.M | re.S)


class Readme(NodeTest):
    def test_its_python_runs(self):
        names = {"model": lambda question: f"what is said of {question}", "app": Starlette()}
        texts = blocks("python")
        self.assertEqual(len(texts), 3)

        async def collect():
            return [word async for word in names["tokens"]("sluices")]

        connects = functools.partial(sluice.connect, required=True, timeout=PATIENCE)
        # What begins and ends before a scheduler knows of the client is counted by none.
        with self.begun(5), unittest.mock.patch("sluice.connect", connects):
            for text in texts:
                exec(compile(text, README, "exec"), names)
            self.assertEqual(names["embed"]("x"), "what is said of x")
            self.assertEqual(asyncio.run(collect()), ["what", "is", "said", "of", "sluices"])
            asyncio.run(names["answer"]("a"))
        names["client"].close()

    def test_its_commands_run(self):
        prefix = os.environ["SLUICE_TEST_PREFIX"]
        installed, from_sources = blocks("sh")
        clean = {key: os.environ[key] for key in ("PATH", "HOME")} | {"PYTHONDONTWRITEBYTECODE": "1"}
        with tempfile.TemporaryDirectory() as place:
            python = pathlib.Path(place) / "python3"  # Whatever python3 is first in PATH.
            python.symlink_to(sys.executable)
            clean["PATH"] = f"{place}:{clean['PATH']}"

            def run(text, **more):
                command = ["bash", "-euo", "pipefail", "-c", text]
                return subprocess.run(
                    command, cwd=TREE, env=clean | more, check=True, text=True, stdout=subprocess.PIPE
                ).stdout

            # It has found the library: what is missing is a scheduler.
            said = run(installed, PREFIX=prefix, SLUICE_CLIENT_SOCKET="/nonexistent")
            self.assertRegex(said, "^<sluice.Client (connecting to|no scheduler at) /nonexistent")
            path = "from sluice import _client; print(_client._load().path)"
            where = run(f"{installed}\npython3 -c '{path}'", PREFIX=prefix)
            self.assertTrue(where.splitlines()[-1].startswith(prefix + "/"), where)
            # Into a folder of the test's, in place of a virtual environment.
            run(from_sources, PIP_TARGET=f"{place}/site", PIP_ROOT_USER_ACTION="ignore")
            version = "import sluice.asgi; print(sluice.__version__, sluice.__file__)"
            self.assertEqual(
                run(f'python3 -c "{version}"', PYTHONPATH=f"{place}/site").split(),
                ["0.1.0", f"{place}/site/sluice/__init__.py"],
            )


if __name__ == "__main__":
    unittest.main(verbosity=2)
