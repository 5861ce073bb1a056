"""The expression families R1 to R31 of llama.cpp's pre-tokenizers, written for the `regex` module.

They match what llama.cpp matches: it knows no letter case beyond ASCII (its ``\\p{Lu}`` is any letter).
Every expression is linear in the text: where llama.cpp's form would backtrack, an equivalent one stands
here (a possessive run, a set difference instead of a lookahead).
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RightGroups:
    """Runs of digits (the expression `run`) grouped from the right in groups of `size`."""

    run: str
    size: int = 3


Step = str | RightGroups

_CONTRACTION = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_MARKED_WORD = r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+"
_OTHER = r" ?[^\s\p{L}\p{N}]+"
_LINES = r"\s*[\r\n]+"
_SPACES = r"\s+(?!\S)|\s+"
_TAIL = rf"{_OTHER}[\r\n]*|{_LINES}|{_SPACES}"

_LLAMA3 = rf"{_CONTRACTION}|{_WORD}|\p{{N}}{{1,3}}|{_TAIL}"
_QWEN2 = rf"{_CONTRACTION}|{_WORD}|\p{{N}}|{_TAIL}"
_GPT2 = rf"'s|'t|'re|'ve|'m|'ll|'d| ?\p{{L}}+| ?\p{{N}}+|{_OTHER}|\s+(?!\S)"

_ASCII_PUNCTUATION = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"""
_PUNCTUATED_WORD = rf"{_ASCII_PUNCTUATION}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+"
_DEEPSEEK3 = rf"{_PUNCTUATED_WORD}| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_LINES}|{_SPACES}"
_HAN_KANA = r"\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff"
_CJK = r"[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_LINES_AND_THE_REST = r"[^\n]+|[\n]+"
_BLOOM = r" ?[^(\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"

_DEEPSEEK_LETTERS = (
    r"A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af"
    r"\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5"
    r"\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba"
    r"\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45"
    r"\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe"
    r"\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc"
    r"\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139"
    r"\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3"
    r"\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06"
    r"\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3"
    r"\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df"
    r"\U0001e900-\U0001e943"
)
_SOUTH_EAST_ASIA = (
    r"\u4e00-\u9fff\u3400-\u4dbf\u8c48-\ufaff\u3040-\u309f\u30a0-\u30ff\uff65-\uff9f\u2f00-\u2fdf\u0e40-\u0e7f"
    r"\u0e80-\u0eff\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af\u1100-\u11ff"
)


def _camel(letters: str, suffix: str, digits: str) -> str:
    """Words that break where an ASCII capital follows an ASCII small letter (tekken, gpt-4o)."""
    first, upper, lower = r"[^\r\n\p{L}\p{N}]?", f"[{letters}--[a-z]]", f"[{letters}--[A-Z]]"
    return (
        f"{first}{upper}*{lower}+{suffix}|{first}{upper}+{lower}*{suffix}|{digits}"
        rf"|{_OTHER}[\r\n/]*|{_LINES}|{_SPACES}"
    )


FAMILIES: dict[str, tuple[Step, ...]] = {
    "R1": (_LLAMA3,),
    "R2": (
        rf"{_CONTRACTION}|{_WORD}|\p{{N}}{{1,3}}|{_OTHER}[\r\n]*|{_LINES}"
        r"|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S)"
        r"|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}",
    ),
    "R3": (
        r"[\r\n]",
        rf"\s?[{_DEEPSEEK_LETTERS}]+",
        r"\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
        r"(?<!\s)\s++\Z",
        _CJK,
        r"\p{N}+",
    ),
    "R4": (r"\p{N}{1,3}", rf"[{_HAN_KANA}]+", _DEEPSEEK3),
    "R5": (
        r"\p{N}{1,3}",
        rf"[{_HAN_KANA}]+",
        rf"{_PUNCTUATED_WORD}| ?[\p{{P}}\p{{S}}]+|[\r\n]|{_SPACES}",
        r"\p{N}",
    ),
    "R6": (
        r"[\uac00-\ud7a3\u3131-\u318e]+"
        r"|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f\ufe30-\ufe4f]+"
        rf"|[\u3105-\u312f]+|[{_HAN_KANA}]+",
        rf"{_MARKED_WORD}{_CONTRACTION}?|\p{{N}}|{_OTHER}[\r\n/]*|{_LINES}|{_SPACES}",
    ),
    "R7": (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK, r"\p{N}"),
    "R8": (r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"[0-9][0-9][0-9]"),
    "R9": (r"\p{N}", _GPT2),
    "R10": (_GPT2,),
    "R11": (_QWEN2,),
    "R12": (
        rf"{_CONTRACTION}|{_MARKED_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_LINES}|{_SPACES}",
    ),
    "R13": (_BLOOM,),
    "R14": (_BLOOM, r"\p{N}"),
    "R15": (_camel(r"\p{L}", "", r"\p{N}"),),
    "R16": (
        r"<sentinel:[0-9]+>",
        r"IMGIMG[A-I]{1,4}Z",
        r"[\t\n]|    |  ",
        r"\p{N}",
        r"[\p{P}!-/:-@\[-`{-~]",
        _GPT2,
    ),
    "R17": (_camel(r"\p{L}", _CONTRACTION + "?", r"\p{N}{1,3}"),),
    "R18": (_camel(r"[\p{L}\p{M}]", _CONTRACTION + "?", r"\p{N}{1,3}"),),
    "R19": (
        RightGroups(r"\p{N}+"),
        rf"{_MARKED_WORD}{_CONTRACTION}?|\p{{N}}{{1,3}}|{_OTHER}[\r\n/]*|{_LINES}|{_SPACES}",
    ),
    "R20": (r"\p{Han}+|[^\r\n\p{L}\p{N}]?[\p{L}--\p{Han}]+" + rf"{_CONTRACTION}?|\p{{N}}{{1,3}}|{_TAIL}",),
    "R21": (r"\p{N}+", RightGroups("[0-9]+")),
    "R22": (
        r"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])"
        rf"|{_WORD}|\p{{N}}|{_OTHER}[\r\n]*|\s*[\r\n]|{_SPACES}",
    ),
    "R23": (rf"{_CONTRACTION}|{_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_LINES}|{_SPACES}",),
    "R24": (rf"{_WORD}|\p{{N}}|{_TAIL}",),
    "R25": (RightGroups(r"\p{N}+"), rf"[{_SOUTH_EAST_ASIA}]+", _DEEPSEEK3),
    "R26": (_LINES_AND_THE_REST, _QWEN2),
    "R27": (
        rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*+(?: \p{{L}}\p{{M}}*+)*+)++"
        rf"|\p{{N}}|{_OTHER}[\r\n/]?|\s*[\r\n]|{_SPACES}",
    ),
    "R28": (_LINES_AND_THE_REST,),
    "R29": (r"\p{N}{1,3}", rf"{_CONTRACTION}|{_WORD}|\p{{N}}+|{_TAIL}"),
    "R30": (r"\S+",),
    "R31": (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"),
}
