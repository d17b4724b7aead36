"""How often each operator has to have run on Encore, so that a proposal which Encore or the CPU EP always refuses, or a
claim that is lost, shows."""

import listed

CASES = 8000  # as CI tries; of fewer nothing is asked
LEAST = 8  # cases in which a node of the operator ran to its end on Encore

# Operators that can't, and why.
EXEMPT = {}


def below(ran):
    """A line for each operator of docs/operators.md that is below the floor, of how many cases it ran in."""
    wanted = sorted(key for key in listed.read() if key not in EXEMPT)
    return [f"{'.'.join(filter(None, key))} ran {ran[key]} times" for key in wanted if ran[key] < LEAST]
