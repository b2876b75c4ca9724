"""What a check raises; apart from the known answers, which load torch."""


class UnexpectedAnswer(Exception):  # noqa: N818 - an answer rather than a fault
    """Something is not as it must be; the message says what was found."""
