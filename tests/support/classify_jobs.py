"""Jobs as `acclimate classify` runs them, with parts that are small."""

from acclimate.classify.task import Encoding, Job, Task, find_run, open_classifier
from acclimate.run import START
from acclimate.sources.source import Samples, open_source


def begin(out, source, model, *, samples=None, resume=False, overwrite=False, state=None, more=None, **options):
    """Return the classification of a job whose values are among the options of `Task`."""
    known = set(Task.__dataclass_fields__)
    values = {name: options.pop(name) for name in list(options) if name in known}
    given = frozenset(values) - {"labels"} if resume else frozenset(values)
    task = Task(source=(str(source),), **{"top_k": 2, "batch_size": 8, "origin": "site", **values}, given=given)
    task, encoding, found = find_run(task, Encoding(model=model, given=frozenset({"model"})), out, resume)
    job = Job(task=task, encoding=encoding, run=found, out=out, resume=resume, overwrite=overwrite, state=state)
    continued = resume and found is not None
    job.check_out()
    start = found.path / START if continued else state
    classifier = open_classifier(task, encoding, found, start, lambda stage, done, total: None)
    listed = Samples()
    if samples is not None:
        listed = samples
    elif more is None and (found is None or resume):
        listed = open_source(task.source)
    return job.begin(classifier, listed, more, **{"part_images": 8, "part_seconds": 0.0, **options})


def classify(out, source, model, **options):
    """Run such a job; returns the classification."""
    run = begin(out, source, model, **options)
    run.finished = run.answer()
    return run
