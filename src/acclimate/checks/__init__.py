"""The laws any method must keep, for methods of this library and for anybody's own.

    from acclimate.checks import check_adapter
    check_adapter(MyMethod, my_setting=3)

Laws are chosen by what a method says it is (kind, merge rule, needs); `check_adapter` prints those it skipped. Or, one
test per law: `@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)`, then `law(Trial(MyMethod))`.
"""

from acclimate.checks.laws import LAWS, Trial, check_adapter, why_not

__all__ = ["LAWS", "Trial", "check_adapter", "why_not"]
