"""Which DSA backends does SM12x get when the user names none, and have they kernels for it?"""

from __future__ import annotations

import ast
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from builder.probe.devices import BLACKWELL, HOPPER, SM12X, cuda_device, named
from builder.probe.harness import (
    Answer,
    CannotTell,
    Opaque,
    Program,
    Tree,
    call,
    defect,
    definitions,
    fixed,
    names_in,
    parse,
    strings_in,
    unknown,
)

ARGUMENTS = "python/sglang/srt/arg_groups/overrides.py"
KPOOL = "python/sglang/srt/layers/attention/dsa/dsa_backend_kpool.py"
SPARSE_MLA = "sglang.kernels.ops.attention.flash_mla_sm120"

# By architecture of the GPU, not by name: TRTLLM-gen has cubins for SM100 to SM107, FlashMLA and FA3 for
# SM90 and SM100, and triton, aiter are ROCm's here.
WITHOUT_KERNELS = frozenset(
    {
        "trtllm",
        "flashmla_sparse",
        "flashmla_sparse_q8",
        "flashmla_kv",
        "flashmla_auto",
        "fa3",
        "triton",
        "aiter",
    }
)
WITH_KERNELS = frozenset({"tilelang", "flashinfer_sparse_mla", "triton_sparse_mla"})

MODELS = ("Glm5NextForConditionalGeneration", "DeepseekV32ForCausalLM", "GlmMoeDsaForCausalLM")
ASKED = ("auto", "bfloat16", "fp8_e4m3")
SCALED = "GlmMoeDsaForCausalLM"  # whose fp8 cache has scales, which FlashInfer's sparse MLA reads on SM12x

# What DeepSeek-V3.2 gets where nothing is to change.
HOPPER_BF16 = ("bfloat16", "flashmla_sparse", "fa3")
HOPPER_FP8 = ("fp8_e4m3", "flashmla_kv", "flashmla_kv")
BLACKWELL_BF16 = ("bfloat16", "flashmla_sparse", "trtllm")
BLACKWELL_FP8 = ("fp8_e4m3", "trtllm", "trtllm")
KNOWN = {
    HOPPER: {"auto": HOPPER_BF16, "bfloat16": HOPPER_BF16, "fp8_e4m3": HOPPER_FP8},
    BLACKWELL: {"auto": BLACKWELL_FP8, "bfloat16": BLACKWELL_BF16, "fp8_e4m3": BLACKWELL_FP8},
}
VARYING = "DeepseekV32ForCausalLM"
# Arms of their own, the same on every device: for which types, what the model has, and the user's flag.
ARMS: tuple[tuple[str, tuple[str, ...], dict[str, Any], dict[str, Any]], ...] = (
    ("learnable sinks", ASKED, {"learnable_sink": True}, {}),
    ("HiSparse", ASKED[1:], {}, {"enable_hisparse": True}),
)
TAIL = {HOPPER: "fa3", BLACKWELL: "trtllm"}  # what the kpool tail of flashmla_sparse becomes there


def _passes(tree: Tree) -> tuple[str, str, str]:
    """The file, and in it the names of the passes that choose the cache's type and the two backends."""
    files = tree.grep(b"is_deepseek_dsa", "python/sglang/srt/")
    for path in sorted(files, key=lambda path: (path != ARGUMENTS, path)):
        found: dict[str, str] = {}
        for name, node in definitions(parse(tree, path)):
            if (
                isinstance(node, ast.FunctionDef)
                and "is_deepseek_dsa" in names_in(node)
                and len(node.args.args) == 1
            ):
                if "dsa_decode_backend" in strings_in(node):
                    found["backends"] = name
                elif "kv_cache_dtype" in strings_in(node) and "fp8_e4m3" in strings_in(node):
                    found["type"] = name
        if len(found) == 2:
            return path, found["type"], found["backends"]
    raise CannotTell("no file has the passes that choose DSA's defaults")


Chosen = tuple[str, str, str]
"""Cache type, prefill and decode backend."""


