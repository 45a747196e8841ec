"""Rules for several forms with the same standing and source."""

from attnfuzz.reference.arguments import ArgumentForm, ArgumentRule, ArgumentStanding

Rules = tuple[ArgumentRule, ...]


def promised(source: str, *forms: ArgumentForm) -> Rules:
    """Return rules for forms that work, according to `source`."""
    return tuple(ArgumentRule(form, ArgumentStanding.PROMISED, source) for form in forms)


def refused(source: str, *forms: ArgumentForm) -> Rules:
    """Return rules for forms that raise, according to `source`."""
    return tuple(ArgumentRule(form, ArgumentStanding.REFUSED, source) for form in forms)


def unsaid(*forms: ArgumentForm) -> Rules:
    """Return rules for forms that the API does not mention."""
    return tuple(map(ArgumentRule, forms))


def without(rules: Rules, *forms: ArgumentForm) -> Rules:
    """Return the rules of all other forms."""
    return tuple(rule for rule in rules if rule.form not in forms)
