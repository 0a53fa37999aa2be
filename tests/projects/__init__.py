"""Small projects for tests: a spec, a series and an upstream in git, and what is done with them.

``history`` has an upstream with commits and tags, for verdicts; ``image`` a base to build on; ``series`` a
series to write; ``adversarial_cases`` what plain methods judge wrongly; ``trees`` generated source trees.
"""
