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
    locate,
    names_in,
    parse,
    strings_in,
    unknown,
)

ARGUMENTS = ("python/sglang/srt/arg_groups/overrides.py",)
KPOOL = ("python/sglang/srt/layers/attention/dsa/dsa_backend_kpool.py",)
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


def _passes(module: ast.Module) -> tuple[str, str]:
    """The names of the passes that choose the cache's type and the two backends."""
    named_after: dict[str, str] = {}
    for name, node in definitions(module):
        if (
            isinstance(node, ast.FunctionDef)
            and "is_deepseek_dsa" in names_in(node)
            and len(node.args.args) == 1
        ):
            if "dsa_decode_backend" in strings_in(node):
                named_after["backends"] = name
            elif "kv_cache_dtype" in strings_in(node) and "fp8_e4m3" in strings_in(node):
                named_after["type"] = name
    if set(named_after) != {"backends", "type"}:
        raise CannotTell(f"found only {named_after or 'nothing'} of the passes that choose DSA's defaults")
    return named_after["type"], named_after["backends"]


class Arguments:
    """The resolution of DSA's arguments for one model on one GPU."""

    def __init__(self, tree: Tree, path: str, gpu: tuple[int, int], model: str) -> None:
        self.config = SimpleNamespace(hf_config=SimpleNamespace(architectures=[model], index_topk=2048))
        stubs = cuda_device(gpu) | {
            "logger": Opaque("logger"),
            "is_deepseek_dsa": lambda _: True,
            "model_config_of": lambda _: self.config,
            "torch.float8_e4m3fn": "fp8_e4m3",
        }
        self.program = Program(tree, stubs)
        self.gpu, self.model = gpu, model
        module = self.program.module(path)
        self.choose_type, self.choose_backends = (
            getattr(module, name) for name in _passes(parse(tree, path))
        )

    def resolve(self, asked: str) -> tuple[str, str, str]:
        """Cache type, prefill and decode backend; :class:`ValueError` when the source refuses."""
        view = self._view(asked)
        cache = {"kv_cache_dtype": asked} | self.choose_type(view)
        chosen = self.choose_backends(self._view(cache["kv_cache_dtype"]))
        if not chosen:
            raise LookupError(self.model)
        return cache["kv_cache_dtype"], chosen["dsa_prefill_backend"], chosen["dsa_decode_backend"]

    def _view(self, cache: str) -> Opaque:
        return Opaque(
            "server_args",
            kv_cache_dtype=cache,
            dsa_prefill_backend=None,
            dsa_decode_backend=None,
            enable_hisparse=False,
            dcp_size=1,
            get_model_config=lambda: self.config,
        )

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


def _wrong_defaults(tree: Tree, path: str, gpu: tuple[int, int]) -> tuple[list[str], list[str]]:
    """What is chosen without kernels on ``gpu``, and what is chosen that has some."""
    wrong, right = [], []
    for model in MODELS:
        arguments = Arguments(tree, path, gpu, model)
        for asked in ASKED:
            try:
                cache, prefill, decode = arguments.resolve(asked)
            except LookupError:
                continue  # a model that this release does not know
            except ValueError as error:
                refusal = f"{model} with {asked} refused on {named(gpu)}: {error}"
                (right if asked == "fp8_e4m3" else wrong).append(refusal)
                continue
            for backend in {prefill, decode} - WITHOUT_KERNELS - WITH_KERNELS:
                raise CannotTell(f"{model} gets {backend}, of which nobody here knows whether SM12x has it")
            said = f"{model}/{asked}: {cache}, {prefill}, {decode}"
            bad = {prefill, decode} & WITHOUT_KERNELS or arguments.refused_at_start(cache, prefill, decode)
            (wrong if bad else right).append(said)
    return wrong, right


def _method(program: Program, tree: Tree, path: str, wanted: Callable[[ast.AST], bool]) -> Any:
    for dotted, node in definitions(parse(tree, path)):
        owner, _, method = dotted.rpartition(".")
        if owner and isinstance(node, ast.FunctionDef) and wanted(node):
            return getattr(getattr(program.module(path), owner), method)
    return None


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
        chosen = resolve(backend, [0], "flashmla_sparse")
        try:
            check(backend, [0], chosen, "prefill")
        except NotImplementedError:
            continue  # refused where the server starts
        cache = "packed fp8" if packed else "bf16"
        if chosen not in WITH_KERNELS or packed:
            wrong.append(f"kpool tail of a {cache} cache: {chosen}")
    return wrong


def _unmoved(tree: Tree, path: str) -> bool:
    """Whether Hopper and datacenter Blackwell get what they have always got."""
    hopper = Arguments(tree, path, HOPPER, "DeepseekV32ForCausalLM").resolve("auto")
    blackwell = Arguments(tree, path, BLACKWELL, "DeepseekV32ForCausalLM").resolve("auto")
    return (hopper, blackwell) == (
        ("bfloat16", "flashmla_sparse", "fa3"),
        ("fp8_e4m3", "trtllm", "trtllm"),
    )


def probe(tree: Tree) -> Answer:
    path = locate(tree, ARGUMENTS, b"dsa_decode_backend", "python/sglang/srt/")
    if path is None:
        return unknown("DSA's arguments were not found: nothing has dsa_decode_backend")
    if not _unmoved(tree, path):
        return unknown("the defaults of 9.0 or 10.0 are not the known ones")
    kpool = locate(tree, KPOOL, b"dsa_index_kpool", "python/sglang/srt/layers/attention/")
    wrong: list[str] = []
    right: list[str] = []
    for gpu in SM12X:
        bad, good = _wrong_defaults(tree, path, gpu)
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
