"""The HTML page of demo.py: it needs no other file."""

import html
import math
import pathlib
import shlex

WIDTH, LEFT, RIGHT = 1040, 64, 12
# By the names of the runs.
STYLES = {"server alone": "alone", "training alone": "alone", "together, no scheduler": "unscheduled",
          "together, under sluice": "scheduled"}


def number(value):
    return f"{value:.1f}".rstrip("0").rstrip(".")


def cell(value, form="{:.1f}"):
    return "" if value is None else form.format(value)


def text(x, y, words, style="", anchor="start"):
    return f'<text x="{number(x)}" y="{number(y)}" class="{style}" text-anchor="{anchor}">{html.escape(words)}</text>'


def mark(style, x, y):
    """A point of a run; the runs also differ in shape."""
    if style == "unscheduled":
        return f'<path class="cross" d="M{number(x - 3)} {number(y - 3)}l6 6m0-6l-6 6"/>'
    if style == "alone":
        return f'<path class="mark" d="M{number(x)} {number(y - 3.5)}l3.5 3.5-3.5 3.5-3.5-3.5z"/>'
    return f'<circle class="mark" cx="{number(x)}" cy="{number(y)}" r="2.7"/>'


def steps_between(low, high, most):
    """A round distance of ticks, of which there are at most so many."""
    least = (high - low) / most
    power = 10 ** math.floor(math.log10(least))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= least * 0.999)


class Chart:
    """An SVG with seconds from left to right."""

    def __init__(self, title, upper, height, begin, end):
        self.title, self.upper, self.lower, self.begin, self.end = title, upper, upper + height, begin, end
        self.parts = []

    def across(self, at):
        return LEFT + (WIDTH - LEFT - RIGHT) * (min(max(at, self.begin), self.end) - self.begin) / (self.end - self.begin)

    def line(self, y, label):
        self.parts += [f'<path class="grid" d="M{LEFT} {number(y)}H{WIDTH - RIGHT}"/>', text(LEFT - 8, y + 4, label, "tick", "end")]

    def legend(self, entries):
        x = LEFT
        for style, words in entries:
            self.parts += [f'<g class="{style}">{mark(style, x + 5, 12)}</g>', text(x + 14, 16, words)]
            x += 40 + 6.6 * len(words)

    def seconds(self, title):
        self.parts.append(f'<path class="axis" d="M{LEFT} {self.lower}H{WIDTH - RIGHT}"/>')
        step = steps_between(self.begin, self.end, 10)
        for count in range(math.ceil(self.begin / step), math.floor(self.end / step + 1e-6) + 1):
            self.parts.append(text(self.across(count * step), self.lower + 18, f"{round(count * step, 3):g} s", "tick", "middle"))
        self.parts.append(text((LEFT + WIDTH - RIGHT) / 2, self.lower + 36, title, "tick", "middle"))

    def drawn(self):
        return (f'<svg viewBox="0 0 {WIDTH} {self.lower + 42}" role="img"><title>{html.escape(self.title)}</title>'
                + "\n".join(self.parts) + "</svg>")


def latencies(results):
    runs = [run for run in results["runs"] if run["answers"]]
    all_ = [latency for run in runs for _, latency in run["answers"]]
    low, high = math.floor(math.log10(min(all_))), math.ceil(math.log10(max(all_)))
    high = max(high, low + 1)
    chart = Chart("Latency of each request over the time of its arrival", 30, 290, 0, results["seconds"])
    down = lambda ms: chart.lower - (chart.lower - chart.upper) * (math.log10(ms) - low) / (high - low)
    for power in range(low, high + 1):
        chart.line(down(10 ** power), f"{10 ** power:g} ms" if power < 3 else f"{10 ** (power - 3):g} s")
    chart.seconds("arrival of the request")
    chart.legend([(STYLES[run["name"]], f"{run['name']}: p99 {run['p99_ms']:.1f} ms") for run in runs])
    for run in runs:
        style = STYLES[run["name"]]
        chart.parts.append(f'<g class="{style}">' + "".join(mark(style, chart.across(at), down(ms)) for at, ms in run["answers"]) + "</g>")
    return chart.drawn()


def offline_steps(results):
    runs = [run for run in results["runs"] if run.get("steps")]
    if not runs:
        return "<p>The training printed fewer than two lines in each run.</p>"
    most = max(rate for run in runs for _, rate in run["steps"])
    tick = steps_between(0, most, 5)
    top = tick * math.ceil(most / tick)
    chart = Chart("Steps of the training per second", 30, 180, 0, results["seconds"])
    down = lambda rate: chart.lower - (chart.lower - chart.upper) * rate / top
    for count in range(round(top / tick) + 1):
        chart.line(down(count * tick), f"{count * tick:g}")
    chart.seconds("time in the run")
    chart.legend([(STYLES[run["name"]], f"{run['name']}: {run['steps_per_s']:.1f} steps/s") for run in runs])
    for run in runs:
        style = STYLES[run["name"]]
        points = [(chart.across(at), down(rate)) for at, rate in run["steps"]]
        chart.parts.append(f'<g class="{style}"><path class="line" d="M' + "L".join(f"{number(x)} {number(y)}" for x, y in points)
                           + '"/>' + "".join(mark(style, x, y) for x, y in points) + "</g>")
    return chart.drawn()


