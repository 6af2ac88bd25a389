"""Numbers in words, as the terminal and the report say them."""


def percent(share: float) -> str:
    """A share with three digits.

    Examples:
        >>> percent(0.86486)
        '86.5\u202f%'
    """
    return f"{100 * share:.3g}\u202f%"


def score_text(score: float) -> str:
    """A score in whole percent; one that is nearly 0 or 1 is not said to be 0 or 1.

    Examples:
        >>> score_text(0.99998), score_text(0.723), score_text(0.001)
        ('> 99 %', '72 %', '< 1 %')
    """
    if score > 0.99:
        return "> 99 %"
    return "< 1 %" if score < 0.01 else f"{100 * score:.0f} %"
