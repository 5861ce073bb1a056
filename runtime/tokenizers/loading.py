"""From a model file's keys to a tokenizer of the right kind."""

from runtime.errors import UnsupportedModel
from runtime.gguf import ModelFile
from runtime.tokenizers.base import Flags, Tokenizer
from runtime.tokenizers.bpe import BPE, load_ranks
from runtime.tokenizers.pretokenizers import PRE_TYPES
from runtime.tokenizers.special import StripRules
from runtime.tokenizers.spm import SPM
from runtime.tokenizers.vocabulary import KindDefaults, Vocabulary, kind_of, tokenizer_key


def load_tokenizer(model: ModelFile) -> Tokenizer:
    """The tokenizer that `model` describes.

    Raises UnsupportedModel for a kind or pre type that is not implemented, ModelError for a damaged
    vocabulary.
    """
    kind = kind_of(model)
    match kind:
        case "llama":
            return _spm(model)
        case "gpt2":
            return _bpe(model)
        case _:
            raise UnsupportedModel(f"{model.path}: tokenizer kind {kind!r} is not implemented")


def _flags(model: ModelFile, defaults: Flags) -> Flags:
    """The file's keys win over the defaults of the kind and pre type."""

    def flag(name: str, default: bool) -> bool:
        return model.get_bool(tokenizer_key(name), default)

    return Flags(
        add_bos=flag("add_bos_token", defaults.add_bos),
        add_eos=flag("add_eos_token", defaults.add_eos),
        add_sep=flag("add_sep_token", defaults.add_sep),
        add_space_prefix=flag("add_space_prefix", defaults.add_space_prefix),
        clean_spaces=defaults.clean_spaces,
    )


def _spm(model: ModelFile) -> SPM:
    vocab = Vocabulary(model, KindDefaults(bos=1, eos=2, unk=0))
    flags = _flags(model, Flags(add_bos=True, add_space_prefix=True))
    return SPM(vocab, flags, strip_rules(model, vocab, pre_name(model)))


def _bpe(model: ModelFile) -> BPE:
    name = pre_name(model)
    pre = PRE_TYPES.get(name)
    if pre is None:
        raise UnsupportedModel(f"{model.path}: pre-tokenizer {name!r} is not implemented")
    vocab = Vocabulary(model, KindDefaults(bos=11, eos=11))
    flags = _flags(model, Flags(add_bos=pre.add_bos, add_sep=pre.add_sep, clean_spaces=pre.clean_spaces))
    return BPE(vocab, flags, strip_rules(model, vocab, name), pre, load_ranks(model))


def pre_name(model: ModelFile) -> str:
    return model.get_str(tokenizer_key("pre"), "default")


def strip_rules(model: ModelFile, vocab: Vocabulary, pre: str) -> StripRules:
    """White space that special tokens eat in a few models, known by their pre type, architecture or name."""
    name = model.get_str("general.name", "").lower()
    left: set[int] = set()
    if pre in ("jina-v2-de", "jina-v2-es", "jina-v2-code", "mmbert") or model.get_str(
        "general.architecture", ""
    ) in ("nomic-bert-moe", "jina-bert-v3"):
        left = _present(vocab, b"<mask>")
    elif "modern-bert" in name:
        left = _present(vocab, b"[MASK]")
    right: set[int] = set()
    if "phi-3" in name or "phi3" in name:
        kept = _present(vocab, b"<unk>", b"<s>", b"<|endoftext|>")
        right = set(range(len(vocab))) - kept
    return StripRules(frozenset(left), frozenset(right))


def _present(vocab: Vocabulary, *texts: bytes) -> set[int]:
    return {vocab.ids[text] for text in texts if text in vocab.ids}