def excerpt(results, length=0.5):
    """The half second with most holds: requests in flight, and what was off the GPU."""
    begins = sorted(begin for _, begin, _ in results["holds"] if 0 <= begin <= results["seconds"] - length)
    if not begins:
        return ""
    first = max(begins, key=lambda at: sum(at <= other < at + length for other in begins)) - 0.01
    lanes = {}
    for kind, entries in (("requests in flight", results["busy"]), ("off the GPU", results["holds"])):
        for name, begin, end in entries:
            lanes.setdefault((kind, name), []).append((begin, end))
    chart = Chart("Requests in flight, and processes off the GPU, in half a second", 6, 44 * len(lanes), first, first + length)
    for row, ((kind, name), spans) in enumerate(sorted(lanes.items(), reverse=True)):
        y = chart.upper + 44 * row
        chart.parts += [text(LEFT, y + 12, f"{name}: {kind}"),
                        f'<g class="{"held" if kind == "off the GPU" else "scheduled"}">']
        for begin, end in spans:
            if end > first and begin < first + length:
                x = chart.across(begin)
                chart.parts.append(f'<rect class="block" x="{number(x)}" y="{number(y + 17)}" height="20" '
                                   f'width="{number(max(chart.across(end) - x, 0.8))}"><title>{1e3 * (end - begin):.2f} ms</title></rect>')
        chart.parts.append("</g>")
    chart.seconds("time in the run under sluice")
    return chart.drawn()


def table(head, rows, words=1):
    """The first cells of a row are words."""
    kind = lambda place: ' class="text"' if place < words else ""
    line = lambda cells, name: "<tr>" + "".join(f"<{name}{kind(place)}>{html.escape(each)}</{name}>" for place, each in enumerate(cells)) + "</tr>"
    return ('<div class="scroll"><table><thead>' + line(head, "th") + "</thead><tbody>" + "\n".join(line(row, "td") for row in rows)
            + "</tbody></table></div>")


def page(results, arguments):
    runs = results["runs"]
    alone = next((run["steps_per_s"] for run in runs if run["name"] == "training alone"), None)
    notice = (f"The GPU is simulated ({results['gpu']}): no time was measured on GPU hardware." if results["simulated"] else
              f"Measured on one machine with {results['gpu']}.")
    facts = [("GPU", results["gpu"]), ("driver", results["driver"]), ("PyTorch", results["pytorch"]), ("sluice", results["sluice"]),
             ("policy", results["policy"]), ("a request alone", f"{results['request_ms']:.1f} ms"),
             ("online load", f"{100 * results['load']:.0f} %"), ("date", results["date"])]
    figures = table(
        ["run", "requests", "failed", "p50, ms", "p99, ms", "max, ms", "training steps/s", "of alone"],
        [[run["name"], str(run["requests"] or ""), str(len(run["errors"])) if run["requests"] else "",
          *(cell(run.get(key)) for key in ("p50_ms", "p99_ms", "max_ms", "steps_per_s")),
          cell(run["steps_per_s"] / alone if alone and run.get("steps_per_s") is not None else None, "{:.2f}")] for run in runs])
    held = table(
        ["held", "by", "times", "total, s", "of the run", "p50, ms", "longest, ms"],
        [[each["held"], each["by"], str(each["count"]), cell(each["seconds"], "{:.2f}"), cell(100 * each["share"], "{:.1f} %"),
          cell(each["p50_ms"], "{:.2f}"), cell(each["max_ms"], "{:.2f}")] for each in results["held"]], words=2)
    delays = results["delays"]
    summary = f"sluice made {results['suspends']} driver calls for suspends"
    if delays:
        at = lambda share: delays[min(len(delays) - 1, int(share * len(delays)))]
        summary += f". Time from a request until offline work was off the GPU: p50 {at(0.5):.2f} ms, p99 {at(0.99):.2f} ms"
    summary += f". Resumes that a limit forced: {results['forced_resumes']}."
    # Of paths only the last part: the page may be published.
    command = shlex.join(["examples/demo.sh", "--gpu", *(each.rstrip("/").rpartition("/")[2] for each in arguments)])
    failures = "".join(f"<p>Failures that sluice counted: {html.escape(key)} {count}.</p>" for key, count in results["failures"].items())
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>sluice demo: a PyTorch server beside training</title><style>
{pathlib.Path(__file__).with_name('demo_page.css').read_text(encoding='utf-8')}</style></head>
<body><header><p class="notice">{html.escape(notice)}</p><h1>sluice demo: a PyTorch server beside training</h1>
<pre><code>{html.escape(command)}</code></pre>
<dl>{"".join(f"<div><dt>{html.escape(key)}</dt><dd>{html.escape(value)}</dd></div>" for key, value in facts)}</dl></header>
<main>{figures}
<h2>Latency over time</h2>
<p class="dim">Each point is an HTTP request. All runs have the same arrivals; a latency counts from the planned arrival.</p>
{latencies(results)}
<h2>What held what</h2>
<p class="dim">From the recording of the daemon, in the run under sluice. A held process keeps its GPU memory.</p>
{held}<p>{summary}</p>{failures}
{excerpt(results)}
<h2>Offline steps over time</h2>
{offline_steps(results)}
</main></body></html>
"""
