"""Merges results of nvidia.py: a table, a page, and what is missing or missed."""

import html
import json
import pathlib
import sys

LATENCIES = "p50 / p90 / p99 / max"  # In names of figures.
STYLE = """body{font:15px/1.5 system-ui,sans-serif;margin:2em auto;max-width:76em;padding:0 1em;color:#1c2733}
table{border-collapse:collapse;margin:1em 0}td,th{padding:.2em .7em;text-align:right;border-bottom:1px solid #d8dee6}
td:first-child,th:first-child{text-align:left}.kept{color:#11713b}.missed{color:#b3261e;font-weight:600}
.bar{display:inline-block;height:.7em;background:#3b78c2;vertical-align:baseline;margin-left:.5em}
@media(prefers-color-scheme:dark){body{background:#12181f;color:#dde5ee}td,th{border-color:#34404d}
.kept{color:#5fd08a}.missed{color:#ff8a80}}"""


def cell(value):
    return " / ".join(f"{each:g}" for each in value["values"]) + (f" {value['unit']}" if value["unit"] else "")


def bound_text(entry):
    """The name, value and limit of a bound."""
    value = "not measured" if entry["value"] is None else f"{entry['value']:g} {entry['unit']}".strip()
    limit = f"{'at least' if entry.get('least') else 'at most'} {entry['limit']:g} {entry['unit']}".strip()
    return f"{entry['name']}: {value}; the bound is {limit}" + (f"; {entry['why']}" if entry.get("why") else "")


def figures(part):
    """Names and texts of the figures of a part. Rows of requests without latencies show the reason instead."""
    yield from ((name, cell(value)) for name, value in part["figures"].items())
    for row in part.get("serving", {}).get("rows", []):
        if row["overloaded"]:
            name = f"{part['serving']['title']}: {100 * row['load']:g} %, {row['mode']}: {LATENCIES}"
            yield name, row.get("why", "overloaded")
    for case in part.get("cases", []):  # Of the part `llm`.
        if case.get("unfinished"):
            yield f"llm: {100 * case['load']:g} %, {case['mode']}: first token, p50 / p99", "overloaded"


def that_counts(runs):
    """Of the results of a part, oldest first, the newest one. One with --quick counts only if it failed or if there is
    no full one, and one that was skipped only if there is no other one."""
    tried = [each for each in runs if each["outcome"] != "skipped"] or runs
    full = [each for each in tried if not each["quick"]]
    return full[-1] if full and tried[-1]["outcome"] != "failed" else tried[-1]


class Results:
    """Of several files. A column is a GPU model, driver and revision of sluice."""

    def __init__(self, files, names):
        """names: of all parts, in the order in which they are shown."""
        documents = []
        for name in files:
            try:
                document = json.loads(pathlib.Path(name).read_text(encoding="utf-8"))
                column = tuple(document[key] for key in ("gpu", "driver", "sluice"))
                documents.append((document["date"], column, document["parts"], document["quick"]))
            except OSError as error:
                raise ValueError(f"cannot read {name}: {error.strerror}") from error
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(f"{name} is not a file of results: {error!r}") from error
        documents.sort(key=lambda each: each[0])
        self.columns = sorted({column for _, column, _, _ in documents})
        self.rows = {"date": {}} if documents else {}  # Texts by column, by name.
        runs = {}  # Of each part, by name: oldest first.
        for date, column, parts, quick in documents:
            self.rows["date"][column] = date[:10]
            for name, part in parts.items():
                text = part["outcome"] + (" (quick)" if quick else "")
                runs.setdefault(name, []).append({**part, "text": text, "column": column, "date": date[:10],
                                                  "quick": quick})
        self.parts = {}  # The result of each part that counts, by GPU model.
        # Parts of an older revision may have other names.
        for name in [*(each for each in names if each in runs), *(each for each in runs if each not in names)]:
            all_runs = runs[name]
            for column in self.columns:
                own = [each for each in all_runs if each["column"] == column]
                if own:
                    self.show(name, column, that_counts(own))
            for gpu in {column[0] for column in self.columns}:
                own = [each for each in all_runs if each["column"][0] == gpu]
                if own:
                    self.parts.setdefault(gpu, {})[name] = that_counts(own)

    def show(self, name, column, part):
        self.rows.setdefault(f"part {name}", {})[column] = part["text"]
        for figure, text in figures(part):
            self.rows.setdefault(figure, {})[column] = text

    def lacking(self, names):
        """Sentences about what is missing or missed, for each GPU model. names: of all parts."""
        found = [] if self.parts else ["no results"]
        for gpu, parts in sorted(self.parts.items()):
            for name in names:
                part = parts.get(name)
                if part is None:
                    found.append(f"{gpu}: part {name} is missing")
                    continue
                if part["outcome"] != "passed":
                    found.append(f"{gpu}: part {name}: {part['text']}")
                found += [f"{gpu}: MISSED: {bound_text(each)}" for each in part.get("bounds", []) if not each["kept"]]
        return found

    def titles(self):
        return [f"{gpu}, driver {driver}, sluice {sluice}" for gpu, driver, sluice in self.columns]

    def table(self):
        """The cells of one row for each figure, headings first."""
        return [["", *self.titles()], *([name, *(values.get(column, "-") for column in self.columns)]
                                        for name, values in self.rows.items())]


