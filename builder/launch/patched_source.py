"""The release's own argument parser, out of the pinned source with the series applied."""

from __future__ import annotations

from builder.launch.arguments import Parser, parser_files, read_parser
from builder.patch.apply import conflict_error, try_series
from builder.patch.series import Series
from builder.project.spec import Spec
from builder.source.upstream import Upstream


def patched_parser(spec: Spec, upstream: Upstream, series: Series) -> Parser:
    """The arguments that the overlay's image knows; a patch may have added one.

    Raises:
        InvalidInput: the source declares none.
        PatchConflict: the series does not apply.
    """
    tried = try_series(series, upstream.files(series.paths), drop=spec.patches.drop)
    if tried.failed:
        raise conflict_error(tried, overlay=spec.name)
    paths = parser_files(upstream.entries())
    files = {path: file.data for path, file in upstream.files(paths).items()}
    files |= {path: file.data for path in parser_files(tried.after) if (file := tried.after[path])}
    return read_parser(spec.upstream.release, files)
