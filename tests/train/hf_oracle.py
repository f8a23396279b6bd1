"""Tiny random transformers models as folders, and what PyTorch makes of them, under our tensors' names."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
import transformers

from trivet import graph, models, ops, runtime
from trivet.autograd import grad
from trivet.graph import Graph
from trivet.lora import Lora, initial
from trivet.models.checkpoint import Checkpoint, open_checkpoint, transposed
from trivet.optim import AdamW
from trivet.train.data import Batch, Example, pack
from trivet.train.step import Method
from trivet.train.trainer import Trainer

VOCAB = 97
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 56,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "initializer_range": 0.2,
    "tie_word_embeddings": False,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
GPT2 = {
    "vocab_size": VOCAB,
    "n_embd": 32,
    "n_inner": 56,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 128,
    "initializer_range": 0.2,
}
HALF = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
FAMILIES = {
    "llama": ("Llama", SIZES),
    "llama-tied-bias": ("Llama", SIZES | {"tie_word_embeddings": True, "attention_bias": True}),
    "llama-64": ("Llama", SIZES | {"hidden_size": 64, "intermediate_size": 128, "initializer_range": 0.1}),
    "llama3-rope": ("Llama", SIZES | {"rope_parameters": LLAMA3, "num_key_value_heads": 1}),
    "mistral-window": ("Mistral", SIZES | {"sliding_window": 7}),
    "gpt2": ("GPT2", GPT2),
    "qwen2": ("Qwen2", SIZES),
    "qwen3": ("Qwen3", SIZES | {"head_dim": 10}),
    "smollm3": ("SmolLM3", SIZES | {"num_hidden_layers": 4, "pad_token_id": None}),
    "granite": ("Granite", SIZES | {"residual_multiplier": 0.4, "logits_scaling": 1.5}),
    "olmo2": ("Olmo2", SIZES),
    "phi3": ("Phi3", SIZES | {"pad_token_id": None}),
    "stablelm": ("StableLm", SIZES | {"qk_layernorm": True, "rope_parameters": HALF}),
    "gptneox": ("GPTNeoX", SIZES | {"num_key_value_heads": 4, "rope_parameters": HALF}),
}
#: GGUF's names of the blocks' matrices that peft adapts here
ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
FUSED = {
    "gpt2": ["c_attn", "c_proj", "c_fc"],
    "phi3": ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"],
    "gptneox": ["query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"],
}


PLAIN = AdamW()


@dataclass(frozen=True)
class Pair:
    """One model twice: theirs, and the folder it was saved to as we open it."""

    theirs: Any
    checkpoint: Checkpoint

    @property
    def module(self) -> ModuleType:
        return models.by_architecture(self.checkpoint.architecture)

    def method(self, lora: Lora | None = None, **settings: Any) -> Method:
        return Method(self.module, self.checkpoint, lora, **settings)

    def trainer(
        self,
        device: str,
        lora: Lora | None = None,
        optimiser: AdamW = PLAIN,
        parameters: Mapping[str, np.ndarray] | None = None,
        **options: Any,
    ) -> Trainer:
        method = self.method(lora)
        if parameters is None:
            parameters = initial(method.shapes(), 3) if lora else self.parameters()
        return Trainer(method, runtime.backend(device), parameters, optimiser, **options)

    def parameters(self) -> dict[str, np.ndarray]:
        """The first values of all that `full` trains."""
        return {name: self.checkpoint.load(name).copy() for name in self.method().shapes()}

    def arranged(self, tensors: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Their tensors, or gradients, as ours: renamed, rows of q and k as pairs."""
        out, parts = {}, {}
        for name, tensor in tensors.items():
            ours, _, part = self.module.hf_rename(name).partition("#")
            array = tensor.detach().numpy().copy()
            array = array.T if transposed(self.module, ours) else array
            array = self.module.hf_arrange(ours, array, self.checkpoint.metadata)
            if part:
                parts.setdefault(ours, []).append(array)
            else:
                out[ours] = array
        return out | {ours: np.stack(arrays) for ours, arrays in parts.items()}

    def adapters(self, tensors: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """The same for tensors, or gradients, of a peft model: B has the rows of its weight."""
        out = {}
        for name, tensor in tensors.items():
            module, kind = name.removeprefix("base_model.model.").split(".lora_")
            weight = self.module.hf_rename(f"{module}.weight")
            array = tensor.detach().numpy().copy()
            if kind.startswith("B"):
                array = self.module.hf_arrange(weight, array, self.checkpoint.metadata)
            out[f"{weight}.lora_{kind[0].lower()}"] = array
        return out


def adapted(pair: Pair, settings: Lora, modules: Sequence[str] = ()) -> tuple[Any, dict[str, np.ndarray]]:
    """Their model with peft's adapters, of which B is not zero, and the values of those."""
    import peft

    torch.manual_seed(11)
    modules = modules or FUSED.get(pair.checkpoint.architecture, ALL)
    config = peft.LoraConfig(
        r=settings.rank, lora_alpha=settings.alpha, use_rslora=settings.rslora, target_modules=list(modules)
    )
    model = peft.get_peft_model(copy.deepcopy(pair.theirs), config).eval()
    values = {n: p for n, p in model.named_parameters() if p.requires_grad}
    with torch.no_grad():
        for p in values.values():
            p.copy_(torch.randn_like(p) * 0.2)
    return model, pair.adapters(values)


def make(folder: Path, family: str) -> Pair:
    name, sizes = FAMILIES[family]
    torch.manual_seed(7)
    config = getattr(transformers, f"{name}Config")(**sizes, dtype="float32")
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for key, p in model.named_parameters():  # biases and norms start as 0 and 1: make them matter
            if p.ndim == 1 and not key.startswith("lm_head"):
                p.add_(torch.randn_like(p) * 0.2)
    model.save_pretrained(folder)
    return Pair(model, open_checkpoint(folder))


def examples(seed: int, *lengths: int, share: float = 0.7) -> list[Example]:
    """Random sequences of so many ids, of which about `share` are trained."""
    rng = np.random.default_rng(seed)
    made = []
    for n in lengths:
        trained = rng.random(n) < share
        trained[0], trained[-1] = False, share > 0
        made.append(Example(rng.integers(0, VOCAB, n).astype(np.int32), trained))
    return made


def torch_loss(model: Any, sequences: Sequence[Example]) -> Any:
    """The sum of losses over trained targets, one sequence at a time."""
    total = torch.zeros(())
    for e in sequences:
        ids = torch.tensor(e.ids.astype(np.int64))
        targets = torch.where(torch.tensor(e.trained[1:]), ids[1:], -100)
        logits = model(ids[None, :-1], use_cache=False).logits[0]
        total = total + torch.nn.functional.cross_entropy(logits, targets, reduction="sum")
    return total


def tokens(batch: Batch) -> dict[str, Any]:
    return {n: getattr(batch, n) for n in ("ids", "targets", "positions", "starts")}


def gradient_graph(method: Method, *, training: bool = False) -> Graph:
    """`loss`, and the gradients of its sum by name; parameters are inputs."""
    traced = method.trace(graph.input, training=training)
    loss = ops.sum(traced.losses)
    names = list(traced.shapes)
    found = grad(loss, [traced.used[n] for n in names])
    return Graph({"loss": loss, **{n: g for n, g in zip(names, found, strict=True) if g is not None}})


def run(method: Method, backend: Any, parameters: Mapping[str, Any], sequences: Sequence[Example]) -> Any:
    """Loss and gradients of one packed batch."""
    program = backend.compile(gradient_graph(method), weights=method.checkpoint.load)
    out = program.run(tokens(pack(sequences)) | dict(parameters))
    return {name: backend.to_numpy(array) for name, array in out.items()}


def distance(ours: Any, theirs: Any) -> float:
    """Euclidean, relative to theirs."""
    return float(np.linalg.norm(ours - theirs) / max(np.linalg.norm(theirs), 1e-12))
