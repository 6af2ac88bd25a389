"""Labels that are not read as they are meant, and the many that are."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acclimate import build_head, load_encoder
from acclimate.errors import same_words
from acclimate.prompts import negative_vectors, nouns
from acclimate.prompts.spelling import close_labels, english_name, label_notes, misspelled
from acclimate.sources.datasets import DATASETS


@pytest.mark.parametrize(
    ("label", "meant"),
    [
        ("dgo", "dog"),
        ("elefant", "elephant"),
        ("girafe", "giraffe"),
        ("guitarr", "guitar"),
        ("hoarse", "horse"),
        ("huose", "house"),
        ("persn", "person"),
        ("Elefant", "elephant"),
        ("yorkshire_terier", "yorkshire terrier"),
    ],
)
def test_misspelled_labels_are_understood(label, meant):
    assert misspelled(label) == meant


@pytest.mark.parametrize(
    ("label", "name"),
    [
        ("Canis lupus familiaris", "dog"),
        ("Loxodonta africana", "African elephant"),
        ("Giraffa camelopardalis", "giraffe"),
        ("equus_caballus", "horse"),
        ("Homo sapiens", "person"),
        ("German shepherd", ""),
        ("boa constrictor", ""),
    ],
)
def test_latin_names_have_english_ones(label, name):
    assert english_name(label) == name


@pytest.mark.parametrize(
    "labels", [["not a dog", "cat"], ["mask", "no mask"], ["dog", "something else"], ["cat", "other"]]
)
def test_what_no_image_shows_is_named(labels):
    assert len(label_notes(labels)) == 1


def test_the_names_of_published_classes_are_hardly_ever_misspelled():
    names = {name for dataset in DATASETS.values() for name in dataset.class_names}
    flagged = {name for name in names if misspelled(name) or english_name(name)}
    assert len(flagged) <= 0.005 * len(names), flagged
    assert not [noun for noun in nouns() if misspelled(noun)]


def test_labels_in_other_languages_are_not_misspelled():
    assert label_notes(["chat", "chien", "oiseau"]) == []
    assert label_notes(["kassi", "koera", "dgo", "persn"], english=True)
    assert label_notes(["elefant", "girafe", "persn"], english=False) == []


@given(st.text(max_size=20).filter(same_words))
def test_any_label_has_an_answer(label):
    assert isinstance(misspelled(label), str)
    assert isinstance(label_notes([label, "cat"]), list)


def test_labels_that_are_nearly_the_same_are_named():
    encoder = load_encoder("bundled")
    negatives = negative_vectors(encoder)
    head = build_head(encoder, ["sofa", "animal", "couch", "guitar"])
    note = "the model can hardly tell apart 'sofa' and 'couch'."
    assert (
        close_labels(head, negatives)
        == close_labels(build_head(encoder, head.class_names, expand=False), negatives)
        == note
    )
    assert close_labels(build_head(encoder, ["cat", "dog", "bird"]), negatives) == ""
