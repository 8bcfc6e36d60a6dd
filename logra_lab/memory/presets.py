"""Shapes of language models and sizes of cards: all that the planner knows of them, shipped, so it works offline.

Legend: d rows and k columns of one weight, V vocabulary. A `ModelShape` is config arithmetic for decoders of the
Llama kind (Llama, Qwen2/3, Gemma, SmolLM): rotary attention, gated MLP, RMS norms, the seven linear layers of
`DEFAULT_TARGETS` in every block. Left out: mixtures of experts, state-space and linear-attention blocks, encoders and
vision towers; a config that has them is refused by name rather than counted wrongly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .units import GIB

UNSUPPORTED = ("num_experts", "num_local_experts", "n_routed_experts", "linear_num_value_heads", "state_size")


@dataclass(frozen=True)
class Matrix:
    """One target of one block: weight [d, k], and its projection group (layers that read one input share one A)."""

    name: str
    d: int
    k: int
    group: str


@dataclass(frozen=True)
class ModelShape:
    """The numbers of a decoder that memory depends on; everything else follows from them."""

    name: str
    layers: int
    width: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    tied: bool
    qkv_bias: bool = False
    block_norms: int = 2  # norms of size `width` per block (Gemma has 4)
    head_norms: bool = False  # RMS norms over each query and key head (Qwen3, Gemma 3)
    window: int | None = None  # tokens a sliding-attention layer remembers
    full_every: int = 1  # with a window, every n-th layer still attends to everything

    @property
    def q_width(self) -> int:
        """Columns of all query heads together."""
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Columns of all key (or value) heads together."""
        return self.kv_heads * self.head_dim

    @property
    def targets(self) -> tuple[Matrix, ...]:
        """The seven target matrices of one block, with the groups that share a projection (design.md)."""
        h, q, kv, ffn = self.width, self.q_width, self.kv_width, self.ffn
        return (
            Matrix("q_proj", q, h, "attention in"),
            Matrix("k_proj", kv, h, "attention in"),
            Matrix("v_proj", kv, h, "attention in"),
            Matrix("o_proj", h, q, "attention out"),
            Matrix("gate_proj", ffn, h, "mlp in"),
            Matrix("up_proj", ffn, h, "mlp in"),
            Matrix("down_proj", h, ffn, "mlp out"),
        )

    @property
    def target_parameters(self) -> int:
        """Weights inside the targets, over all blocks."""
        return self.layers * sum(m.d * m.k for m in self.targets)

    @property
    def target_rows(self) -> int:
        """Rows of all targets, over all blocks: the sketches hold r numbers for each."""
        return self.layers * sum(m.d for m in self.targets)

    def group_columns(self, shared: bool = True) -> int:
        """Columns k summed over projection groups (one A [r, k] each), over all blocks."""
        if not shared:
            return self.layers * sum(m.k for m in self.targets)
        return self.layers * sum({m.group: m.k for m in self.targets}.values())

    @property
    def embedding_parameters(self) -> int:
        """One [V, width] table."""
        return self.vocab * self.width

    @property
    def block_rest(self) -> int:
        """Parameters of one block outside the targets: norms and biases."""
        biases = self.q_width + 2 * self.kv_width if self.qkv_bias else 0
        return self.block_norms * self.width + 2 * self.head_dim * self.head_norms + biases

    @property
    def rest_parameters(self) -> int:
        """All parameters outside the targets; a tied head is the embedding itself, so it is counted once."""
        tables = self.embedding_parameters * (1 if self.tied else 2)
        return tables + self.layers * self.block_rest + self.width

    @property
    def parameters(self) -> int:
        """All parameters, each counted once."""
        return self.target_parameters + self.rest_parameters

    def cached_tokens(self, context: int) -> int:
        """Token slots the KV cache holds over all layers for one sequence of `context` tokens."""
        if self.window is None:
            return self.layers * context
        full = self.layers // self.full_every
        return full * context + (self.layers - full) * min(context, self.window)


