"""Checks of the page's source files."""

import re

import pytest

from acclimate.serve.app import PAGE


def test_the_page_names_no_other_host_and_nothing_inline():
    files = {path.name: path.read_text("utf-8") for path in PAGE.iterdir()}
    for text in files.values():
        assert set(re.findall(r"https?://[^\s\"')]+", text)) <= {"http://www.w3.org/2000/svg"}
    assert not re.search(r"<style|<script(?![^>]* src=)|\son\w+=|\sstyle=", files["index.html"])
    assert not re.search(r"innerHTML|insertAdjacentHTML|document\.write|eval\(", "".join(files.values()))


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_words_stand_out_from_what_is_behind_them(scheme):
    colours = re.findall(r"--paper.*?--rim", (PAGE / "style.css").read_text(), re.DOTALL)[scheme]
    colours = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", colours))
    for ink, behind in (
        *((ink, behind) for ink in ("ink", "soft", "after", "against") for behind in ("paper", "card")),
        ("soft", "empty"),
        ("on-after", "after"),
        ("paper", "against"),
    ):
        assert contrast(colours[ink], colours[behind]) >= 4.5, (ink, behind)


def contrast(one, other):
    """Return the contrast of two colours as WCAG 2 defines it."""
    shares = ([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)] for colour in (one, other))
    linear = ([c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour] for colour in shares)
    dark, light = sorted(0.2126 * red + 0.7152 * green + 0.0722 * blue for red, green, blue in linear)
    return (light + 0.05) / (dark + 0.05)
