"""The error that a check raises; not in `known_answers`, which loads torch."""


class UnexpectedAnswer(Exception):  # noqa: N818 - an answer rather than a fault
    """Something differs from what it must be; the message says what was found."""