class Arguments:
    """The resolution of DSA's arguments on one GPU, for one model after the other."""

    def __init__(self, tree: Tree, gpu: tuple[int, int]) -> None:
        stubs = cuda_device(gpu) | {
            "logger": Opaque("logger"),
            "is_deepseek_dsa": lambda _: True,
            "model_config_of": lambda _: self.config,
            "torch.float8_e4m3fn": "fp8_e4m3",
        }
        self.program = Program(tree, stubs)
        self.gpu = gpu
        path, *names = _passes(tree)
        module = self.program.module(path)
        self.choose_type, self.choose_backends = (getattr(module, name) for name in names)
        self.of(VARYING)

    def of(self, model: str, **config: object) -> Arguments:
        """The same, from now on for this model."""
        self.model = model
        self.config = SimpleNamespace(
            hf_config=SimpleNamespace(architectures=[model], index_topk=2048, **config)
        )
        return self

    def resolve(
        self, asked: str, prefill: str | None = None, decode: str | None = None, **flags: Any
    ) -> Chosen:
        """What a user gets who asks for this type and names these backends, or none.

        Raises:
            ValueError: the source refuses it.
            LookupError: the release chooses nothing for this model.
        """
        named_ones = {"dsa_prefill_backend": prefill, "dsa_decode_backend": decode}
        given = {"kv_cache_dtype": asked} | named_ones
        given |= self.choose_type(self._view(given | flags))
        chosen = self.choose_backends(self._view(given | flags))
        if not chosen and None in named_ones.values():
            raise LookupError(self.model)
        given |= chosen
        return given["kv_cache_dtype"], given["dsa_prefill_backend"], given["dsa_decode_backend"]

    def outcome(self, asked: str, **flags: Any) -> Chosen | str:
        """The same, or why it is refused."""
        try:
            return self.resolve(asked, **flags)
        except (ValueError, LookupError) as error:
            return f"refused: {error}"

    def _view(self, given: dict[str, Any]) -> Opaque:
        defaults = {"enable_hisparse": False, "dcp_size": 1, "get_model_config": lambda: self.config}
        return Opaque("server_args", **defaults | given)

    def refused_at_start(self, cache: str, prefill: str, decode: str) -> str:
        """Why the backend's constructor refuses what was chosen; empty when it does not."""
        if "flashinfer_sparse_mla" not in (prefill, decode):
            return ""
        check = self.program.module(SPARSE_MLA)._validate_flashinfer_sparse_mla_backend
        try:
            call(
                check,
                model_arch=self.model,
                device_sm_major=self.gpu[0],
                kv_cache_dtype=cache,
                prefill_impl=prefill,
                decode_impl=decode,
            )
        except ValueError as error:
            return str(error)
        return ""


def _wrong_defaults(arguments: Arguments) -> tuple[list[str], list[str]]:
    """What is chosen wrongly on a GPU, and what is chosen rightly."""
    wrong, right = [], []
    for model in MODELS:
        arguments.of(model)
        for asked in ASKED:
            try:
                chosen = arguments.resolve(asked)
            except LookupError:
                continue  # a model that this release does not know
            except ValueError as error:
                refusal = f"{model} with {asked} refused on {named(arguments.gpu)}: {error}"
                (right if asked == "fp8_e4m3" else wrong).append(refusal)
                continue
            said = f"{model}/{asked}: {', '.join(chosen)}"
            bad = _bad(arguments, asked, chosen) or _overridden(arguments, asked, chosen)
            (wrong if bad else right).append(f"{said} ({bad})" if bad else said)
    return wrong, right


def _bad(arguments: Arguments, asked: str, chosen: Chosen) -> str:
    """Why a choice is none for SM12x; empty where it is one."""
    cache, prefill, decode = chosen
    backends = {prefill, decode}
    for backend in backends - WITHOUT_KERNELS - WITH_KERNELS:
        raise CannotTell(f"{arguments.model} gets {backend}, of which nobody here knows whether SM12x has it")
    if backends & WITHOUT_KERNELS:
        return "no kernels"
    if asked != "auto" and cache != asked:
        return f"{asked} was asked for"
    if asked == "auto" and cache == "fp8_e4m3" and "tilelang" in backends:
        return "fp8 without scales, unasked"
    if asked == "auto" and arguments.model == SCALED:
        scaled = arguments.outcome("fp8_e4m3")
        if "flashinfer_sparse_mla" in scaled and chosen != scaled:
            return f"its own {scaled} is there"
    return arguments.refused_at_start(cache, prefill, decode)


def _overridden(arguments: Arguments, asked: str, chosen: Chosen) -> str:
    """What becomes of the backends that a user names; empty where they are kept."""
    cache, prefill, decode = chosen
    own = "flashmla_sparse" if cache == "bfloat16" else prefill
    for theirs in ((own, None), (None, own), (own, own)):
        try:
            got = arguments.resolve(asked, *theirs)
        except ValueError:
            continue  # refused, not overridden
        if got != (cache, theirs[0] or prefill, theirs[1] or decode):
            return f"with {theirs} named: {got}"
    return ""


def _method(program: Program, tree: Tree, path: str, wanted: Callable[[ast.AST], bool]) -> Any:
    for dotted, node in definitions(parse(tree, path)):
        owner, _, method = dotted.rpartition(".")
        if owner and isinstance(node, ast.FunctionDef) and wanted(node):
            return getattr(getattr(program.module(path), owner), method)
    return None


