import pytest
from hypothesis import given
from hypothesis import strategies as st

from acclimate.errors import InputError, as_words
from acclimate.prompts import clean_labels, example_prompts, prompts_for, template_sets

PLAIN = st.text(st.characters(exclude_categories=["Cc", "Cs"]))  # without control characters
ANY_LABELS = st.lists(st.text(max_size=12), max_size=6)
SEVEN = (
    "itap of a {}.",
    "a bad photo of the {}.",
    "a origami {}.",
    "a photo of the large {}.",
    "a {} in a video game.",
    "art of the {}.",
    "a photo of the small {}.",
)


@given(st.text())
def test_speaking_twice_is_speaking_once(label):
    words = as_words(label)
    assert as_words(words) == words
    assert "_" not in words
    assert "  " not in words


@given(ANY_LABELS)
def test_labels_are_refused_or_cleaned_for_good(labels):
    try:
        cleaned = clean_labels(labels)
    except InputError:
        return
    assert cleaned == tuple(label.strip() for label in labels) == clean_labels(cleaned)
    assert len({as_words(label).casefold() for label in cleaned}) == len(labels) > 0


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([], "no labels"),
        ("cat", "list of class names"),
        (["cat", " "], "label 2 is empty"),
        (["cat", "__"], "label 2 is empty"),
        (["cat", 3], "label 2 must be a string, got 3 of type int"),
        (["cat", "dog", "cat "], "'cat' and 'cat' are the same"),
        (["cat", "dog", "Cat"], "'cat' and 'Cat' are the same"),
        (["Straße", "STRASSE"], "'Straße' and 'STRASSE' are the same"),
        (["sea_lion", "sea  lion"], "'sea_lion' and 'sea  lion' are the same"),
        (["n01440764"], "WordNet id; replace ids by words"),
        (["n01440764 tench"], "WordNet id"),
    ],
)
def test_labels_that_name_no_classes_are_refused(labels, message):
    with pytest.raises(InputError, match=message):
        clean_labels(labels)


def test_a_label_keeps_its_name_and_is_spoken_in_words():
    assert clean_labels([" great_white  shark "]) == ("great_white  shark",)
    assert prompts_for(["great_white  shark"], "a {}.") == [["a great white shark."]]


LABELS = ["cat", "sea_lion"]


@pytest.mark.parametrize(
    ("templates", "expected"),
    [
        ("a {}, yes a {c}.", [["a cat, yes a cat."], ["a sea lion, yes a sea lion."]]),
        (["a {}.", "the {c}."], [["a cat.", "the cat."], ["a sea lion.", "the sea lion."]]),
        ("{{}} {", [["{cat} {"], ["{sea lion} {"]]),
        ("single", [["a photo of a cat."], ["a photo of a sea lion."]]),
        (["dtd", "a {}."], [["cat texture.", "a cat."], ["sea lion texture.", "a sea lion."]]),
        (str.upper, [["CAT"], ["SEA LION"]]),
        ([lambda c: f"one {c}", "a {}."], [["one cat", "a cat."], ["one sea lion", "a sea lion."]]),
        (
            {"sea lion": ["It barks {x}.", "A {c}."], "cat": "It purrs.", "dog": ["It growls."]},
            [["It purrs."], ["It barks {x}.", "A sea lion."]],
        ),
    ],
)
def test_templates_of_every_kind(templates, expected):
    assert prompts_for(LABELS, templates) == expected


@given(st.text(min_size=1).filter(as_words), PLAIN, PLAIN)
def test_a_label_comes_through_as_it_is_spoken(label, before, after):
    template = before.replace("{", "(") + "{}" + after.replace("{", "(")
    try:
        clean_labels([label])
    except InputError:
        return
    assert prompts_for([label], template) == [[template.replace("{}", as_words(label))]]


@pytest.mark.parametrize(
    ("templates", "message"),
    [
        ("a photo.", r"'a photo\.' has no \{\} for the class name.*or name a set: single, openai-80"),
        (["a {}.", "a {x}."], r"'a \{x\}\.' has no \{\}"),
        ("a {x} of {}.", r"'a \{x\} of \{\}\.' has \{x\}; only \{\} or \{c\} stands for the class name"),
        (["a {}.", "{0} {c}"], r"has \{0\}"),
        ([], "no templates"),
        (7, "must be a string or a function, got 7"),
        ([["a {}."]], "must be a string or a function"),
        (lambda c: None, "must return a prompt, got None for the label 'cat'"),
        ({"cat": ["It purrs."]}, "the dict of prompts has no prompts for 'sea_lion'; add"),
        (
            {"cat": ["It purrs."], "see lion": ["It barks."]},
            r"no prompts for 'sea_lion' \(it has 'see lion', not among the labels\)",
        ),
        ({"cat": [], "sea_lion": ["It barks."]}, "'cat' has"),
        ({"cat": [1], "sea_lion": ["It barks."]}, "'cat' has"),
        ({"cat": {"a": "b"}, "sea_lion": ["It barks."]}, "'cat' has"),
    ],
)
def test_templates_that_say_nothing_are_refused(templates, message):
    with pytest.raises(InputError, match=message):
        prompts_for(LABELS, templates)


def test_many_missing_classes_are_counted():
    with pytest.raises(
        InputError, match=r"no prompts for 'c0', .*'c9' and 15 more \(it has 'dog', 'cow', not among the labels\); add"
    ):
        prompts_for([f"c{i}" for i in range(25)], {"dog": ["It growls."], "cow": "It moos."})


def test_the_published_sets():
    sets = template_sets()
    eighty = sets["openai-80"]
    assert len(eighty) == len(set(eighty)) == 80
    assert (eighty[0], eighty[-1]) == ("a bad photo of a {}.", "a tattoo of the {}.")
    assert sets["openai-7"] == SEVEN
    assert set(SEVEN) < set(eighty)
    for name in ("imagenet", "imagenet-a", "imagenet-v2", "caltech101", "cars", "sun397"):
        assert sets[name] == SEVEN
    assert sets["imagenet-r"] == sets["imagenet-sketch"] == eighty
    assert sets["single"] == ("a photo of a {}.",)
    assert sets["food101"] == ("a photo of {}, a type of food.",)


@pytest.mark.parametrize("name", template_sets())
def test_every_set_can_be_used_by_name(name):
    assert prompts_for(["cat"], name) == [[template.replace("{}", "cat") for template in template_sets()[name]]]


def test_sets_cannot_be_changed_from_outside():
    with pytest.raises(TypeError):
        template_sets()["single"] = ()


def test_examples_show_many_classes():
    assert example_prompts(["cat", "dog", "cow", "pig"], "openai-80") == [
        "a bad photo of a cat.",
        "a bad photo of a dog.",
        "a bad photo of a cow.",
        "..., 317 more",
    ]
    assert example_prompts(["cat"], ["a {}.", "a {c}.", "the {}."]) == ["a cat.", "the cat."]
    assert example_prompts(["cat", "dog"], {"cat": ["A", "B"], "dog": "C"}, count=9) == ["A", "C", "B"]