MODELS = {
    shape.name: shape
    for shape in (
        ModelShape("SmolLM2-135M", 30, 576, 1536, 9, 3, 64, 49152, tied=True),
        ModelShape("Qwen2.5-Math-1.5B", 28, 1536, 8960, 12, 2, 128, 151936, tied=True, qkv_bias=True),
        ModelShape("Qwen2.5-Math-7B", 28, 3584, 18944, 28, 4, 128, 152064, tied=False, qkv_bias=True),
        # The paper does not name its 27B. Gemma 3's text tower is the one used here: its weights are open and each of
        # its 62 blocks has exactly the seven targets, so LoGRA applies to it as it stands. (Qwen3.5-27B, the other
        # candidate, replaces attention by linear attention in three blocks of four.) Tied head, 262,208 tokens, two
        # query heads of 128 to a key head, five sliding layers of 1,024 tokens to a full one.
        ModelShape(
            "Gemma-3-27B", 62, 5376, 21504, 32, 16, 128, 262208, tied=True,
            block_norms=4, head_norms=True, window=1024, full_every=6,
        ),
    )
}  # fmt: skip
ALIASES = {"135M": "SmolLM2-135M", "1.5B": "Qwen2.5-Math-1.5B", "7B": "Qwen2.5-Math-7B", "27B": "Gemma-3-27B"}


@dataclass(frozen=True)
class Card:
    """A GPU as sold (`name`) and as torch sees it (`capacity` in bytes, after the driver's and the ECC's share)."""

    name: str
    example: str
    capacity: int


# Capacities are the totals torch reports on such cards. "24 GB" and "80 GB" are names: 24 GB would be 22.4 GiB.
CARDS = {
    card.name: card
    for card in (
        Card("24 GB", "GeForce RTX 4090", int(23.6 * GIB)),
        Card("48 GB", "L40S", int(44.5 * GIB)),
        Card("80 GB", "H100", int(79.1 * GIB)),
        Card("141 GB", "H200", int(139.8 * GIB)),
    )
}


def card_of(gpu: Card | str | float) -> Card:
    """A card from its name ("80 GB" or 80), or from a `Card`. Raises ValueError for an unknown one."""
    if isinstance(gpu, Card):
        return gpu
    name = gpu if isinstance(gpu, str) else f"{gpu:g} GB"
    if name not in CARDS:
        raise ValueError(
            f"Unknown card {name!r}; choose one of {', '.join(CARDS)}, or pass Card(name, example, capacity)."
        )
    return CARDS[name]


def shape_of(model: object) -> ModelShape:
    """The shape of a preset name, a Hugging Face config, a live model, or a `ModelShape` itself.

    Raises ValueError for an unknown name and for a config that is not a plain decoder, with what to pass instead.
    """
    if isinstance(model, ModelShape):
        return model
    if isinstance(model, str):
        return _named(model)
    return _from_config(getattr(model, "config", model))


def _named(name: str) -> ModelShape:
    known = {key.lower(): key for key in MODELS} | {key.lower(): value for key, value in ALIASES.items()}
    found = known.get(name.rsplit("/", 1)[-1].lower())
    if found is None:
        raise ValueError(
            f"Unknown model {name!r}; presets are {', '.join(MODELS)}. For any other, pass its config "
            "(transformers.AutoConfig.from_pretrained) or a ModelShape."
        )
    return MODELS[found]


def _from_config(config: Any) -> ModelShape:
    """From whatever has the attributes of a transformers config."""
    config = getattr(config, "text_config", None) or config
    kind = getattr(config, "model_type", type(config).__name__)
    for field in UNSUPPORTED:
        if getattr(config, field, None):
            raise ValueError(
                f"{kind} has {field}={getattr(config, field)}: only dense decoders are counted. Pass a ModelShape."
            )
    try:
        heads, width = config.num_attention_heads, config.hidden_size
        layers, ffn, vocab = config.num_hidden_layers, config.intermediate_size, config.vocab_size
    except AttributeError as error:
        raise ValueError(f"Cannot read a decoder's shape from {kind}: {error}. Pass a ModelShape.") from None
    kinds = getattr(config, "layer_types", None) or []
    full = sum(kind == "full_attention" for kind in kinds)
    sliding = 0 < full < len(kinds)
    return ModelShape(
        name=str(getattr(config, "_name_or_path", "") or kind),
        layers=layers, width=width, ffn=ffn, heads=heads, vocab=vocab,
        kv_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_dim=getattr(config, "head_dim", None) or width // heads,
        tied=bool(getattr(config, "tie_word_embeddings", False)),
        qkv_bias=bool(getattr(config, "attention_bias", False)) or kind.startswith("qwen2"),
        block_norms=4 if kind.startswith(("gemma2", "gemma3")) else 2,
        head_norms=kind.startswith(("qwen3", "gemma3")),
        window=config.sliding_window if sliding else None,
        full_every=len(kinds) // full if sliding else 1,
    )  # fmt: skip
