"""The part `film` of nvidia.py: `examples/demo.sh --gpu` leaves its page and its timeline in the results."""

import json
import pathlib
import subprocess

import nvidia

DEMO = pathlib.Path(__file__).resolve().parents[2] / "examples/demo.sh"
QUICK_SECONDS, SECONDS = 8, 20  # Of each of the four runs.


def film(on):
    """examples/demo.sh --gpu writes a page and a timeline"""
    if not on.torch:
        on.note("without PyTorch: not tested")
        on.skipped = True
        return
    page, timeline = on.out / "film.html", on.out / "film-trace.json"
    output = on.out / "film.txt"
    with open(output, "wb") as file:
        process = subprocess.Popen([DEMO, "--gpu", "--seconds", str(QUICK_SECONDS if on.quick else SECONDS), "--report",
                                    page, "--trace-out", timeline], stdout=file, stderr=file,
                                   env={**on.environment, "SLUICE_BIN": str(pathlib.Path(on.sluice).parent)},
                                   preexec_fn=nvidia.die_with_parent)
    on.others.append(process)
    code = process.wait(max(1, on.deadline - nvidia.now() - nvidia.PATIENCE))
    text = output.read_text(encoding="utf-8", errors="replace")
    for line in text.splitlines():
        on.say("| " + line)
    if code != 0:
        raise nvidia.Failure(f"examples/demo.sh ended with code {code}: {nvidia.last_line(text)}")
    if not json.loads(timeline.read_text(encoding="utf-8")) or not page.stat().st_size:
        raise nvidia.Failure(f"{timeline} or {page} is empty")
