"""The laws any adapter must keep, for methods of this library and for anybody's own.

    from acclimate.checks import check_adapter
    check_adapter(MyAdapter, my_setting=3)

Or, one test a law: `@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)`, then `law(Trial(MyAdapter))`.
"""

from acclimate.checks.laws import LAWS, Trial, check_adapter

__all__ = ["LAWS", "Trial", "check_adapter"]
