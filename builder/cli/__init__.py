"""The command line: parses, calls a step, prints. One module a command, loaded when it is asked for."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import Any

import click

from builder import __version__
from builder.errors import OverlayError, UsageError

# Name on the command line -> module below builder.cli, and its one line of help (kept here so that
# `overlay --help` loads no command).
COMMANDS = {
    "list": ("listing", "List the overlays."),
    "show": ("show", "Show a spec, its series and where each patch stands upstream."),
    "build": ("build", "Build an image: the base, one layer of patched files, a manifest."),
    "pin": ("pin", "Resolve a base's tag to digests, and keep them in the lock."),
    "inspect": ("inspect", "Show what an image says is in it."),
    "verify": ("verify", "Check that an image or a container is what was built, or compare two."),
    "attest": ("attest", "Attach attestations to an image, and list what is attached."),
    "doctor": ("doctor", "Check that everything is there that overlay needs."),
    "cache": ("cache", "List what overlay keeps on this machine, and remove it."),
    "probe": ("probe", "Run the probes on source trees: is the defect there?"),
    "patch": ("patch", "Write patches like code: import, edit, refresh, export, lint."),
    "new": ("new", "Write a new overlay's spec, starting from another one."),
    "diff": ("diff", "Tell which patches upstream has made unnecessary, and retire them."),
    "rebase": ("rebase", "Carry a series to another release; what upstream has is left out."),
    "matrix": ("matrix", "List what must be built now, for CI."),
    "bake": ("bake", "Write a bake file for docker buildx, with self-contained contexts."),
    "launch": ("launch", "Print how each rank is started."),
    "base": ("base", "Make small base images to try and to test with."),
    "help": ("help", "Show the documents: formats, verdicts, trust and more."),
}


class LazyGroup(click.Group):
    """A group that imports a command's module only when that command runs or is asked for help."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = import_module(f"builder.cli.{COMMANDS[cmd_name][0]}").command
        return command

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            from builder.cli.failure import ReaderGone

            raise ReaderGone from error  # click would end with 1, which means something else here

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            from difflib import get_close_matches

            near = get_close_matches(args[0], COMMANDS, n=1)
            if not near:
                raise
            raise click.UsageError(f"{error.message} Did you mean {near[0]!r}?", ctx) from error


@click.command(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Examples:\n\n"
    "\b\n"
    "  overlay list\n"
    "  overlay build glm53-flash-gb10 --dry-run\n"
    "  overlay build glm53-flash-gb10 --platform linux/arm64 --push registry.example/sglang\n"
    "\b\n"
    "Exit codes: 0 done, 1 invalid input, 2 usage, 3 patch conflict, 4 patches can be retired,\n"
    "5 base or image is not what it should be, 6 not reproducible, 7 probe failed, 8 registry,\n"
    "network, engine or disk.",
)
@click.version_option(__version__, prog_name="overlay")
def cli() -> None:
    """Keep source patches over a pinned SGLang, and bake them into digest-pinned images."""


def main() -> None:
    """Entry point of the console script: runs a command, shows what goes wrong, exits by its code."""
    from builder.cli.failure import stop_on_signals
    from builder.cli.output import finish_output, open_streams

    # A short command makes modules and little garbage: looking for some would take a tenth of its time.
    gc.set_threshold(50_000)
    open_streams()
    stop_on_signals()
    code = finish_output(_run())
    gc.freeze()  # what is left at the end goes with the process, and is not looked through either
    sys.exit(code)


def _run() -> int:
    """The exit code of the command that was asked for; by signals as a shell has it (128 and its number)."""
    from builder.cli.failure import TRACEBACK, ReaderGone, Stopped, told
    from builder.cli.output import report_error, report_usage

    try:
        code = cli.main(prog_name="overlay", standalone_mode=False)
    except click.ClickException as error:
        _report(report_usage, error)
        return UsageError.exit_code
    except (click.Abort, KeyboardInterrupt):
        return _stopped(130)
    except ReaderGone:
        return ReaderGone.exit_code
    except Stopped as signal:
        return _stopped(signal.exit_code)
    except Exception as error:
        if os.environ.get(TRACEBACK) and not isinstance(error, OverlayError):
            raise
        failure = told(error)
        _report(report_error, failure)
        return failure.exit_code
    return code if isinstance(code, int) else 0


def _stopped(code: int) -> int:
    from builder.cli.output import report_stop

    _report(report_stop, code)
    return code


def _report(report: Callable[[Any], None], what: Any) -> None:
    """Say what went wrong, where somebody still listens; the exit code says it in any case."""
    with suppress(OSError):
        report(what)
