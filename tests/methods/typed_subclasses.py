"""Subclasses of methods that say other things of themselves, and the types of answers, for mypy --strict."""

from pathlib import Path

from PIL import Image
from typing_extensions import assert_type

from acclimate import (
    DMN,
    DOTA,
    MTA,
    OGA,
    SCA,
    TDA,
    TPT,
    Accord,
    Boost,
    Classifier,
    FewShot,
    Prior,
    Zero,
    ZeroShot,
)
from acclimate.arrays import HostArray
from acclimate.classifier import Scored


class UnmergedDMN(DMN):
    merges = None


class UnmergedDOTA(DOTA):
    merges = None


class UnmergedAccord(Accord):
    merges = None
    self_taught = False


class UnmergedOGA(OGA):
    merges = None


class UnitedPrior(Prior):
    merges = "union"


class UnmergedSCA(SCA):
    merges = None


class UnmergedTDA(TDA):
    merges = None


class OnlineMTA(MTA):
    kind = "online"
    merges = None
    needs = frozenset()
    views_kind = "augmix"


class OnlineTPT(TPT):
    kind = "online"
    merges = None


class OnlineZero(Zero):
    kind = "online"
    merges = None
    views_kind = "augmix"


class OnlineZeroShot(ZeroShot):
    kind = "online"
    merges = None


class OnlineFewShot(FewShot):
    kind = "online"
    views_kind = "augmix"


class WideBoost(Boost):
    views_kind = "augmix"


class Tensor:
    """An array of another library."""


def answers_have_types(adapter: TDA, classifier: Classifier, array: HostArray, picture: Image.Image) -> None:
    assert_type(adapter.step(array), HostArray)
    assert_type(adapter.step(Tensor(), learn=False), Tensor)
    assert_type(adapter.step([[0.6, 0.8]]), HostArray)
    assert_type(adapter.second_pass(Tensor()), Tensor)
    assert_type(adapter.second_pass([[0.6, 0.8]]), HostArray)
    assert_type(classifier(picture), list[Scored])
    assert_type(classifier(Path("cat.jpg"))[0]["label"], str)
    assert_type(classifier("cat.jpg", top_k=1)[0]["score"], float)
    assert_type(classifier(["cat.jpg", picture]), list[list[Scored]])
