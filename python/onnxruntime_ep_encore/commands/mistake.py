"""What a person can put right; a command says it in a line, without a traceback."""


class Mistake(Exception):
    pass