def _kpool(tree: Tree) -> str | None:
    """The file in which a class redirects the kpool tail."""
    files = tree.grep(b"dsa_index_kpool", "python/sglang/srt/layers/attention/")
    for path in sorted(files, key=lambda path: (path != KPOOL, path)):
        if any(_redirects(node) for name, node in definitions(parse(tree, path)) if "." in name):
            return path
    return files[0] if files else None


def _redirects(node: ast.AST) -> bool:
    """A method that replaces flashmla_sparse for the tail of a pooled index."""
    returned = {
        n.value.value
        for n in ast.walk(node)
        if isinstance(n, ast.Return) and isinstance(n.value, ast.Constant)
    }
    return "dsa_index_kpool" in names_in(node) and "flashmla_sparse" in strings_in(node) and bool(returned)


def _checks(node: ast.AST) -> bool:
    return "dsa_index_kpool" in names_in(node) and "NotImplementedError" in names_in(node)


def _wrong_tails(tree: Tree, path: str, gpu: tuple[int, int]) -> list[str]:
    """What the kpool tail of flashmla_sparse becomes on ``gpu`` although it has no kernels."""
    program = Program(tree, cuda_device(gpu))
    resolve = _method(program, tree, path, _redirects)
    check = _method(program, tree, path, _checks)
    if resolve is None or check is None:
        raise CannotTell(f"{path} resolves or checks no backend for the kpool tail")
    wrong = []
    for packed in (False, True):
        backend = Opaque(
            "backend",
            dsa_index_kpool=4,
            device_sm_major=gpu[0],
            device_capability=gpu,
            dsa_kv_cache_store_fp8=packed,
        )
        unpooled = Opaque("backend", dsa_index_kpool=1, device_sm_major=gpu[0], dsa_kv_cache_store_fp8=packed)
        for kept in (
            resolve(backend, None, "flashmla_sparse") == "flashmla_sparse",
            resolve(unpooled, [0], "flashmla_sparse") == "flashmla_sparse",
            resolve(backend, [0], "tilelang") == "tilelang",
        ):
            if not kept:
                wrong.append("what is no kpool tail of flashmla_sparse is replaced")
        chosen = resolve(backend, [0], "flashmla_sparse")
        cache = "packed fp8" if packed else "bf16"
        try:
            check(backend, [0], chosen, "prefill")
        except NotImplementedError as error:
            if gpu in SM12X and not packed:
                wrong.append(f"kpool tail of a {cache} cache refused: {error}")
            continue  # refused where the server starts
        if gpu in TAIL:
            wrong += [f"kpool tail of a {cache} cache: {chosen}"] if chosen != TAIL[gpu] else []
        elif chosen not in WITH_KERNELS or packed:
            wrong.append(f"kpool tail of a {cache} cache: {chosen}")
    return wrong


def _moved(on: dict[tuple[int, int], Arguments]) -> str:
    """What SM12x's defaults must not touch and is not as it has always been; empty when nothing is."""
    for gpu, known in KNOWN.items():
        for asked, chosen in known.items():
            got = on[gpu].of(VARYING).outcome(asked)
            if got != chosen:
                return f"{named(gpu)} with {asked} gets {got}, not {chosen}"
    for what, types, config, flags in ARMS:
        for asked in types:
            each = {
                named(gpu): args.of(VARYING, **config).outcome(asked, **flags) for gpu, args in on.items()
            }
            arm = each[named(HOPPER)]
            if arm != KNOWN[HOPPER][asked] and any(outcome != arm for outcome in each.values()):
                return f"{what} with {asked} not alike: {each}"
    return ""


def probe(tree: Tree) -> Answer:
    on = {gpu: Arguments(tree, gpu) for gpu in (HOPPER, BLACKWELL, *SM12X)}
    moved = _moved(on)
    if moved:
        return unknown(moved)
    kpool = _kpool(tree)
    if kpool and (tails := [said for gpu in TAIL for said in _wrong_tails(tree, kpool, gpu)]):
        return unknown(f"on 9.0 or 10.0: {tails[0]}")
    wrong: list[str] = []
    right: list[str] = []
    for gpu in SM12X:
        bad, good = _wrong_defaults(on[gpu])
        tails = _wrong_tails(tree, kpool, gpu) if kpool else []
        wrong += [f"{named(gpu)} {text}" for text in bad + tails]
        right += [f"{named(gpu)} {text}" for text in good]
    if wrong:
        return defect(f"{len(wrong)} choices without SM12x kernels, e.g. {'; '.join(wrong[:3])}")
    if not right:
        return unknown("no known model gets DSA backends here")
    refused = sum("refused" in text for text in right)
    return fixed(
        f"{len(right)} choices, {refused} refused, none without SM12x kernels, e.g. {'; '.join(right[:3])}"
    )
