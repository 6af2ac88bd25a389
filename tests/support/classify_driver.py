"""A classification in a process of its own, which says how far it is, for those who kill it.

    python classify_driver.py OUT SOURCE MODEL STATE LABEL...

It continues what an earlier process left. A line is printed when a batch was answered: "first" in the first pass,
"again" in the second, after whose last line the table is written.
"""

import sys
from pathlib import Path

from classify_jobs import classify


def say(predictions, final):
    """Print where the run is."""
    sys.stdout.write(f"{'again' if final else 'first'} {predictions.start}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    out, source, model, state, *labels = sys.argv[1:]
    classify(
        Path(out),
        source,
        model,
        labels=tuple(labels),
        state=Path(state),
        resume=True,
        emit=say,
        part_images=32,
        part_seconds=0.0,
    )
