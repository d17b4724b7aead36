"""Options as the provider reads them."""

from collections.abc import Iterable, Mapping


def text_of(value) -> str:
    """pad={"batch": [1, 2, 4]} is batch:1,2,4, and 4 stands for [4]."""
    if isinstance(value, Mapping):
        lists = {name: lengths if isinstance(lengths, Iterable) else [lengths] for name, lengths in value.items()}
        return ";".join(f"{name}:{','.join(map(str, lengths))}" for name, lengths in lists.items())
    return str(int(value)) if isinstance(value, bool) else str(value)


def is_on(text: str | None) -> bool:
    return text is not None and text.lower() in ("1", "true")


def lengths_of(pad: str | None) -> dict[str, list[int]]:
    """Of each dimension, from the option's text."""
    parts = [part.rpartition(":") for part in (pad or "").split(";")]
    return {name: [int(length) for length in lengths.split(",")] for name, _, lengths in parts if name}
