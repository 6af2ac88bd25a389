"""`acclimate classify`: the main command."""

import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from acclimate.cli import arguments
from acclimate.cli.classifying import count_answers, read_task, say_findings, set_up
from acclimate.cli.console import say, show_predictions, stop_requests
from acclimate.cli.plugins import Plugins
from acclimate.cli.progress import stage_bars
from acclimate.cli.sort import sorted_line
from acclimate.errors import InputError


def classify(
    source: arguments.Source,
    labels: Annotated[str | None, typer.Option(help=f"{arguments.LABELS_HELP} Not needed with --fitted.")] = None,
    model: arguments.Model = arguments.DEFAULT_MODEL,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Results: .csv, .jsonl or .parquet.")] = None,
    method: Annotated[
        str | None, typer.Option(help="How to adapt; see `acclimate methods`.", show_default=arguments.DEFAULT_METHOD)
    ] = None,
    setting: arguments.Settings = None,
    plugin: Plugins = None,
    fitted: Annotated[
        Path | None, typer.Option(help="A file of `acclimate fit`, which has the method, its settings and the labels.")
    ] = None,
    template: arguments.Templates = None,
    views: arguments.Views = 1,
    views_kind: arguments.ViewsKind = None,
    generated: arguments.Generated = None,
    top_k: Annotated[int, typer.Option(help="Number of labels in a row.", min=1)] = 3,
    unsure: Annotated[
        float, typer.Option(help="Mark answers with a lower score as unsure.", min=0, max=1, show_default=False)
    ] = 0.0,
    none_of_these: Annotated[
        bool, typer.Option("--none-of-these", help="Recognise images that belong to no label, and learn nothing there.")
    ] = False,
    order: arguments.Order = "auto",
    fps: arguments.Fps = 1.0,
    max_pixels: arguments.MaxPixels = arguments.DEFAULT_MAX_PIXELS,
    skip_duplicates: Annotated[
        bool | None,
        typer.Option(
            help="Do not learn from near-duplicates of the last images.", show_default="for videos and --follow"
        ),
    ] = None,
    passes: Annotated[int | None, arguments.passes("2, with --follow 1")] = None,
    state: Annotated[Path | None, typer.Option(help="Start from this state if it exists, and write it back.")] = None,
    origin: Annotated[
        str | None, typer.Option(help="Name of this stream in merged states.", show_default="stem of --state")
    ] = None,
    freeze: Annotated[bool, typer.Option("--freeze", help="Answer from the state without learning.")] = False,
    truth: Annotated[
        Path | None,
        typer.Option(help="True labels, to say how many answers are right: .csv, .txt or .jsonl with file and label."),
    ] = None,
    report: Annotated[Path | None, typer.Option(help="Write an HTML report here.")] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on with images as they arrive in the folder, until Ctrl-C.")
    ] = False,
    sort_into: Annotated[
        Path | None, typer.Option(help="At the end, sort the images into this folder, one subfolder per answer.")
    ] = None,
    sort_how: Annotated[Literal["copy", "link", "move"], typer.Option(help="How to sort them.")] = "copy",
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue --out: with what an interrupted run left, and with new images.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace --out if it exists.")] = False,
    on_error: Annotated[Literal["skip", "fail"], typer.Option(help="Skip or stop at unreadable images.")] = "skip",
    batch_size: arguments.BatchSize = None,
    workers: arguments.Workers = None,
    device: arguments.Device = "auto",
    precision: arguments.Precision = "auto",
    compile: arguments.Compile = False,
    decoder: arguments.Decoder = "auto",
    checkpoint_every: Annotated[float, typer.Option(help="Seconds between two checkpoints of --out.", min=0)] = 10.0,
) -> None:
    """Classify images into any labels, adapting to the images on the way.

    Every image is answered as it comes, and once more at the end from everything seen. Prints a table on a terminal and
    csv in a pipe, where rows follow when their answers are final.
    """
    from acclimate.encoders import load_ahead

    load_ahead(model, device, precision, compile)  # while the rest is imported
    import platform
    import shlex
    from datetime import datetime

    from acclimate import __version__
    from acclimate.classifier import Classifier
    from acclimate.classify.outputs import ResultFile, csv_columns
    from acclimate.classify.run import Classification
    from acclimate.classify.sorting import moved_images, sort_images
    from acclimate.classify.truth import with_truth
    from acclimate.classify.wording import count
    from acclimate.files import check_writable
    from acclimate.methods import describe_fit
    from acclimate.prompts import example_prompts
    from acclimate.reading.walk import precision_of
    from acclimate.sources.follow import Follow
    from acclimate.sources.source import choose_order
    from acclimate.sources.video import is_frame

    for path in filter(None, (out, state, report)):
        check_writable(path)
    if report is not None:
        arguments.check_report(report)
    if out is None and (resume or sort_into):
        raise InputError("--resume and --sort-into work from results; name the file with --out.")
    if resume and overwrite:
        raise InputError("--resume continues what --overwrite would replace; pass one of them.")
    if freeze and state is not None and not state.exists():
        raise InputError(f"--freeze answers from a state, and there is none at {state}.")
    if follow and sort_into:
        raise InputError("a run that follows a folder has no end at which to sort; use `acclimate sort` afterwards.")
    if follow and passes == 2:
        raise InputError("a run that follows a folder has no end at which to answer once more; leave out --passes.")
    if follow and len(source) > 1:
        raise InputError("--follow takes one folder.")
    if follow and truth:
        raise InputError("--truth names images that are there, and --follow waits for others; use folders per class.")
    if sort_into and any(
        Path(each).resolve() in [sort_into.resolve(), *sort_into.resolve().parents] for each in source
    ):
        raise InputError(f"{sort_into} is in the folder of the images; sort them into another one.")
    output = None if out is None else ResultFile(out, top_k)
    if output is not None:
        exists = output.path.exists()
        incomplete = output.checkpoint.is_file()
        if resume and exists and not incomplete and not (state and state.exists()) and not freeze:
            say("note: what the earlier run learnt is not in a --state; new images start from the model.", err=True)
        if overwrite and exists and not incomplete and (moved := moved_images(output.path)):
            what = f"{out} says where {count(moved, 'image')} went"
            raise InputError(f"{what}; take them back with `acclimate sort {out} --undo`, or choose another --out.")
        if not (resume or overwrite) and (exists or incomplete):
            how = "--resume to continue it, or " if incomplete else ""
            raise InputError(f"{out} exists; pass {how}--overwrite to replace it.")
    task = read_task(
        labels=labels,
        model=model,
        method=method,
        setting=setting,
        fitted=fitted,
        template=template,
        views=views,
        state=state,
    )
    names = task.names
    samples = () if follow else arguments.list_images(source, order, names, fps)
    reading: dict[str, Any] = {"views": views, "views_kind": views_kind, "generated": generated}
    reading |= {"batch_size": batch_size, "workers": workers, "device": device}
    reading |= {"precision": precision, "compile": compile, "decoder": decoder}
    still = follow or any(map(is_frame, samples))  # a camera may show the same again and again
    reading |= {"skip_duplicates": still if skip_duplicates is None else skip_duplicates}
    reading |= {"unsure": unsure, "reject": none_of_these}
    with stage_bars() as reading["progress"]:
        reading |= {"method": method, "templates": task.templates, "fitted": fitted}
        classifier = Classifier(names, model, **reading, **task.settings)
    if truth is not None:
        samples = with_truth(samples, truth, classifier.labels)
    if state is not None and state.exists():
        classifier.load(state)
    set_up(classifier, origin, freeze)
    prompts = " · ".join(example_prompts(classifier.labels, classifier.templates) if classifier.templates else ())
    if sys.stderr.isatty():
        images = "Images as they arrive" if follow else count(len(samples), "image")
        say(f"{images}, {count(len(classifier.labels), 'label')}: {prompts}", dim=True, err=True)
    columns = csv_columns(top_k) if out is None else None
    more = None
    with stop_requests() as stopped, show_predictions(None if follow else len(samples), columns) as show:
        if follow:
            more = Follow(source[0], stopped, fps)
        run = Classification(
            classifier=classifier,
            samples=samples,
            output=output,
            emit=show,
            top_k=top_k,
            passes=passes or 2,
            on_error="raise" if on_error == "fail" else "skip",
            state=None if freeze else state,
            checkpoint_every=checkpoint_every,
            stop=stopped,
            more=more,
        )
        finished = run.run(resume)
    summary = run.summary
    if more is not None and (waiting := more.waiting):
        named = ", ".join(waiting[:10]) + (f" and {len(waiting) - 10} others" if len(waiting) > 10 else "")
        say(f"not classified, as they were incomplete or could not be read: {named}.", err=True)
    if not finished:
        how = "" if out is None else "; run the command again with --resume to continue"
        where = f"after {summary.images} of {len(run.samples)} images"
        where = "in the second pass" if summary.images == len(run.samples) else where
        where = f"after {count(summary.images, 'image')}" if follow else where
        say(f"stopped {where}{how}.", err=True)
        if not follow or not summary.images:
            raise typer.Exit(130)
    if report is not None:
        from acclimate.classify.report import write_report

        chosen_order = choose_order(samples, names) if order == "auto" else order
        shown: dict[str, object] = {"command": shlex.join(["acclimate", *sys.argv[1:]])[:1000]}
        shown |= {"date": datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %z")}
        shown |= {"source": " ".join(source), "order": chosen_order, "model": model}
        shown |= {"decoder": classifier.decoder, "precision": precision_of(classifier.encoder)}
        shown |= {"number of labels": len(classifier.labels), "prompts": prompts or "of the fitted file"}
        shown |= {"true labels": truth} if truth else {}
        shown |= {"views per image": views} | ({"kind of views": classifier.views_kind} if views > 1 else {})
        shown |= {"passes": run.passes, "method": classifier.adapter.name}
        shown |= {"fitted file": f"{fitted}, {describe_fit(classifier.about_fit)}"} if fitted else {}
        shown |= {"acclimate": __version__, "Python": platform.python_version()}
        write_report(report, run, " ".join(source), shown)
    written = {"Results": out, "State": run.state, "Report": report}
    where = "".join(f" {what}: {path}." for what, path in written.items() if path)
    say(f"{count_answers(summary)}.{where}", err=True)
    if run.kept.images:
        new = len(run.samples) - run.kept.images
        start = "" if state or freeze or not new else " What was learnt from the others was not kept in a --state."
        say(f"{out} was complete: {count(new, 'new image')} added.{start}", err=True)
    say_findings(summary, unsure, classifier)
    if sort_into is not None and out is not None:  # after the report, which reads the images
        sorted_images = sort_images(out, sort_into, sort_how)
        say(f"{sorted_line(sorted_images, sort_into)} Undo: acclimate sort {out} --undo", err=True)
    if not finished:
        raise typer.Exit(130)
