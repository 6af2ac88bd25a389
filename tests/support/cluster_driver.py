"""A driver of a job on a cluster, to be killed: `python cluster_driver.py FOLDER ADDRESS STAGE`.

It waits at a place when the first images are done, or when the first are answered again.
"""

import sys
from pathlib import Path

from acclimate.cluster.connection import connect
from cluster_bench import Bench, Place


def main(folder, address, stage):
    place = Place(Path(folder) / "place")

    def progress(now, done):
        if now == stage and done >= 80:
            place.wait()

    with connect(address):
        Bench(folder).job(method="dota", passes=2, progress=progress).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
