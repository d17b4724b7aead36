"""`python -m onnxruntime_ep_encore`, which is `encore`."""

import sys

from .commands import main

sys.exit(main())
