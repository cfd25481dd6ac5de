#!/usr/bin/env python3
"""usage: pictures.py [--write]
       pictures.py screenshot FILE.html|FILE.json PICTURE.png [PERFETTO]

Draws core/architecture.svg and examples/demo/latency.svg from the data in tests/docs/pictures. Without --write, checks
that the files are what it would draw. latency.json is what `examples/demo.sh --load long --json FILE` wrote.

screenshot needs Chromium, and takes a picture of a page or of a timeline, such as those of `examples/demo.sh --gpu`. It
opens a timeline in PERFETTO (default: https://ui.perfetto.dev), and shows half a second in the middle."""

import functools
import http.server
import json
import math
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading
import urllib.parse
from xml.sax.saxutils import escape

here = pathlib.Path(__file__).resolve().parent
top = here.parent.parent

# Text has a contrast of 4.5:1 or more on the background of its theme, points and lines of 3:1.
STYLE = """<style>
text{font:13px system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans",sans-serif;fill:#171b21}
.dim{fill:#58616d}.title{font-weight:600}.small{font-size:12px}
.box{fill:#f4f6f8;stroke:#8a94a0}.frame{fill:none;stroke:#58616d;stroke-dasharray:5 4}
.online{fill:#d7e9fb;stroke:#2379c9}.offline{fill:#fbe6cf;stroke:#b5620a}
.arrow{fill:none;stroke:#58616d;stroke-width:1.5}.head{fill:#58616d}
.grid{stroke:#dfe4e9}.axis{stroke:#58616d}
.alone{fill:#58616d}.unscheduled{fill:#c2410c}.scheduled{fill:#1668b8}
@media (prefers-color-scheme:dark){
text{fill:#e7eaee}.dim{fill:#a4adb9}
.box{fill:#1d2229;stroke:#6b7684}.frame{stroke:#a4adb9}
.online{fill:#16324f;stroke:#5aa7ee}.offline{fill:#46301a;stroke:#e0933a}
.arrow{stroke:#a4adb9}.head{fill:#a4adb9}.grid{stroke:#2f3640}.axis{stroke:#a4adb9}
.alone{fill:#a4adb9}.unscheduled{fill:#ff8d55}.scheduled{fill:#69b1ff}}
</style>"""


def number(value):
    return f"{value:.1f}".rstrip("0").rstrip(".")


def text(x, y, words, style="", anchor="start"):
    return f'<text x="{number(x)}" y="{number(y)}" class="{style}" text-anchor="{anchor}">{escape(words)}</text>'


def picture(width, height, about, parts):
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
                      f'height="{height}" role="img">', f"<title>{escape(about)}</title>", STYLE, *parts, "</svg>", ""])


