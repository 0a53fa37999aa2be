"""Index one layer, as a process: ``index_driver.py BLOB MEDIA-TYPE DIGEST SIZE DIFF-ID CACHE``."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from builder.oci.layer_index import index_layer
from builder.oci.model import Descriptor, open_chunks, verified

blob, media_type, digest, size, diff_id, cache = sys.argv[1:]
descriptor = Descriptor(media_type, digest, int(size))
with Path(blob).open("rb") as stream:
    chunks = verified(open_chunks(stream), descriptor, blob)
    index_layer(chunks, descriptor, cache_dir=Path(cache), diff_id=diff_id).close()
