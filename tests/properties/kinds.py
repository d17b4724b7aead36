"""What a graph may grow by, in tests/properties/grow_*.py: of each kind a function and how often it is drawn."""

KINDS = {}


def kind(weight):
    def add(grow):
        KINDS[grow.__name__] = grow, weight
        return grow

    return add
