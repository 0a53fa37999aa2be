"""The pinned base image: which SGLang in it Python imports, and what its layers hold of the files to patch.

In: an image reference, and paths in the package. Out: facts of the base that are checked against the pinned
source and kept in the lock. Read first: ``image.look_up_base_files`` and ``python_path.find_roots``.
"""
