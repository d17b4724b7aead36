"""The same examples each time; ENCORE_EXAMPLES=5000 asks for so many others of each test."""

import os

from hypothesis import settings

EXAMPLES = int(os.environ.get("ENCORE_EXAMPLES", 0))

settings.register_profile("same", derandomize=True, database=None, deadline=None, max_examples=60)
settings.register_profile("exploring", derandomize=False, database=None, deadline=None, max_examples=EXAMPLES or 1)
settings.load_profile("exploring" if EXAMPLES else "same")
