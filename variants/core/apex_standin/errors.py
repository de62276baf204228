"""The one error of the stand-in."""


class ApexError(RuntimeError, ValueError):
    """Wrong use of the stand-in, said in one line.

    It is both a RuntimeError and a ValueError: apex raises now one, now the other, and a script that
    catches either goes on working.
    """
