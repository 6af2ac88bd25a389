"""`acclimate labels check`: a look at labels before a run."""

from functools import partial
from typing import Annotated

import typer

from acclimate.cli import arguments
from acclimate.cli.console import Command, CommandGroup, say, show_encoding, stage_bars
from acclimate.cli.tables import print_table
from acclimate.errors import RunError, count

MOST_IMAGES = 500  # images that are looked at
SHOWN = 10  # nouns that are named

labels = typer.Typer(cls=CommandGroup, help="A look at labels before a run.", no_args_is_help=True)


@labels.command(cls=Command)
def check(
    labels: Annotated[str, typer.Argument(help=arguments.LABELS_HELP)],
    images: Annotated[
        list[str] | None,
        typer.Argument(help="A folder, or another source of `acclimate classify`.", show_default=False),
    ] = None,
    model: arguments.Model = arguments.DEFAULT_MODEL,
    template: arguments.Templates = None,
) -> None:
    """Say which labels a model will misread: misspelled, Latin, negated, broad, or too much alike.

    With images, at most 500 of them are compared with the labels: which labels are the nearest, and what else is there.
    """
    import numpy as np

    from acclimate import build_head, load_encoder
    from acclimate.arrays import to_host
    from acclimate.classify.label_check import compare_with_images
    from acclimate.prompts import negative_vectors
    from acclimate.prompts.spelling import close_labels, expansion_note
    from acclimate.reading.walk import Preparer, encode_ahead

    names = arguments.read_labels(labels)
    samples = arguments.list_images(images) if images else ()
    arguments.note_labels(names, model)
    templates = arguments.read_templates(template)
    encoder = load_encoder(model)
    with stage_bars() as show:
        head = build_head(encoder, names, templates, progress=partial(show, "encoding the labels"))
        nouns = negative_vectors(encoder, progress=partial(show, "encoding the nouns"))
    for note in filter(None, (expansion_note(head.expanded), close_labels(head, nouns))):
        say(f"note: {note}", err=True)
    say(f"{count(len(names), 'label')} checked.", err=True)
    if not samples:
        return
    chosen = samples[:: -(-len(samples) // MOST_IMAGES)]
    batches = show_encoding(encode_ahead(chosen, Preparer(encoder)), len(chosen))
    features = np.concatenate([to_host(batch.features) for batch in batches])
    if not len(features):
        raise RunError("no image could be read.")
    found = compare_with_images(head, nouns, features)
    rows = [(name, str(found.nearest[name]), str(found.foreign[name])) for name in names]
    print_table(("label", "images nearest to it", "of these, nearer to something else"), rows, left={"label"})
    share = 100 * found.foreign.total() / len(features)
    say(f"{share:.0f} % of {count(len(features), 'image')} are much nearer to a noun than to any label.", err=True)
    if common := [f"{noun} {number}" for noun, number in found.missing.most_common(SHOWN) if number > 1]:
        say(f"They look like {', '.join(common)}; give what you need a label.", err=True)
    if never := [name for name in names if not found.nearest[name]]:
        more = f" and {len(never) - SHOWN} more" if len(never) > SHOWN else ""
        say(f"No image is nearest to {', '.join(never[:SHOWN])}{more}.", err=True)
