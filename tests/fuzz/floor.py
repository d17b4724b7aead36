"""How often each operator has to have run on Encore, so that a proposal which Encore or the CPU EP always refuses, or a
claim that is lost, shows."""

import listed

CASES = 5600  # as CI tries; of fewer nothing is asked
LEAST = 3  # cases in which a node of the operator ran to its end on Encore; most operators have twenty and more
# Fewer, since the layout changes where an option asks for it and the node has an image.
LEAST_WITH_CHANNELS_LAST = 1


def below(ran):
    """A line for each operator of docs/operators.md that is below the floor, of how many cases it ran in."""
    least = lambda domain: LEAST_WITH_CHANNELS_LAST if domain == listed.CHANNELS_LAST else LEAST
    lacking = sorted(key for key in listed.read() if ran[key] < least(key[0]))
    return [f"{'.'.join(filter(None, key))} ran {ran[key]} times" for key in lacking]