def markdown(results):
    first, *others = results.table()
    return "\n".join(["| | " + " | ".join(first[1:]) + " |", "|---" * len(first) + "|",
                      *("| " + " | ".join(row) + " |" for row in others)])


def html_table(rows):
    """rows: lists of HTML, headings first."""
    made = []
    for number, row in enumerate(rows):
        tag = "td" if number else "th"
        made.append("<tr>" + "".join(f"<{tag}>{each}</{tag}>" for each in row) + "</tr>")
    return "<table>" + "\n".join(made) + "</table>"


def marked(kept, text):
    return f'<span class="{"kept" if kept else "missed"}">{html.escape(text)}</span>'


def serving_cells(measured):
    """The texts of a table of one part's requests, headings first: medians of the rounds."""
    rows = [["", "p50 us", "p90 us", "p99 us", "range of p99", "max us", "offline steps/s", "of alone", "suspends",
             "GPU s lost"]]
    offline = measured["offline_alone"]
    for row in measured["rows"]:
        def middle(key, form=".0f"):
            return f"{row[key][0]:{form}}" if row[key] else "-"

        shown = [row.get("why", "overloaded"), "", "", "", ""]
        if not row["overloaded"]:
            shown = [middle("p50"), middle("p90"), middle("p99"), f"{row['p99'][1]:.0f} to {row['p99'][2]:.0f}",
                     middle("max")]
        share = f"{100 * row['steps'][0] / offline[0]:.1f} %" if row["steps"] and offline and offline[0] else "-"
        rows.append([f"{100 * row['load']:g} %, {row['mode']}", *shown, middle("steps", ".2f"), share,
                     middle("suspends"), middle("lost", ".2f")])
    return rows


def serving_table(measured):
    """The same as HTML, with a bar for each p99, relative to the longest one of the same load."""
    first, *rows = serving_cells(measured)
    longest = {}
    for row in measured["rows"]:
        if not row["overloaded"]:
            longest[row["load"]] = max(longest.get(row["load"], 0), row["p99"][0])
    for cells, row in zip(rows, measured["rows"]):
        cells[0] = html.escape(cells[0])
        if not row["overloaded"]:
            width = 8 * row["p99"][0] / longest[row["load"]]
            cells[3] += f'<span class="bar" style="width:{width:.2f}em"></span>'
    return html_table([first, *rows])


def page(results, lacking):
    """A page of its own, with everything in it."""
    text = ["<!DOCTYPE html>", '<html lang="en"><head><meta charset="utf-8"><title>sluice on NVIDIA GPUs</title>',
            f"<style>{STYLE}</style></head><body>", "<h1>sluice on NVIDIA GPUs</h1>"]
    if lacking:
        text.append("<ul>" + "".join(f"<li>{marked(False, each)}</li>" for each in lacking) + "</ul>")
    else:
        text.append(f"<p>{marked(True, 'Every part is present and all bounds are kept.')}</p>")
    for gpu, parts in sorted(results.parts.items()):
        text.append(f"<h2>{html.escape(gpu)}</h2>")
        bounds = [["bound", "measured", "limit", "", "driver, revision, date"]]
        for part in parts.values():
            for each in part.get("bounds", []):
                value = "-" if each["value"] is None else f"{each['value']:g}"
                limit = ("≥ " if each.get("least") else "≤ ") + f"{each['limit']:g} {each['unit']}"
                bounds.append([html.escape(each["name"]), value, html.escape(limit),
                               marked(each["kept"], "kept" if each["kept"] else "missed"),
                               html.escape(f"{part['column'][1]}, {part['column'][2]}, {part['date']}")])
        if len(bounds) > 1:
            text.append(html_table(bounds))
        for name, part in parts.items():
            if part.get("serving"):
                text.append(f"<h3>{html.escape(name)}</h3><p>A request takes {part['serving']['request_us']:.0f} us "
                            f"alone. Medians of the rounds, on {html.escape(gpu)}.</p>")
                text.append(serving_table(part["serving"]))
    text.append("<h2>All figures</h2>")
    text.append(html_table([[html.escape(each) for each in row] for row in results.table()]))
    text.append("</body></html>\n")
    return "\n".join(text)


def report(files, html_path, names):
    """Prints the table, and what is missing or missed. Returns the exit code."""
    try:
        results = Results(files, names)
        lacking = results.lacking(names)
        if html_path:
            pathlib.Path(html_path).write_text(page(results, lacking), encoding="utf-8")
        print(markdown(results))
    except (OSError, ValueError) as error:
        print(f"nvidia.py: {error}", file=sys.stderr)
        return 2
    if lacking:
        print("\n" + "\n".join(f"- {each}" for each in lacking))
    else:
        print("\nevery part is present and all bounds are kept")
    return 1 if lacking else 0
