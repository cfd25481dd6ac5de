#!/usr/bin/env python3
"""usage: check_page.py PAGE

Fails unless the page is well-formed HTML that refers to nothing but itself. Prints its texts, one per line, without
scripts and styles."""
import html.parser
import re
import sys

VOID = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}
# Nobody may be inside one of these twice.
NEVER_NESTED = {"a", "button", "p", "h1", "h2", "h3", "script", "style", "section", "svg"}


class Page(html.parser.HTMLParser):
    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.open, self.ids, self.links, self.texts, self.styles = [], set(), [], [], []

    def handle_starttag(self, tag, attributes):
        assert tag not in NEVER_NESTED or tag not in self.open, f"<{tag}> in <{tag}> at {self.getpos()}"
        names = [name for name, _ in attributes]
        assert len(set(names)) == len(names), f"an attribute twice at {self.getpos()}"
        assert tag not in {"link", "img", "iframe", "object", "embed", "base"}, tag
        for name, value in attributes:
            assert not name.startswith("on"), f"{name} at {self.getpos()}"
            assert name not in {"src", "srcset", "action", "background", "xlink:href"}, name
            if name == "id":
                assert value not in self.ids, f"id {value} twice"
                self.ids.add(value)
            if name == "href":
                assert value.startswith("#"), value
                self.links.append(value[1:])
            if name == "style":
                self.styles.append(value)
            if name in {"d", "x", "y", "viewbox", "points"}:
                assert not re.search("nan|inf", value), f"{name}={value[:60]} at {self.getpos()}"
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        assert "svg" in self.open, f"<{tag}/> outside of SVG at {self.getpos()}"
        self.handle_starttag(tag, attributes)
        self.open.pop()

    def handle_endtag(self, tag):
        assert self.open and self.open[-1] == tag, f"</{tag}> in {self.open[-3:]} at {self.getpos()}"
        self.open.pop()

    def handle_data(self, data):
        if self.open and self.open[-1] == "style":
            self.styles.append(data)
        elif not self.open or self.open[-1] != "script":
            self.texts.append(data)


text = open(sys.argv[1], encoding="utf-8").read()
assert text.startswith("<!DOCTYPE html>\n<html lang=")
page = Page()
page.feed(text)
page.close()
assert not page.open, page.open
assert set(page.links) <= page.ids, set(page.links) - page.ids
for style in page.styles:
    assert "url(" not in style and "@import" not in style, style
assert "default-src 'none'" in text
for line in "\n".join(page.texts).split("\n"):
    if line.strip():
        print(line.strip())
