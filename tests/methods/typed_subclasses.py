"""Subclasses of methods that say other things of themselves; `make lint` checks that mypy --strict allows it."""

from acclimate import DMN, DOTA, MTA, OGA, SCA, TDA, TPT, Accord, BoostAdapter, FewShot, Prior, Zero, ZeroShot


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


class WideBoost(BoostAdapter):
    views_kind = "augmix"
