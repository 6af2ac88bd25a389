"""The documents agree with the code."""

import re
from pathlib import Path

import acclimate

DOCS = Path(__file__).parents[1] / "docs"


def test_the_table_of_methods_is_up_to_date():
    lines = ["| method | class | what it does | kind | merge | needs |", "| --- | --- | --- | --- | --- | --- |"]
    for name, method in acclimate.list_methods().items():
        merge, needs = method.merges or "none", ", ".join(sorted(method.needs)) or "none"
        lines.append(f"| `{name}` | `{method.__name__}` | {method.summary} | {method.kind} | {merge} | {needs} |")
    table = "\n".join(lines)
    text = (DOCS / "methods.md").read_text(encoding="utf-8")
    assert f"<!-- methods -->\n{table}\n<!-- /methods -->" in text, f"docs/methods.md must contain:\n{table}"


def test_every_public_name_is_in_the_reference():
    pages = "".join(page.read_text(encoding="utf-8") for page in (DOCS / "api").glob("*.md"))
    documented = set(re.findall(r"^::: acclimate\.(\w+)$", pages, re.MULTILINE))
    assert documented >= set(acclimate.__all__), sorted(set(acclimate.__all__) - documented)
