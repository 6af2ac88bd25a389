"""The command `acclimate cluster classify`, once its options are checked and its images are listed."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING

from acclimate.classifier import Classifier
from acclimate.cluster.cluster_options import ClusterOptions
from acclimate.cluster.connection import connect, import_ray, send_plugins
from acclimate.cluster.machines import check_readable, check_shared
from acclimate.cluster.storage import Storage
from acclimate.encoders.loading import absolute_model
from acclimate.errors import count
from acclimate.sources import Sample

if TYPE_CHECKING:
    from acclimate.cluster.run import ClusterRun

STAGES = {"first pass": "classifying", "second pass": "second pass"}  # stage of a run -> its name on the terminal
# Shows progress: stage, images done since the last call, their total, and more images that an earlier run had done.
Show = Callable[[str, int, int, int], None]
Stop = Callable[[], bool]


def classify_on_cluster(
    options: ClusterOptions,
    samples: Sequence[Sample],
    out: Storage,
    open_classifier: Callable[[ClusterOptions], Classifier],
    running: Callable[[Classifier, str], AbstractContextManager[tuple[Show, Stop]]],
) -> tuple["ClusterRun", bool]:
    """Classify images on a cluster as the options say.

    Args:
        options: the options, after `check`.
        samples: the images, in order.
        out: the folder of the results.
        open_classifier: returns the classifier for the options of this process, which encodes the labels alone.
        running: returns the context of the run, given the classifier and the size of the cluster in words: functions
            that show progress, and that return True to stop.

    Returns:
        The run, and False if it was stopped.
    """
    import_ray(options.address)
    from acclimate.cluster.run import ClusterRun

    shown: dict[str, int] = {}  # stage -> images that its bar shows

    def progress(done: int, total: int, stage: str) -> None:
        before = shown.get(stage, 0)
        earlier = max(0, min(run.kept, done) - before) if stage == "first pass" else 0
        show(STAGES[stage], done - before - earlier, total, earlier)
        shown[stage] = done

    options = replace(options, model=absolute_model(options.model))
    with connect(options.address, log_to_driver=options.ray_progress) as there:
        options, workers = options.fit_to(there)
        if len(there.nodes) > 1:
            check_shared(out, "--out")
            check_readable(samples[0])
        classifier = open_classifier(options.for_driver())
        options.load_state(classifier)
        options.set_up(classifier)
        send_plugins()
        size = f"{count(len(there.nodes), 'node')}, {count(workers[1], 'encoder')}"
        with running(classifier, size) as (show, stop):
            run = ClusterRun(options, classifier, samples, workers, progress, stop)
            progress(0, len(samples), "first pass")
            return run, run.run(options.resume, options.overwrite)
