"""A driver of a job on a cluster, to be killed: `python cluster_driver.py FOLDER ADDRESS METHOD IMAGES`.

It waits at a place, if there is one, when the first images are answered.
"""

import sys
from pathlib import Path

from acclimate.cluster.connection import connect
from cluster_bench import Bench, Place


def main(folder, address, method, images):
    place = Path(folder) / "place"

    def wait(predictions, final):
        if place.exists() and predictions.start >= 80:
            Place(place).wait()

    bench = Bench(folder)
    bench.slow_down()
    with connect(address):
        bench.job(resume=True, method=method, emit=wait, pool={"encoders": 2, "images": int(images)})


if __name__ == "__main__":
    main(*sys.argv[1:])
