"""Before the first world: what is alive now is not looked at again by each world's collection."""

from __future__ import annotations

import gc

gc.collect()
gc.freeze()