def architecture(of):
    parts = ['<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
             '<path class="head" d="M0 0 8 4 0 8z"/></marker></defs>']
    for box in of["boxes"]:
        x, y, width, height = box["at"]
        kind = box.get("kind", "box")
        parts.append(f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{height}" rx="6"/>')
        if kind == "frame":
            parts.append(text(x + width / 2, y - 10, box["title"], "title", "middle"))
            if "note" in box:
                parts.append(text(x + width / 2, y + 26, box["note"], "dim small", "middle"))
            continue
        parts.append(text(x + 10, y + 20, box["title"], "title"))
        for row, line in enumerate(box.get("text", [])):
            parts.append(text(x + 10, y + 38 + 16 * row, line, "dim small"))
    for arrow in of["arrows"]:
        points = "L".join(f"{x} {y}" for x, y in arrow["path"])
        parts.append(f'<path class="arrow" marker-end="url(#head)" d="M{points}"/>')
        if "label" in arrow:
            parts.append(text(*arrow["at"], arrow["label"], "small", "middle"))
    return picture(*of["size"], of["about"], parts)


def latency(of):
    width, height, left, right, upper, lower = 840, 380, 64, 20, 62, 330
    runs = [("online_alone", "alone", "online alone"), ("unscheduled", "unscheduled", "with offline work, no scheduler"),
            ("scheduled", "scheduled", "with offline work, under sluice")]
    points = {key: of["runs"][key]["arrival_and_latency_ms"] for key, _, _ in runs}
    lowest, highest = 10.0, 10000.0
    last = math.ceil(max(arrival for each in points.values() for arrival, _ in each) / 1000)

    def across(ms):
        return left + (width - left - right) * ms / (1000 * last)

    def down(ms):
        share = (math.log10(min(max(ms, lowest), highest)) - math.log10(lowest)) / math.log10(highest / lowest)
        return lower - (lower - upper) * share

    parts = []
    for value, label in (10, "10 ms"), (100, "100 ms"), (1000, "1 s"), (10000, "10 s"):
        parts.append(f'<path class="grid" d="M{left} {number(down(value))}H{width - right}"/>')
        parts.append(text(left - 8, down(value) + 4, label, "dim small", "end"))
    parts.append(f'<path class="axis" d="M{left} {lower}H{width - right}"/>')
    for second in range(last + 1):
        parts.append(text(across(1000 * second), lower + 20, f"{second} s", "dim small", "middle"))
    parts.append(text((left + width - right) / 2, lower + 40, "arrival of the request", "dim small", "middle"))
    parts.append(text(left, 18, "Latency of each online request", "title"))
    legend = left
    for key, style, name in runs:
        run = of["runs"][key]
        label = f"{name}: p99 {run['p99_ms'] / 1000:.1f} s" if run["p99_ms"] >= 1000 else f"{name}: p99 {run['p99_ms']:.0f} ms"
        parts.append(f'<circle class="{style}" cx="{legend + 5}" cy="38" r="4"/>')
        parts.append(text(legend + 14, 42, label, "small"))
        legend += 26 + 6.4 * len(label)
        parts.append(f'<g class="{style}">')
        parts += [f'<circle cx="{number(across(arrival))}" cy="{number(down(took))}" r="3"/>' for arrival, took in points[key]]
        parts.append("</g>")
    return picture(width, height, "Latency of each online request over the time of its arrival, on a simulated GPU", parts)


class Files(http.server.SimpleHTTPRequestHandler):
    """Files that a page of another address may read."""

    def end_headers(self):
        self.send_header("Access-Control-Allow-Origin", "*")
        super().end_headers()

    def log_message(self, *_):
        pass


def timeline_address(file, perfetto):
    """Where Perfetto opens the timeline: all rows, and half a second in the middle of the work of online programs."""
    text = file.read_text(encoding="utf-8").rstrip()
    events = json.loads(text if text.endswith("]") else text.rstrip(",") + "]")  # A daemon that was killed left no bracket.
    times = sorted(each["ts"] for each in events if each.get("name") == "online work") or [0]
    middle = times[len(times) // 2]
    query = {"url": f"http://127.0.0.1:9001/{urllib.parse.quote(file.name)}", "hideSidebar": "true",
             "visStart": max(0, 1000 * middle - 250_000_000), "visEnd": 1000 * middle + 250_000_000,
             "startupCommands": json.dumps([{"id": "dev.perfetto.ExpandTracksByRegex", "args": [".*"]}])}
    return f"{perfetto}/#!/?{urllib.parse.urlencode(query, quote_via=urllib.parse.quote)}"


def screenshot(file, picture, perfetto="https://ui.perfetto.dev"):
    file, picture = pathlib.Path(file).resolve(), pathlib.Path(picture).resolve()
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if not browser:
        sys.exit("pictures.py: Chromium is missing; install the package chromium")
    is_page = file.suffix == ".html"
    address = file.as_uri() if is_page else timeline_address(file, perfetto.rstrip("/"))
    picture.unlink(missing_ok=True)
    # Perfetto's page may only read files of this port.
    server = None if is_page else http.server.ThreadingHTTPServer(
        ("127.0.0.1", 9001), functools.partial(Files, directory=file.parent))
    if server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory() as profile:
        done = subprocess.run([browser, "--headless", *(["--no-sandbox"] if os.geteuid() == 0 else []), "--disable-gpu",
                               "--hide-scrollbars", f"--user-data-dir={profile}", "--force-device-scale-factor=1",
                               f"--window-size=1200,{1680 if is_page else 900}", "--virtual-time-budget=30000",
                               f"--screenshot={picture}", address], capture_output=True, text=True, timeout=180, check=False)
    if server:
        server.shutdown()
    if done.returncode != 0 or not picture.is_file():
        sys.exit(f"pictures.py: {browser} made no picture: {(done.stderr.strip().splitlines() or ['no output'])[-1]}")


if sys.argv[1:2] == ["screenshot"]:
    if len(sys.argv) not in (4, 5):
        sys.exit(__doc__)
    screenshot(*sys.argv[2:])
    sys.exit()

drawn = {
    "core/architecture.svg": architecture(json.loads((here / "pictures/architecture.json").read_text(encoding="utf-8"))),
    "examples/demo/latency.svg": latency(json.loads((here / "pictures/latency.json").read_text(encoding="utf-8"))),
}
stale = [name for name, made in drawn.items()
         if not (top / name).is_file() or (top / name).read_text(encoding="utf-8") != made]
if sys.argv[1:] == ["--write"]:
    for name in stale:
        (top / name).write_text(drawn[name], encoding="utf-8")
elif stale:
    sys.exit(f"{', '.join(stale)}: not drawn from the current data; run tests/docs/pictures.py --write")
