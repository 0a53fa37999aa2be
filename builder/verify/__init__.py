"""Is what runs what was built: an image or a container, held against its record, its base and its lock.

In: something with layers, of which nothing is run. Out: deviations, or none. Read first: ``verify.verify``
and ``layered.open_image``.
"""
