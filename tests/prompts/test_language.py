"""Labels that do not look English."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acclimate.prompts import foreign_labels, template_sets
from acclimate.prompts.templates import _frequent_words
from acclimate.sources.datasets import DATASETS


@pytest.mark.parametrize(
    ("labels", "why"),
    [
        (["chat", "chien"], "'chat' and 'chien' look French"),
        (["Katze", "Hund", "Vogel", "anderes"], "'Katze', 'Hund' and 'Vogel' look German"),
        (["un perro", "un gato", "mesa"], "'un perro', 'un gato' and 'mesa' look Spanish"),
        (["gatto", "cane"], "'gatto' and 'cane' look Italian"),
        (["cachorro", "homem"], "'cachorro' and 'homem' look Portuguese"),
        (["kat", "hond"], "'kat' and 'hond' look Dutch"),
        (["cat", "猫"], "'猫' has letters that are not Latin"),
        (["кошка", "собака", "cat"], "'кошка' and 'собака' have letters that are not Latin"),
        (["écureuil", "hérisson", "blaireau"], "'écureuil' and 'hérisson' have accents"),
    ],
)
def test_other_languages_are_noticed(labels, why):
    assert foreign_labels(labels) == why


@pytest.mark.parametrize(
    "labels",
    [
        ["cat", "dog"],
        ["chat", "email", "phone call"],  # English words that French has, too
        ["train", "bus", "car", "table", "orange", "rose"],
        ["chihuahua", "schnauzer", "weimaraner", "bichon frisé", "chow", "papillon", "pug"],
        ["café", "bar", "restaurant", "pub"],
        ["pan", "sole", "school", "auto", "kind", "boom"],
        ["chien", "cat", "dog"],  # one alone may be a name
        ["Felis catus", "Canis lupus", "Vulpes vulpes"],
        ["5 µm", "10 µm", "20 µm"],
        ["Rio de Janeiro", "San Francisco", "Casa Loma"],
    ],
)
def test_english_is_left_alone(labels):
    assert foreign_labels(labels) == ""


@pytest.mark.parametrize("dataset", DATASETS.values(), ids=DATASETS)
def test_the_names_of_published_classes_are_english(dataset):
    assert foreign_labels(dataset.class_names) == ""


def test_no_published_class_or_prompt_has_a_word_that_is_counted_as_foreign():
    texts = " ".join(
        [*(name for each in DATASETS.values() for name in each.class_names), *sum(template_sets().values(), ())]
    )
    spoken = set(texts.casefold().replace(".", " ").replace(",", " ").split())
    for language, (own, shared) in _frequent_words().items():
        assert not own & spoken, language
        assert not own & shared, language


@given(st.lists(st.text(max_size=8), max_size=5))
def test_any_text_has_an_answer(labels):
    assert isinstance(foreign_labels(labels), str)
    assert foreign_labels([label for label in labels if label.isascii()] + ["cat"] * 50) == ""
