"""From a model file's keys to a tokenizer of the right kind."""

import numpy as np

from runtime.errors import UnsupportedModel
from runtime.gguf import ModelFile
from runtime.tokenizers.base import Flags, Tokenizer
from runtime.tokenizers.bpe import BPE, TextBPE, load_merges
from runtime.tokenizers.bpe_variants import HybridDNA, WhitespaceBPE
from runtime.tokenizers.charsmap import CharsMap
from runtime.tokenizers.plamo2 import PLaMo2
from runtime.tokenizers.pretokenizers import PRE_TYPES, PreType
from runtime.tokenizers.rwkv import RWKV
from runtime.tokenizers.special import StripRules
from runtime.tokenizers.spm import SPM
from runtime.tokenizers.unigram import Unigram
from runtime.tokenizers.vocabulary import KindDefaults, Vocabulary, kind_of, tokenizer_key
from runtime.tokenizers.wordpiece import WordPiece


def load_tokenizer(model: ModelFile) -> Tokenizer:
    """The tokenizer that `model` describes.

    Raises UnsupportedModel for a kind or pre type that is not implemented, ModelError for a damaged
    vocabulary.
    """
    kind = kind_of(model)
    match kind:
        case "llama":
            return _spm(model)
        case "gpt2" | "gemma4" | "hybriddna" | "whitespace":
            return _bpe(model, kind)
        case "bert":
            return _wordpiece(model)
        case "t5":
            return _unigram(model)
        case "rwkv":
            vocab = Vocabulary(model, KindDefaults())
            return RWKV(vocab, _flags(model, Flags()), _strip_rules(model, vocab))
        case "plamo2":
            vocab = Vocabulary(model, KindDefaults(bos=1, eos=2, unk=0, pad=3))
            return PLaMo2(vocab, _flags(model, Flags()), _strip_rules(model, vocab))
        case "no_vocab" | "none":
            raise UnsupportedModel(f"{model.path}: has no tokenizer (its kind is {kind!r})")
        case _:
            raise UnsupportedModel(f"{model.path}: tokenizer kind {kind!r:.60} is not implemented")


def _spm(model: ModelFile) -> SPM:
    vocab = Vocabulary(model, KindDefaults(bos=1, eos=2, unk=0))
    flags = _flags(model, Flags(add_bos=True, add_space_prefix=True))
    return SPM(vocab, flags, _strip_rules(model, vocab))


def _bpe(model: ModelFile, kind: str) -> BPE:
    name = "gemma4" if kind == "gemma4" else _pre_name(model)
    pre = PRE_TYPES.get(name)
    if pre is None:
        raise UnsupportedModel(f"{model.path}: pre-tokenizer {name!r:.60} is not implemented")
    vocab = Vocabulary(model, KindDefaults() if kind == "gemma4" else KindDefaults(bos=11, eos=11))
    flags = _flags(model, _bpe_defaults(pre), force_bos=name == "gemma4")
    strip, merges = _strip_rules(model, vocab), load_merges(model)
    if kind == "whitespace":
        lowercase = model.get_bool(tokenizer_key("normalizer.lowercase"), False)
        return WhitespaceBPE(vocab, flags, strip, pre, merges, lowercase=lowercase)
    if kind == "hybriddna":
        return HybridDNA(vocab, flags, strip, pre, merges)
    return (TextBPE if pre.raw else BPE)(vocab, flags, strip, pre, merges)


def _bpe_defaults(pre: PreType) -> Flags:
    return Flags(add_bos=pre.add_bos, add_sep=pre.add_sep, clean_spaces=pre.clean_spaces)


def _wordpiece(model: ModelFile) -> WordPiece:
    vocab = Vocabulary(model, KindDefaults(bos=101, unk=100, sep=102, pad=0, mask=103))
    flags = _flags(model, Flags(add_bos=True, add_sep=True, clean_spaces=True))
    lowercase = model.get_bool(tokenizer_key("normalizer.lowercase"), True)
    strip_accents = model.get_bool(tokenizer_key("normalizer.strip_accents"), lowercase)
    strip = _strip_rules(model, vocab)
    return WordPiece(vocab, flags, strip, lowercase=lowercase, strip_accents=strip_accents)


def _unigram(model: ModelFile) -> Unigram:
    vocab = Vocabulary(model, KindDefaults(eos=1, unk=2, pad=0))
    flags = _flags(model, Flags(add_eos=True))
    merge_spaces = model.get_bool(tokenizer_key("remove_extra_whitespaces"), False)
    blob = model.get_array(tokenizer_key("precompiled_charsmap"), np.ndarray)
    charsmap = None if blob is None or not len(blob) else CharsMap(blob.tobytes())
    strip = _strip_rules(model, vocab)
    return Unigram(vocab, flags, strip, merge_spaces=merge_spaces, charsmap=charsmap)


def _flags(model: ModelFile, defaults: Flags, *, force_bos: bool = False) -> Flags:
    """The file's keys win over the defaults of the kind and pre type."""

    def flag(name: str, default: bool) -> bool:
        return model.get_bool(tokenizer_key(name), default)

    return Flags(
        add_bos=force_bos or flag("add_bos_token", defaults.add_bos),
        add_eos=flag("add_eos_token", defaults.add_eos),
        add_sep=flag("add_sep_token", defaults.add_sep),
        add_space_prefix=flag("add_space_prefix", defaults.add_space_prefix),
        clean_spaces=defaults.clean_spaces,
    )


def _pre_name(model: ModelFile) -> str:
    return model.get_str(tokenizer_key("pre"), "default")


def _strip_rules(model: ModelFile, vocab: Vocabulary) -> StripRules:
    """White space that special tokens eat in a few models, known by their pre type, architecture or name."""
    pre, name = _pre_name(model), model.get_str("general.name", "").lower()
    architecture = model.get_str("general.architecture", "")
    if _contains(pre, "jina-v2-de", "jina-v2-es", "jina-v2-code", "mmbert") or _contains(
        architecture, "nomic-bert-moe", "jina-bert-v3"
    ):
        return StripRules(left=frozenset(_present(vocab, b"<mask>")))
    if _contains(name, "phi-3", "phi3"):
        kept = _present(vocab, b"<unk>", b"<s>", b"<|endoftext|>")
        return StripRules(right=frozenset(range(len(vocab))) - kept)
    if "modern-bert" in name:
        return StripRules(left=frozenset(_present(vocab, b"[MASK]")))
    return StripRules()


def _contains(text: str, *parts: str) -> bool:
    return any(part in text for part in parts)


def _present(vocab: Vocabulary, *texts: bytes) -> set[int]:
    return {vocab.ids[text] for text in texts if text in vocab.ids}
