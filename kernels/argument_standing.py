"""Rules of several forms that have one standing and one source."""

from attnfuzz.reference.arguments import ArgumentForm, ArgumentRule, ArgumentStanding

Rules = tuple[ArgumentRule, ...]


def promised(source: str, *forms: ArgumentForm) -> Rules:
    """Forms that work, as `source` says."""
    return tuple(ArgumentRule(form, ArgumentStanding.PROMISED, source) for form in forms)


def refused(source: str, *forms: ArgumentForm) -> Rules:
    """Forms that raise, as `source` says."""
    return tuple(ArgumentRule(form, ArgumentStanding.REFUSED, source) for form in forms)


def unsaid(*forms: ArgumentForm) -> Rules:
    """Forms of which nothing is said."""
    return tuple(map(ArgumentRule, forms))


def without(rules: Rules, *forms: ArgumentForm) -> Rules:
    """The rules of all other forms."""
    return tuple(rule for rule in rules if rule.form not in forms)
