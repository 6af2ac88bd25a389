"""Run a notebook and store what its cells print, show and draw: `python docs/notebook.py docs/tutorial.ipynb`.

Cells are plain Python, so no kernel is needed. Run it in a folder where `acclimate demo` has been.
"""

import ast
import base64
import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any


def run(notebook: dict[str, Any]) -> dict[str, Any]:
    """Return a notebook (nbformat 4) with the outputs of its code cells, which are run in order in one namespace."""
    scope: dict[str, Any] = {"__name__": "__main__"}
    cells = []
    count = 0
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            count += 1
            cell = {**cell, "execution_count": count, "outputs": _outputs("".join(cell["source"]), count, scope)}
        cells.append(cell)
    return {**notebook, "cells": cells}


def _outputs(source: str, count: int, scope: dict[str, Any]) -> list[dict[str, Any]]:
    tree = ast.parse(source)
    printed = io.StringIO()
    value = None
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, f"cell {count}", "exec"), scope)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), f"cell {count}", "eval"), scope)
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        outputs.append({"output_type": "stream", "name": "stdout", "text": _lines(printed.getvalue())})
    figures = _figures()
    outputs += [{"output_type": "display_data", "metadata": {}, "data": {"image/png": each}} for each in figures]
    if value is not None and not figures:
        data = {"text/plain": _lines(repr(value))}
        outputs.append({"output_type": "execute_result", "execution_count": count, "metadata": {}, "data": data})
    return outputs


def _figures() -> list[str]:
    """Return the open figures of matplotlib as PNG in base64; they are closed."""
    pyplot = sys.modules.get("matplotlib.pyplot")
    made = []
    for number in pyplot.get_fignums() if pyplot else ():
        content = io.BytesIO()
        pyplot.figure(number).savefig(content, format="png", dpi=80, bbox_inches="tight")
        pyplot.close(number)
        made.append(base64.b64encode(content.getvalue()).decode())
    return made


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


if __name__ == "__main__":
    place = Path(sys.argv[1])
    done = run(json.loads(place.read_text(encoding="utf-8")))
    place.write_text(json.dumps(done, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
